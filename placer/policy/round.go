// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/backfill"
	"github.com/nomad-muster/muster/placer/policy/fit"
	"github.com/nomad-muster/muster/placer/policy/order"
	"github.com/nomad-muster/muster/placer/policy/preempt"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// The bounds of one round.
const (
	maxReservations = 4 // places that are kept, each for the first gang of another queue
	maxPlans        = 8 // gangs for which a place to keep is looked for, found or not
	maxEvictors     = 8 // gangs for which victims are looked for, found or not
)

// round is one decision in the making.
type round struct {
	s        model.Snapshot
	now      time.Time
	rule     order.Rule
	cluster  *fit.Cluster // what is free, less grants and earmarks
	tree     *queue.Tree  // what queues use; a gang counts from its grant or its earmarks on
	reserved []*backfill.Reservation
	lines    map[int]bool // of the tree: those whose first waiting gang holds a reservation
	limited  []limited
	marks    map[string]mark             // by the gang that they are for
	closing  map[string][]*model.Running // by the gang that they were evicted for
	ends     backfill.Ends
	victims  []*preempt.Victim // nil: not needed yet
	harmless map[int]int       // by line of the tree: gangs of so many GPUs and more have nobody to reclaim from
	moved    bool              // see move
	plans    int               // see maxPlans
	evictors int               // see maxEvictors
	waits    []waiting
	decision model.Decision
}

// mark is what is earmarked for a gang, and the part of it that was free.
type mark struct{ gpus, withheld []model.Earmark }

// waiting is a gang that was tried and does not start.
type waiting struct {
	gang    *model.Gang
	reason  model.Reason // empty: that of package fit
	planned *model.Planned
}

func newRound(s model.Snapshot, now time.Time, cluster *fit.Cluster) *round {
	r := &round{
		ends: backfill.NewEnds(s.Running, now),
		s:    s, now: now, rule: order.At(s.Settings, now), cluster: cluster, tree: queue.New(s), lines: make(map[int]bool),
		harmless: make(map[int]int),
		marks:    make(map[string]mark), closing: make(map[string][]*model.Running),
	}
	for i := range s.Running {
		if gang := &s.Running[i]; gang.Closing && gang.FreedFor != "" {
			r.closing[gang.FreedFor] = append(r.closing[gang.FreedFor], gang)
		}
	}
	return r
}

// resume tries the gangs that GPUs were freed for, and returns the others. Whom no plan can help any more gives its
// earmarks up and is one of the others.
func (r *round) resume() []*model.Gang {
	var marked, others []*model.Gang
	for i := range r.s.Gangs {
		gang := &r.s.Gangs[i]
		if len(gang.Earmarks) == 0 || gang.NotBefore.After(r.now) {
			others = append(others, gang)
			continue
		}
		marked = append(marked, gang)
		r.keep(gang, gang.Earmarks)
	}
	slices.SortFunc(marked, r.rule.Compare)
	for _, gang := range marked {
		r.release(gang)
		switch outcome, reason := r.start(gang); {
		case outcome == started || outcome != objected && r.awaits(gang):
		case outcome == objected: // it has been asked about, and nothing that is to end would change the answer
			r.wait(waiting{gang: gang, reason: reason})
		default:
			others = append(others, gang)
		}
	}
	return others
}

// keep earmarks GPUs for a gang and counts it in its queue.
func (r *round) keep(g *model.Gang, marks []model.Earmark) {
	r.marks[g.Name] = mark{gpus: marks, withheld: r.cluster.Withhold(marks)}
	r.tree.Take(g.Queue, g.GPUs())
}

// release undoes keep for a gang whose turn it is.
func (r *round) release(g *model.Gang) {
	r.cluster.Restore(r.marks[g.Name].withheld)
	delete(r.marks, g.Name)
	r.tree.Take(g.Queue, -g.GPUs())
}

// kept lists what is earmarked for anyone and planned for the reservations.
func (r *round) kept() []model.Earmark {
	var kept []model.Earmark
	for _, gang := range slices.Sorted(maps.Keys(r.marks)) {
		kept = append(kept, r.marks[gang].gpus...)
	}
	for _, reservation := range r.reserved {
		kept = append(kept, reservation.Place()...)
	}
	return kept
}

// awaits says whether a gang can still start where it was to when those that were evicted for it are gone; then it keeps
// its earmarks. If only other GPUs than those would do, it is given these.
func (r *round) awaits(g *model.Gang) bool {
	if len(r.closing[g.Name]) == 0 {
		return false
	}
	later := r.later(g)
	marks := g.Earmarks
	if slices.ContainsFunc(marks, func(m model.Earmark) bool {
		i, known := later.Number(m.Node)
		return !known || !later.Free(i).Contains(m.GPUs)
	}) {
		grant, fits := later.Fit(*g, r.now)
		if !fits {
			return false
		}
		marks = backfill.Marks(grant)
	}
	r.keep(g, marks)
	r.wait(waiting{gang: g, reason: r.freeing(g, nil), planned: plannedOn(marks)})
	return true
}

// later is the cluster when those that were evicted for the gang are gone.
func (r *round) later(g *model.Gang) *fit.Cluster {
	later := r.cluster.Clone()
	for _, victim := range r.closing[g.Name] {
		later.Give(victim.Gang, victim.Members)
	}
	later.Withhold(r.kept())
	return later
}

func plannedOn(marks []model.Earmark) *model.Planned {
	planned := &model.Planned{}
	for _, m := range marks {
		planned.Nodes = append(planned.Nodes, m.Node)
	}
	return planned
}

func (r *round) wait(w waiting) { r.waits = append(r.waits, w) }
