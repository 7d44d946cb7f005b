// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

const (
	announceEvery   = 30 * time.Second // the least time between two messages about one job
	announceTimeout = 5 * time.Second  // of one message
	forgetAfter     = 24 * time.Hour   // what was said, and what Nomad refused
)

// Announcer tells users why their gang waits where they look first: as a scaling event of the job, which `nomad job
// scaling-events` and Nomad's UI show. It is a courtesy: what fails is logged once, and that job is left alone.
type Announcer struct {
	send   func(ctx context.Context, job JobID, group, message string) error
	logger *slog.Logger

	mu      sync.Mutex // protects the fields below
	notes   map[JobID]note
	pending map[JobID]bool
}

// note is the last message about a job.
type note struct {
	group, message string
	sentAt         time.Time // of the one before, zero: none
	refused        bool      // Nomad did not take one
}

// NewAnnouncer makes an announcer on a Nomad. Run sends what Note was told.
func NewAnnouncer(c *api.Client, logger *slog.Logger) *Announcer {
	return newAnnouncer(logger, func(ctx context.Context, job JobID, group, message string) error {
		_, _, err := c.Jobs().Scale(job.ID, group, nil, message, false, nil, (&api.WriteOptions{Namespace: job.Namespace}).WithContext(ctx))
		return err
	})
}

func newAnnouncer(logger *slog.Logger, send func(context.Context, JobID, string, string) error) *Announcer {
	return &Announcer{send: send, logger: logger, notes: map[JobID]note{}, pending: map[JobID]bool{}}
}

// Note puts a message about a job down, for one of its groups. Of several before the next sending only the last counts,
// and nothing is said twice in a row.
func (a *Announcer) Note(job JobID, group, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.notes[job]
	if n.message == message || n.refused {
		return
	}
	n.group, n.message = group, message
	a.notes[job], a.pending[job] = n, true
}

// Run sends until the context ends.
func (a *Announcer) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.flush(ctx, now)
		}
	}
}

// flush sends what is due.
func (a *Announcer) flush(ctx context.Context, now time.Time) {
	for _, job := range a.due(now) {
		a.mu.Lock()
		n, kept := a.notes[job]
		a.mu.Unlock()
		if !kept {
			continue
		}
		sending, cancel := context.WithTimeout(ctx, announceTimeout)
		err := a.send(sending, job, n.group, n.message)
		cancel()
		if err != nil && ctx.Err() == nil {
			a.logger.Warn("can't tell a job's users why it waits; unless the job is gone, the token lacks the right scale-job",
				"job", job.ID, "namespace", job.Namespace, "error", err)
		}
		a.mu.Lock()
		if n, kept = a.notes[job]; kept {
			n.sentAt, n.refused = now, err != nil
			a.notes[job] = n
		}
		a.mu.Unlock()
	}
}

// due takes the jobs whose message may be sent now from the pending ones.
func (a *Announcer) due(now time.Time) []JobID {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.notes, func(job JobID, n note) bool { return !a.pending[job] && now.Sub(n.sentAt) > forgetAfter })
	var due []JobID
	for job := range a.pending {
		if at := a.notes[job].sentAt; at.IsZero() || now.Sub(at) >= announceEvery {
			due = append(due, job)
		}
	}
	for _, job := range due {
		delete(a.pending, job)
	}
	slices.SortFunc(due, JobID.Compare)
	return due
}
