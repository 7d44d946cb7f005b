// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// cause is what queued time is put down to.
type cause int

const (
	causeFairShare cause = iota
	causeFragmentation
	causeOwn
	causeRound // until the next decision after it came or came back
	causes
)

func causeOf(c model.Cause) cause {
	switch c {
	case model.CauseFragmentation:
		return causeFragmentation
	case model.CauseOwn:
		return causeOwn
	case model.CauseFairShare:
	}
	return causeFairShare
}

// account puts the time since the last decision down to what that decision said.
func (w *world) account(l *life, now time.Time) {
	l.waited[l.cause] += now.Sub(l.labelled)
	l.labelled = now
}

// explain keeps what a decision says about the gangs that wait.
func (w *world) explain(waits []model.Wait, now time.Time) {
	w.relax = time.Time{}
	marked := make(map[string][]model.Earmark)
	for i := range waits {
		wait := &waits[i]
		l := w.byName[wait.Gang]
		if l == nil || l.phase != waiting {
			continue // the audit has noted it
		}
		if c := causeOf(wait.Cause); c != l.cause {
			w.account(l, now)
			l.cause = c
		}
		if wait.RelaxAt.After(now) && (w.relax.IsZero() || wait.RelaxAt.Before(w.relax)) {
			w.relax = wait.RelaxAt
		}
		if len(wait.Earmarks) > 0 {
			marked[wait.Gang] = wait.Earmarks
		}
	}
	for i := range w.snapshot.Gangs {
		w.snapshot.Gangs[i].Earmarks = marked[w.snapshot.Gangs[i].Name]
	}
}

func (l *life) waitedInAll() time.Duration {
	sum := time.Duration(0)
	for _, part := range l.waited {
		sum += part
	}
	return sum
}
