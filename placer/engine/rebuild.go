// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// The ledger may have been lost or set back while nobody led. Each leader therefore asks every node what it remembers,
// and takes what it hears for the truth: slots come back into tables, reservations into the documents of their gangs, and
// what is left over is closed. It waits for nodes for the fence time at most.

// hear asks the nodes that have not been asked in this leadership, new ones included, and takes answers.
func (s step) hear() []Action {
	var actions []Action
	nodes := slices.Concat(slices.Collect(maps.Keys(s.Ledger.Nodes)), slices.Collect(maps.Keys(s.Ledger.Tables)))
	slices.Sort(nodes)
	for _, node := range slices.Compact(nodes) {
		if table, due := ledger.BuildAsk(s.Ledger, node); due {
			a := Action{Kind: Ask, Node: node}
			if table.Index == 0 {
				a.What = askNew
			}
			actions = append(actions, a)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(s.Ledger.Tables)) {
		if _, due := ledger.BuildRestore(s.Ledger, node); due {
			a := Action{Kind: Restore, Node: node}
			if s.Ledger.Contradicted(node) {
				a.What = restoreOther
			}
			actions = append(actions, a)
		}
	}
	return actions
}

// patient says whether nodes are still waited for.
func (s step) patient() bool { return s.now.Sub(s.Memory.Began) < s.rules.FenceTime }

// contradicted says whether an answer in a view shows that the ledger was lost or set back.
func (v View) contradicted() bool {
	for node := range v.Ledger.Tables {
		if v.Ledger.Contradicted(node) {
			return true
		}
	}
	return false
}

// portsRemembered are the ports of reservations, as nodes remember them in their answers.
func (v View) portsRemembered(before map[string]int) map[string]int {
	after := maps.Clone(before)
	for _, ack := range v.Ledger.Acks {
		if r := ack.Doc.Remembered; r != nil && ack.Doc.Epoch == v.Ledger.EpochID && len(r.Ports) > 0 {
			if after == nil {
				after = map[string]int{}
			}
			maps.Copy(after, r.Ports)
		}
	}
	return after
}

// awaited are the nodes whose word may change what the ledger holds, so that no conclusion is drawn before it. A node that is
// silent is waited for only if the ledger is known to have been lost or set back, and so is one of which only Nomad's
// allocations tell.
func (s step) awaited() []string {
	if !s.patient() {
		return nil
	}
	nodes := map[string]bool{}
	for node := range s.Ledger.Nodes {
		isNew := s.Ledger.Tables[node].Doc.Former == nil
		if s.Ledger.Unheard(node) && (s.Memory.SetBack || !isNew && !s.silent(node)) {
			nodes[node] = true
		}
	}
	if s.Memory.SetBack {
		for slot, allocs := range s.Nomad.Slots {
			_, released := s.Memory.Released[slot.Reservation]
			for _, a := range allocs {
				node := s.Nomad.Nodes[a.NodeID]
				if node == nil || released || a.Terminal() {
					continue
				}
				if _, heard := s.Ledger.Tables[node.Name]; !heard {
					nodes[node.Name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// frozen says why the ledger may not be the whole truth yet; nil: it is.
func (s step) frozen() *ledger.Reason {
	if nodes := s.awaited(); len(nodes) > 0 {
		const most = 3
		text := strings.Join(nodes[:min(most, len(nodes))], ", ")
		if more := len(nodes) - most; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		return reason(WhyLedger, "nothing is granted before the ledger agrees with all nodes; to be heard: "+text)
	}
	if s.Memory.SetBack && s.patient() {
		for _, orphans := range s.Ledger.Orphans() {
			if slices.ContainsFunc(orphans, s.hopeful) {
				return reason(WhyLedger, "nothing is granted before all gangs that run are in the ledger again")
			}
		}
	}
	return nil
}

// grantsNothing says why nothing at all may be granted; nil: something may. A node that does not answer in time is left out,
// unless the ledger is known to have been lost or set back: nothing is granted on it before its answer, and what a ledger
// that was set back unseen may have lost there belongs to gangs that have living allocations, which are granted nothing
// either, or none, which have started nothing. Resets and whatever else rests on the ledger alone wait for the node.
func (s step) grantsNothing() *ledger.Reason {
	if !s.Memory.SetBack && s.now.Sub(s.Memory.Began) >= hearingTakes {
		return nil
	}
	return s.freeze
}

// unsure says whether nothing can be decided about a gang's slots yet, since a node that could answer has not.
func (s step) unsure(g ledger.Gang) bool {
	return g.Reservation != nil && s.patient() && slices.ContainsFunc(g.Reservation.Placements, func(p ledger.Placement) bool {
		return s.Ledger.Unheard(p.Node) && !s.silent(p.Node)
	})
}

// hopeful says whether an open slot that no gang holds may yet be given back to its gang. One that has all slots of
// another reservation takes none.
func (s step) hopeful(slot ledger.Slot) bool {
	if slot.State != ledger.SlotOpen || !s.patient() {
		return false
	}
	if g := s.Ledger.Gangs[slot.Owner.Gang].Doc; g.Reservation != nil {
		if whole, err := s.Ledger.Whole(g); whole && err == nil {
			return false
		}
	}
	id := nomad.JobID{Namespace: slot.Owner.Namespace, ID: slot.Owner.Job}
	job := s.Nomad.Jobs[id]
	_, gone := s.Nomad.Gone[id]
	return !gone && (job == nil || job.CreateIndex == slot.Owner.CreateIndex && !job.Stopped)
}

// sweeps are the nodes whose slots of no gang take their next step, closing or gone.
func (s step) sweeps() []Action {
	var actions []Action
	orphans := s.Ledger.Orphans()
	for _, node := range slices.Sorted(maps.Keys(orphans)) {
		if _, due, err := ledger.BuildSweep(s.Ledger, node, ""); due && err == nil && !slices.ContainsFunc(orphans[node], s.hopeful) {
			actions = append(actions, Action{Kind: Sweep, Node: node})
		}
	}
	return actions
}

// adoptions give gangs that wait the reservations back that their nodes remember whole. One that closes is given back only
// if the ledger was set back: else it was left behind, and its gang goes on without it.
func (s step) adoptions(busy map[string]bool) []Action {
	if !s.patient() {
		return nil
	}
	gangs, closing := map[string]string{}, map[string]bool{} // by reservation
	for _, orphans := range s.Ledger.Orphans() {
		for _, slot := range orphans {
			if !busy[slot.Owner.Gang] {
				gangs[slot.Reservation] = slot.Owner.Gang
				closing[slot.Reservation] = closing[slot.Reservation] || slot.State == ledger.SlotClosing
			}
		}
	}
	var actions []Action
	for _, id := range slices.Sorted(maps.Keys(gangs)) {
		g := s.Ledger.Gangs[gangs[id]].Doc
		switch {
		case !closing[id]:
			g = s.adopted(g, id)
		case s.Memory.SetBack && g.State == ledger.GangWaiting:
			g = s.adoptedClosing(g, id)
		default:
			continue
		}
		if _, err := ledger.BuildAdopt(s.Ledger, g); err == nil {
			actions = append(actions, Action{Kind: Adopt, Gang: g})
		}
	}
	return actions
}

// adoptedClosing is adopted for a reservation that was closing. What for, nobody knows yet.
func (s step) adoptedClosing(g ledger.Gang, reservation string) ledger.Gang {
	return s.move(s.adopted(g, reservation), WhyLedger, "the ledger was set back while the gang ended")
}

// doneAfterAll is a closing gang's document once its drivers have written again that its work was done before the ledger
// was set back.
func (s step) doneAfterAll(g ledger.Gang) ledger.Gang {
	if g.After != ledger.GangWaiting || g.Why == nil || g.Why.Code != WhyLedger || !finished(s.members(g)) {
		return g
	}
	g.After, g.Why = ledger.GangFinished, reason(WhyFinished, "all members succeeded")
	g.LastRun = s.summary(g, resultFinished, *g.Why)
	return g
}

// adopted is a gang's document with a reservation that its nodes remember. Its deadlines run anew, so that drivers and
// plugins have time to make their claims again.
func (s step) adopted(g ledger.Gang, reservation string) ledger.Gang {
	grant := ledger.Grant{ID: reservation, At: s.now, JobVersion: g.JobVersion, Shape: g.Spec.Shape, MasterPort: s.Memory.Ports[reservation]}
	found := s.Ledger.Found(reservation)
	for _, node := range slices.Sorted(maps.Keys(found)) {
		slots := slices.SortedFunc(slices.Values(found[node]), func(a, b ledger.Slot) int { return cmp.Compare(a.Rank, b.Rank) })
		for _, slot := range slots {
			for _, a := range s.Nomad.Slots[slot.ID()] {
				if a.Job == jobOf(g) && !a.Terminal() {
					grant.JobVersion = min(grant.JobVersion, a.JobVersion)
				}
			}
			grant.Placements = joined(grant.Placements, ledger.Placement{
				Node: node, Address: s.Ledger.Nodes[node].Doc.Address, Group: slot.Owner.Group, Rank: slot.Rank, Members: 1, GPUs: len(slot.GPUs),
			})
		}
	}
	if grant.MasterPort == 0 { // tasks that have started already know theirs
		if at := slices.IndexFunc(grant.Placements, func(p ledger.Placement) bool { return p.Rank == 0 }); at >= 0 {
			grant.MasterPort = s.ports().free(grant.Placements[at].Node, s.rules.PortBase)
		}
	}
	slices.SortStableFunc(grant.Placements, func(a, b ledger.Placement) int { return cmp.Compare(a.Rank, b.Rank) })
	g = s.waitsNoMore(g)
	g.Reservation, g.Reset = &grant, nil
	g.State, g.Since, g.Why, g.NotBefore, g.Attempts = ledger.GangReserved, s.now, nil, nil, max(g.Attempts, 1)
	return g
}

// liveAstray is the next step of a gang whose reservation its nodes do not have, or not whole: the ledger was set back,
// and it is not the gang's any more.
func (s step) liveAstray(g ledger.Gang) (Action, bool) {
	whole, err := s.Ledger.Whole(g)
	if err != nil || whole || s.Nomad.Stale != "" {
		return Action{}, false
	}
	if g.State != ledger.GangClosing {
		g.After = ledger.GangWaiting
		if s.completed(g) {
			g.After = ledger.GangFinished
		}
	}
	after, gone := s.afterwards(g)
	return Action{Kind: Forget, What: "its nodes do not have its slots any more", Gang: after, Release: ledger.Release{Remove: gone}}, true
}

// completed says whether Nomad is done with a gang's job and counts all members as complete: all that is left to go by
// when the ledger is of before.
func (s step) completed(g ledger.Gang) bool {
	job := s.Nomad.Jobs[jobOf(g)]
	if job == nil || !job.Dead() || job.Stopped {
		return false
	}
	complete := 0
	for _, a := range s.allocs[job.ID] {
		if a.Terminal() && a.Tasks[groupOf(g.Spec, a.Group).Task].Succeeded() {
			complete++
		}
	}
	return complete >= g.Spec.Size()
}

// ajar says whether some of a gang's slots are not as its document has them: the ledger was set back, or a node
// remembered that they were closing.
func (s step) ajar(g ledger.Gang) bool {
	for _, p := range g.Reservation.Placements {
		if slices.ContainsFunc(s.Ledger.Tables[p.Node].Doc.Slots, func(slot ledger.Slot) bool {
			return slot.Reservation == g.Reservation.ID && (slot.State == ledger.SlotClosing) != (g.State == ledger.GangClosing)
		}) {
			return true
		}
	}
	return false
}

// began is when a leadership was first seen.
func began(before Memory, now time.Time) time.Time {
	if before.Began.IsZero() {
		return now
	}
	return before.Began
}
