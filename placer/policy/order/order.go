// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package order says in which order waiting gangs are tried, and in the reverse of which running ones are evicted.
//
// First it is decided whose turn it is among the queues (package queue): those that stay within their quota come before
// those that borrow, and of each kind the one that has had least. Within the queue Compare decides: a gang that has
// waited for the age bound comes before all that have not, whatever their priority, and of several such the one that has
// waited longest; then higher priority, then the earlier submission, then the name.
//
// So no gang can be overtaken for ever. From the age bound on, only those of its queue that have waited even longer
// start before it, and there are only so many of these, as none can join them. Once it is the first of its queue that
// does not fit it holds a reservation (package backfill) as soon as the queue is one of the first few in turn, and from then on
// nothing starts that would move its planned start. With stated run times the wait is bounded by the age bound, plus the
// longest run time for every round of gangs ahead of it that fill the cluster. Only a queue that is owed nothing waits
// for as long as those that are owed keep the cluster full: its gangs have no claim to a GPU.
//
// The package looks at gangs and queues alone, never at the cluster. Package policy imports it.
package order

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// Rule orders the gangs of one queue at one moment.
type Rule struct {
	now   time.Time
	bound time.Duration
}

// At returns the rule with the age bound of the settings.
func At(s model.Settings, now time.Time) Rule {
	bound := s.AgeBound
	if bound <= 0 {
		bound = model.DefaultAgeBound
	}
	return Rule{now: now, bound: bound}
}

// Compare orders two gangs of one queue, the one that is tried first before the other. Names are unique, so there are
// no ties.
func (r Rule) Compare(a, b *model.Gang) int {
	agedA, agedB := r.aged(a), r.aged(b)
	switch {
	case agedA && agedB:
		return cmp.Or(since(a).Compare(since(b)), a.Submitted.Compare(b.Submitted), cmp.Compare(a.Name, b.Name))
	case agedA:
		return -1
	case agedB:
		return 1
	}
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Submitted.Compare(b.Submitted), cmp.Compare(a.Name, b.Name))
}

// aged says whether a gang has waited for the age bound.
func (r Rule) aged(g *model.Gang) bool { return r.now.Sub(since(g)) >= r.bound }

func since(g *model.Gang) time.Time {
	if g.WaitingSince.IsZero() {
		return g.Submitted
	}
	return g.WaitingSince
}

// Turns hands out gangs in the order in which they are tried. What is granted in between changes whose turn it is.
type Turns struct {
	tree  *queue.Tree
	lines [][]*model.Gang // by the line of the tree
	next  func(line int) (int, bool)
}

// NewTurns sorts the gangs into the lines of their queues. The gangs and the tree are shared, not copied.
func NewTurns(tree *queue.Tree, gangs []*model.Gang, rule Rule) *Turns {
	t := &Turns{tree: tree, lines: make([][]*model.Gang, tree.Lines())}
	for _, g := range gangs {
		line := tree.Line(g.Queue)
		t.lines[line] = append(t.lines[line], g)
	}
	for _, line := range t.lines {
		slices.SortFunc(line, rule.Compare)
	}
	t.next = func(line int) (int, bool) {
		if len(t.lines[line]) == 0 {
			return 0, false
		}
		return t.lines[line][0].GPUs(), true
	}
	return t
}

// Next returns the gang whose turn it is, once, or false when all have had theirs.
func (t *Turns) Next() (*model.Gang, bool) {
	line, some := t.tree.First(t.next)
	if !some {
		return nil, false
	}
	g := t.lines[line][0]
	t.lines[line] = t.lines[line][1:]
	return g, true
}
