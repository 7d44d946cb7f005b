// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package backfill

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// outlasted is the part of what a gang has run by which it is expected to run on when it has outlasted all others like it.
const outlasted = 10

// Length returns how long a gang may run, or is expected to, and which of the two; zero if nothing is known.
func Length(g *model.Gang) (length time.Duration, stated bool) {
	if g.MaxRuntime > 0 {
		return g.MaxRuntime, true
	}
	return max(0, g.Expected), false
}

// End returns when a running gang is expected to end: after its stated longest run time, else after the time that others
// like it have taken, and when that has passed, after a tenth of what it has run. It is never in the past. The time is
// zero if nothing is known, and sure if it was stated.
func End(r *model.Running, now time.Time) (at time.Time, sure bool) {
	if r.Closing {
		return now, true
	}
	length, stated := Length(&r.Gang)
	if length == 0 {
		return time.Time{}, false
	}
	start := r.Started
	if start.IsZero() {
		start = r.Granted
	}
	at = start.Add(length)
	if at.After(now) {
		return at, stated
	}
	if stated {
		return now, true
	}
	return now.Add(max(0, now.Sub(start)) / outlasted), false
}

// Ending is a running gang with its expected end.
type Ending struct {
	*model.Running
	At   time.Time // zero: not known
	Sure bool
	key  int64 // At as a number, the last if not known
}

// Ends is the gangs that run, in the order of their expected ends. Those whose end is not known come last, those that
// have run longest first.
type Ends struct {
	now     time.Time
	unread  []model.Running
	endings []Ending
}

// NewEnds returns the ends of running gangs as expected at a moment. They are sorted when they are first asked for.
func NewEnds(running []model.Running, now time.Time) Ends { return Ends{now: now, unread: running} }

// All returns them in order.
func (e *Ends) All() []Ending {
	if e.unread == nil {
		return e.endings
	}
	e.endings = slices.Grow(e.endings, len(e.unread))
	for i := range e.unread {
		e.endings = append(e.endings, e.ending(&e.unread[i]))
	}
	slices.SortFunc(e.endings, compare)
	e.unread = nil
	return e.endings
}

// Add notes one more gang that runs.
func (e *Ends) Add(r *model.Running) {
	ending := e.ending(r)
	if e.unread != nil {
		e.endings = append(e.endings, ending)
		return
	}
	at, _ := slices.BinarySearchFunc(e.endings, ending, compare)
	e.endings = slices.Insert(e.endings, at, ending)
}

func (e *Ends) ending(r *model.Running) Ending {
	at, sure := End(r, e.now)
	key := int64(math.MaxInt64)
	if !at.IsZero() {
		key = at.UnixNano()
	}
	return Ending{Running: r, At: at, Sure: sure, key: key}
}

func compare(a, b Ending) int {
	if a.key != b.key {
		return cmp.Compare(a.key, b.key)
	}
	return cmp.Or(a.Granted.Compare(b.Granted), cmp.Compare(a.Name, b.Name))
}
