// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
	"github.com/nomad-muster/muster/placer/policy/order"
)

// makeRoom is a simple policy that evicts: the first gang of a higher priority than some that run gets what those hold,
// however little of it it needs. It keeps the rules that the engine relies on: what is earmarked for a gang is nobody else's,
// and a decision that was carried out in part is decided again.
func makeRoom(s model.Snapshot, now time.Time) model.Decision {
	claimant, some := claimantOf(s, now)
	if !some {
		return labelled(policy.Decide(s, now))
	}
	marked, victims := roomFor(claimant, s.Running)
	first := s
	first.Gangs = []model.Gang{claimant}
	d := policy.Decide(first, now)
	rest := s
	rest.Gangs = slices.DeleteFunc(slices.Clone(s.Gangs), func(g model.Gang) bool { return g.Name == claimant.Name })
	rest.Nodes = slices.Clone(s.Nodes)
	for i := range rest.Nodes {
		n := &rest.Nodes[i]
		n.Free &^= marked[n.Name]
		for _, g := range d.Grants {
			for _, m := range g.Members {
				if m.Node == n.Name {
					n.Free &^= m.GPUs
				}
			}
		}
	}
	if len(d.Waits) == 1 && len(victims)+len(marked) > 0 {
		w := &d.Waits[0]
		w.Reason = model.Reason{Code: model.WaitFreeing, Text: fmt.Sprintf("%d GPUs are being freed for it", claimant.GPUs())}
		w.Cause, w.Planned = model.CauseFairShare, &model.Planned{At: now.Add(time.Minute)}
		for _, n := range s.Nodes {
			if marked[n.Name] != 0 {
				w.Earmarks = append(w.Earmarks, model.Earmark{Node: n.Name, GPUs: marked[n.Name]})
				w.Planned.Nodes = append(w.Planned.Nodes, n.Name)
			}
		}
		for _, v := range victims {
			d.Evictions = append(d.Evictions, model.Eviction{
				Gang: v, For: claimant.Name, Reason: model.Reason{Code: "preempted", Text: "makes room for gang " + claimant.Name},
			})
		}
	}
	others := policy.Decide(rest, now)
	d.Grants, d.Waits = append(d.Grants, others.Grants...), append(d.Waits, others.Waits...)
	return labelled(d)
}

func labelled(d model.Decision) model.Decision {
	for i := range d.Waits {
		d.Waits[i].Position, d.Waits[i].Cause = i+1, cmp.Or(d.Waits[i].Cause, model.CauseFragmentation)
	}
	return d
}

// claimantOf is the gang that has earmarks, or else the first one that others should make room for.
func claimantOf(s model.Snapshot, now time.Time) (model.Gang, bool) {
	gangs, turn := slices.Clone(s.Gangs), order.At(s.Settings, now)
	slices.SortFunc(gangs, func(a, b model.Gang) int { return turn.Compare(&a, &b) })
	for _, g := range gangs {
		if len(g.Earmarks) > 0 && !g.NotBefore.After(now) {
			return g, true
		}
	}
	for _, w := range policy.Decide(withoutObject(s), now).Waits {
		at := slices.IndexFunc(s.Gangs, func(g model.Gang) bool { return g.Name == w.Gang })
		lower := func(r model.Running) bool { return r.Priority < s.Gangs[at].Priority && !r.Closing }
		if w.Reason.Code == model.WaitCapacity && slices.ContainsFunc(s.Running, lower) {
			return s.Gangs[at], true
		}
	}
	return model.Gang{}, false
}

func withoutObject(s model.Snapshot) model.Snapshot {
	s.Object = nil
	return s
}

// roomFor is what a gang has earmarked, with all that gangs of lower priority hold, and those gangs.
func roomFor(claimant model.Gang, running []model.Running) (marked map[string]gpu.Set, victims []string) {
	marked = map[string]gpu.Set{}
	for _, e := range claimant.Earmarks {
		marked[e.Node] |= e.GPUs
	}
	left := claimant.GPUs()
	for _, set := range marked {
		left -= set.Len()
	}
	sorted := slices.SortedFunc(slices.Values(running), func(a, b model.Running) int { return cmp.Compare(a.Name, b.Name) })
	for _, r := range sorted {
		holds := slices.ContainsFunc(r.Members, func(m model.Member) bool { return marked[m.Node]&m.GPUs != 0 })
		if r.Closing || r.Priority >= claimant.Priority || left <= 0 && !holds {
			continue
		}
		victims = append(victims, r.Name)
		for _, m := range r.Members {
			if left > 0 && marked[m.Node]&m.GPUs == 0 {
				marked[m.Node] |= m.GPUs
				left -= m.GPUs.Len()
			}
		}
	}
	return marked, victims
}
