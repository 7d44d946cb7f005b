// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package backfill

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/ends"
)

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
	at, sure := ends.End(r, e.now)
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
