// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// eventsKept is how many events may wait for Nomad's client before new ones are dropped: a task never waits for it.
const eventsKept = 256

// events passes task events on to Nomad.
type events struct {
	broadcast *eventer.Eventer
	queue     chan *drivers.TaskEvent
	logger    hclog.Logger
}

func newEvents(ctx context.Context, logger hclog.Logger) *events {
	e := &events{
		broadcast: eventer.NewEventer(ctx, logger.Named("events")),
		queue:     make(chan *drivers.TaskEvent, eventsKept), logger: logger,
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-e.queue:
				_ = e.broadcast.EmitEvent(event) // fails only when ctx has ended
			}
		}
	}()
	return e
}

func (e *events) subscribe(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	return e.broadcast.TaskEvents(ctx)
}

func (e *events) emit(cfg *drivers.TaskConfig, message string) {
	event := &drivers.TaskEvent{
		TaskID: cfg.ID, TaskName: cfg.Name, AllocID: cfg.AllocID, Timestamp: time.Now(), Message: message,
	}
	select {
	case e.queue <- event:
	default:
		e.logger.Warn("event dropped, as Nomad takes none", "alloc_id", cfg.AllocID, "task_name", cfg.Name, "message", message)
	}
}
