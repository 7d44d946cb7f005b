// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/nomad"
	"github.com/nomad-muster/muster/placer/queues"
)

// Plan is what a placer would do about a job if it were submitted now: refuse it, leave a gang that holds GPUs as it is,
// grant its gang something, or let it wait.
type Plan struct {
	Gang    ledger.Gang    `json:"gang"`              // its document, as it would be
	Refused *ledger.Reason `json:"refused,omitempty"` // it would not be admitted
	Cause   model.Cause    `json:"cause,omitempty"`   // it would wait: what the time would be put down to
	Evicts  []string       `json:"evicts,omitempty"`  // the gangs that would be evicted for it, by name
}

// Starts says whether the gang would be granted its GPUs now.
func (p Plan) Starts() bool { return p.Refused == nil && p.Gang.State == ledger.GangReserved }

// Plan decides as a step would, with one more job: by the same rules and policy, on all that waits. Nothing is written.
func (r Rules) Plan(v View, job *nomad.Job, now time.Time) Plan {
	v.Nomad.Jobs = maps.Clone(v.Nomad.Jobs)
	v.Nomad.Jobs[job.ID] = job
	v.Memory = Remember(Memory{Began: v.Ledger.LeaderSince}, v, now) // it waits for nodes no longer than the leader does
	s := step{View: v, rules: r, now: now, tree: queues.New(v.Ledger.Queues.Doc)}
	s.wants, s.names = r.wants(v, s.tree), v.nodeNames()
	s.allocs = allocsOf(v.Nomad, s.wants)
	s.freeze = s.frozen()
	w := s.wants[job.ID]
	g := s.admitted(w)
	if why := s.refusalOf(w, nil); why != nil {
		return Plan{Gang: g, Refused: why}
	}
	if known := s.Ledger.Gangs[w.name].Doc; known.Reservation != nil {
		return Plan{Gang: known}
	} else if known.State == ledger.GangWaiting {
		g = anew(known, w)
	}
	s.Ledger.Gangs = maps.Clone(s.Ledger.Gangs)
	s.Ledger.Gangs[g.Name] = ledger.Versioned[ledger.Gang]{Doc: g, Index: s.Ledger.Gangs[g.Name].Index}
	return s.plan(g)
}

func (s step) plan(g ledger.Gang) Plan {
	if g.Why = s.grantsNothing(); g.Why != nil {
		return Plan{Gang: g, Cause: model.CauseOwn}
	}
	decision, grants, held := s.decide(s.waiting(nil), nil)
	if at := slices.IndexFunc(grants, func(a Action) bool { return a.Gang.Name == g.Name }); at >= 0 {
		return Plan{Gang: grants[at].Gang}
	}
	n := newsOf(decision)[g.Name]
	if why, is := held[g.Name]; is {
		n = s.heldNews(g, why)
	}
	if n.why == nil {
		n.why = reason(WhyEnding, "something of an earlier run has not ended yet")
	}
	out := Plan{Gang: s.explained(g, n).Gang, Cause: cmp.Or(n.cause, model.CauseOwn)}
	for _, e := range decision.Evictions {
		if e.For == g.Name {
			out.Evicts = append(out.Evicts, e.Gang)
		}
	}
	slices.Sort(out.Evicts)
	return out
}
