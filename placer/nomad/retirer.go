// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// Retirer marks jobs as stopped, unless somebody has submitted a newer version meanwhile.
type Retirer struct {
	client *api.Client
	logger *slog.Logger

	mu     sync.Mutex     // protects what follows
	failed map[JobID]bool // jobs whose failure was logged
}

// NewRetirer makes a retirer on a Nomad. It may be used by several goroutines.
func NewRetirer(c *api.Client, logger *slog.Logger) *Retirer {
	return &Retirer{client: c, logger: logger, failed: map[JobID]bool{}}
}

// Retire stops a job of which nothing runs. A failure is logged once for each job; who wants the job to be over asks again.
func (r *Retirer) Retire(ctx context.Context, job *Job) {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	spec, stop := *job.API, true
	spec.Stop = &stop
	write := (&api.WriteOptions{Namespace: job.ID.Namespace}).WithContext(ctx)
	_, _, err := r.client.Jobs().RegisterOpts(&spec, &api.RegisterOptions{EnforceIndex: true, ModifyIndex: job.JobModifyIndex}, write)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failed, job.ID)
	} else if ctx.Err() == nil && !r.failed[job.ID] {
		r.failed[job.ID] = true
		r.logger.Warn("the job of a finished gang can't be ended, so Nomad shows it as pending", "job", job.ID,
			"error", fmt.Errorf("this needs the right submit-job: %w", err))
	}
}
