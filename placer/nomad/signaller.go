// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// signalTimeout is how long a node may take to pass a signal on.
const signalTimeout = 10 * time.Second

// Signaller sends signals to tasks through Nomad. It is how tasks without the muster driver are asked to checkpoint and
// then ended: killed by a signal they end failed, and Nomad runs them again when there are slots; stopped by Nomad they
// would count as done.
type Signaller struct {
	send   func(ctx context.Context, alloc *Alloc, task, signal string) error
	logger *slog.Logger
	under  sync.WaitGroup
}

// NewSignaller makes a signaller on a Nomad.
func NewSignaller(c *api.Client, logger *slog.Logger) *Signaller {
	send := func(ctx context.Context, alloc *Alloc, task, signal string) error {
		body := api.AllocSignalRequest{Task: task, Signal: signal}
		write := (&api.WriteOptions{Namespace: alloc.Job.Namespace}).WithContext(ctx)
		_, err := c.Raw().Write("/v1/client/allocation/"+url.PathEscape(alloc.ID)+"/signal", body, nil, write)
		return err
	}
	return &Signaller{send: send, logger: logger}
}

// Send sends a signal in the background. A failure is logged; who wants the signal to arrive sends it again.
func (s *Signaller) Send(ctx context.Context, alloc *Alloc, task, signal string) {
	s.under.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, signalTimeout)
		defer cancel()
		if err := s.send(ctx, alloc, task, signal); err != nil && ctx.Err() == nil {
			s.logger.Warn("a task of a closing gang could not be signalled", "alloc", alloc.ID, "task", task, "signal", signal,
				"error", fmt.Errorf("this needs the right alloc-lifecycle: %w", err))
		}
	})
}

// Wait waits for what is under way.
func (s *Signaller) Wait() { s.under.Wait() }
