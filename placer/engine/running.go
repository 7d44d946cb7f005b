// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
)

// running are the gangs that hold slots, as the policy sees them, by name. closing are the documents of those that this
// step closes for reasons of their own.
func (s step) running(closing map[string]ledger.Gang) []model.Running {
	var out []model.Running
	for _, name := range slices.Sorted(maps.Keys(s.Ledger.Gangs)) {
		g := s.Ledger.Gangs[name].Doc
		if g.Reservation == nil {
			continue
		}
		if next, is := closing[name]; is {
			g = next
		}
		out = append(out, s.modelRunning(g))
	}
	return out
}

// modelRunning is a gang that holds slots, also one whose job is gone, of which only the document tells what it asked for.
func (s step) modelRunning(g ledger.Gang) model.Running {
	run := s.Ledger.Runs[ledger.RunID{Gang: g.Name, Reservation: g.Reservation.ID}]
	out := model.Running{
		Gang: s.asked(g, s.Nomad.Jobs[jobOf(g)]), Granted: g.Reservation.At, Started: started(g, run.Run.Doc),
		Closing: g.State == ledger.GangClosing, FreedFor: g.FreedFor,
	}
	out.Groups = groupsHeld(g.Reservation, out.Groups)
	for _, p := range g.Reservation.Placements {
		for i := range p.Members {
			rank := p.Rank + i
			slot, _ := s.Ledger.Tables[p.Node].Doc.Find(ledger.SlotID{Reservation: g.Reservation.ID, Rank: rank})
			out.Members = append(out.Members, model.Member{
				Rank: rank, Group: p.Group, Node: p.Node, GPUs: setOf(s.Ledger.Nodes[p.Node].Doc.Machine, slot.GPUs),
			})
		}
	}
	slices.SortFunc(out.Members, func(a, b model.Member) int { return a.Rank - b.Rank })
	out.Level, out.Saved = s.levelOf(out.Members), saved(run, len(out.Members), out.Started)
	return out
}

// groupsHeld are the groups of a gang as its reservation has them: its job may have been edited to ask for others.
func groupsHeld(r *ledger.Grant, asked []model.Group) []model.Group {
	out := slices.Clone(asked)
	for i := range out {
		out[i].Count = 0
	}
	for _, p := range r.Placements {
		at := slices.IndexFunc(out, func(group model.Group) bool { return group.Name == p.Group })
		if at < 0 {
			at, out = len(out), append(out, model.Group{Name: p.Group})
		}
		out[at].Count += p.Members
		out[at].GPUs = p.GPUs
	}
	return slices.DeleteFunc(out, func(group model.Group) bool { return group.Count == 0 })
}

// started is when the processes of a gang were started; zero: they are not yet. Without the muster driver nobody says so,
// and the last claim counts.
func started(g ledger.Gang, run ledger.Run) time.Time {
	switch {
	case run.Started != nil:
		return *run.Started
	case g.State == ledger.GangRunning:
		return g.Since
	case g.State == ledger.GangClosing:
		return g.Reservation.At // nothing is decided by it any more
	}
	return time.Time{}
}

// saved is when the last checkpoint was finished that every member has finished since a moment; zero: none was.
func saved(run ledger.RunState, members int, since time.Time) time.Time {
	var oldest time.Time
	for rank := range members {
		c := run.Members[rank].Doc.Checkpoint
		if c == nil || c.Completed == nil || c.Problem != "" || c.Completed.Before(since) {
			return time.Time{}
		}
		if oldest.IsZero() || c.Completed.Before(oldest) {
			oldest = *c.Completed
		}
	}
	return oldest
}

// levelOf is the innermost locality that all members share.
func (s step) levelOf(members []model.Member) string {
	same := func(label func(node string) string) bool {
		first := label(members[0].Node)
		return first != "" && !slices.ContainsFunc(members, func(m model.Member) bool { return label(m.Node) != first })
	}
	switch {
	case len(members) == 0:
		return model.LocalityAny
	case same(func(node string) string { return node }):
		return model.LocalityNode
	}
	for _, level := range slices.Backward(s.rules.Levels) {
		if same(func(node string) string { return s.Ledger.Nodes[node].Doc.Topology[level] }) {
			return level
		}
	}
	return model.LocalityAny
}

// setOf is those of some GPUs that a machine has.
func setOf(m gpu.Machine, uuids []string) gpu.Set {
	var set gpu.Set
	for i, g := range m.GPUs {
		if slices.Contains(uuids, g.UUID) {
			set = set.Add(i)
		}
	}
	return set
}

// earmarksOf are the GPUs that a gang's document has earmarked, as far as their nodes still have them.
func (s step) earmarksOf(g ledger.Gang) []model.Earmark {
	var out []model.Earmark
	for _, e := range g.Earmarks {
		set, err := gpu.ParseSet(e.GPUs)
		if set &= s.Ledger.Nodes[e.Node].Doc.Machine.All(); err == nil && set != 0 {
			out = append(out, model.Earmark{Node: e.Node, GPUs: set})
		}
	}
	return out
}

// earmarked is what a policy has earmarked, as a document has it: by node.
func earmarked(list []model.Earmark) []ledger.Earmark {
	sets := map[string]gpu.Set{}
	for _, e := range list {
		sets[e.Node] |= e.GPUs
	}
	var out []ledger.Earmark
	for _, node := range slices.Sorted(maps.Keys(sets)) {
		if sets[node] != 0 {
			out = append(out, ledger.Earmark{Node: node, GPUs: sets[node].String()})
		}
	}
	return out
}
