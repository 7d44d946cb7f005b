// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/nomad"
)

// place asks the policy about all gangs that wait and are not busy otherwise, and turns its answer into grants and into
// reasons that have changed, and into the end of gangs that make room for others. closing are the gangs that this step
// closes for reasons of their own.
func (s step) place(busy map[string]bool, closing map[string]ledger.Gang) []Action {
	waiting := s.waiting(busy)
	if len(waiting) == 0 {
		return nil
	}
	if why := s.grantsNothing(); why != nil {
		if !s.Memory.SetBack {
			return nil // it is a matter of seconds
		}
		for name, g := range waiting { // those that run will be given their slots back, and are not told that they wait
			if s.firstLiving(jobOf(g), func(a *nomad.Alloc) bool { return len(a.Slots) > 0 }) != nil {
				delete(waiting, name)
			}
		}
		frozen := map[string]news{}
		for name, g := range waiting {
			frozen[name] = s.heldNews(g, why)
		}
		return s.explain(waiting, frozen)
	}
	decision, grants, held := s.decide(waiting, closing)
	about := newsOf(decision)
	for name, why := range held {
		about[name] = s.heldNews(waiting[name], why)
	}
	for _, a := range grants {
		delete(waiting, a.Gang.Name)
	}
	return slices.Concat(grants, s.explain(waiting, about), s.evictions(decision.Evictions, busy, about))
}

// decide asks the policy about gangs that wait. Those that may be granted nothing are held back, each with the reason for
// it or nil; what is earmarked for them is nobody else's all the same.
func (s step) decide(waiting, closing map[string]ledger.Gang) (d model.Decision, grants []Action, held map[string]*ledger.Reason) {
	held = s.heldBack(waiting)
	sites := s.sites()
	snapshot := model.Snapshot{Levels: s.rules.Levels, Running: s.running(closing)}
	snapshot.Queues, snapshot.Settings = s.tree.Queues(s.Memory.Used), s.tree.Settings()
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		if _, is := held[name]; is {
			continue
		}
		g := waiting[name]
		snapshot.Gangs = append(snapshot.Gangs, s.modelGang(g, s.Nomad.Jobs[jobOf(g)], sites))
	}
	s.withhold(sites, snapshot.Gangs)
	snapshot.Nodes = s.modelNodes(sites)
	making := granting{step: s, waiting: waiting, sites: sites, ports: s.ports(), after: s.Ledger}
	snapshot.Object = making.object
	d = s.rules.Decide(snapshot, s.now)
	return d, making.actions, held
}

// withhold takes from what is free what is earmarked for gangs that the policy does not see now.
func (s step) withhold(sites map[string]*site, seen []model.Gang) {
	for name, g := range s.Ledger.Gangs {
		if len(g.Doc.Earmarks) == 0 || slices.ContainsFunc(seen, func(g model.Gang) bool { return g.Name == name }) {
			continue
		}
		for _, e := range s.earmarksOf(g.Doc) {
			if at := sites[e.Node]; at != nil {
				at.free &^= e.GPUs
			}
		}
	}
}

// heldNews is what there is to say about a gang that the policy is not asked about. What is earmarked for it is kept for a
// hold of a moment, but not for one that only a user or an operator can end.
func (s step) heldNews(g ledger.Gang, why *ledger.Reason) news {
	n := news{why: why, cause: model.CauseOwn, earmarks: g.Earmarks}
	denied := g.Reset != nil && s.Denied[jobOf(g)] != ""
	if denied || why != nil && why.Code == WhyQueue {
		n.earmarks = nil
	}
	return n
}

// waiting are the gangs that could be granted now, but for room.
func (s step) waiting(busy map[string]bool) map[string]ledger.Gang {
	out := map[string]ledger.Gang{}
	for name, g := range s.Ledger.Gangs {
		job := s.Nomad.Jobs[jobOf(g.Doc)]
		if g.Doc.State == ledger.GangWaiting && !busy[name] && job != nil && (!job.Dead() || g.Doc.Reset != nil) {
			out[name] = g.Doc
		}
	}
	return out
}

// heldBack are the gangs that may be granted nothing, by name, with the reason for it or nil.
func (s step) heldBack(waiting map[string]ledger.Gang) map[string]*ledger.Reason {
	held := map[string]*ledger.Reason{}
	for name, g := range waiting {
		if why, is := s.held(g, s.Nomad.Jobs[jobOf(g)]); is {
			held[name] = why
		} else if why := s.strandedIn(g); why != nil {
			held[name] = why
		}
	}
	return held
}

// granting turns the policy's grants into actions, one after another, each checked by Nomad's arithmetic and by the
// ledger's rules with those before it in place.
type granting struct {
	step
	waiting map[string]ledger.Gang
	sites   map[string]*site
	ports   ports
	after   ledger.Snapshot // with the actions done
	actions []Action
}

// object makes the action of a grant, or says why there is none: the gang waits then, and takes nothing from others.
func (s *granting) object(grant model.Grant) (model.Reason, bool) {
	g := s.waiting[grant.Gang]
	if text := s.objection(g, grant, s.sites); text != "" {
		return model.Reason{Code: model.WaitResources, Text: text}, true
	}
	action := s.grant(g, grant, s.sites, s.ports)
	change, err := ledger.BuildGrant(s.after, action.Gang, action.Slots)
	if err != nil {
		return model.Reason{Code: codeOf(err), Text: fmt.Sprintf("a place was found, but can't be written: %s", err)}, true
	}
	s.after = applied(s.after, change, nil)
	s.ports.take(action.Gang)
	s.takeRoom(g, grant, s.sites)
	s.actions = append(s.actions, action)
	return model.Reason{}, false
}

func codeOf(err error) string {
	if errors.Is(err, ledger.ErrTooLarge) {
		return WhyTooLarge
	}
	return WhyLedger
}

// objection says why Nomad would not place a gang as the policy has; empty: it would.
func (s step) objection(g ledger.Gang, grant model.Grant, sites map[string]*site) string {
	job := s.Nomad.Jobs[jobOf(g)]
	if node := crowded(job, grant); node != "" {
		return fmt.Sprintf("the job's distinct_hosts forbids two members on one node, and the place found has two on %s; "+
			"remove it, or ask for as many GPUs per member as a node has", node)
	}
	if why := job.Indistinct(spots(grant, sites)); why != "" {
		return fmt.Sprintf("the place found breaks a constraint that the job's members have among each other (%s)", why)
	}
	placings := placings(job, grant)
	for _, node := range slices.Sorted(maps.Keys(placings)) {
		at := sites[node]
		if at == nil || at.nomad == nil {
			return fmt.Sprintf("node %s is not known to Nomad", node)
		}
		if why, fits := s.Nomad.Fits(at.nomad, slices.Concat(at.pending, placings[node])); !fits {
			return fmt.Sprintf("Nomad has no room for its members on %s: %s", node, why)
		}
	}
	for _, m := range grant.Members {
		device := sites[m.Node].device(m.GPUs)
		device.Gang, device.Value, device.Size = g.Name, groupOf(g.Spec, m.Group).Value, g.Spec.Size()
		if why := s.rules.Refusal(job, m.Group, sites[m.Node].nomad, device); why != "" {
			return fmt.Sprintf("Nomad would not place group %s on %s: %s", m.Group, m.Node, why)
		}
	}
	return ""
}

// crowded is a node on which a grant has two members that a distinct_hosts constraint keeps apart; empty: none.
func crowded(job *nomad.Job, grant model.Grant) string {
	type spot struct{ node, group string }
	taken := map[spot]bool{}
	for _, m := range grant.Members {
		wholeJob, ofGroup := job.DistinctHosts(m.Group)
		at := spot{node: m.Node}
		if !wholeJob {
			at.group = m.Group
		}
		if taken[at] && (wholeJob || ofGroup) {
			return m.Node
		}
		taken[at] = true
	}
	return ""
}

// spots are a grant's members by rank, as far as Nomad knows their nodes.
func spots(grant model.Grant, sites map[string]*site) []nomad.Spot {
	var out []nomad.Spot
	for _, m := range grant.Members {
		if at := sites[m.Node]; at != nil && at.nomad != nil {
			out = append(out, nomad.Spot{Group: m.Group, Node: at.nomad})
		}
	}
	return out
}

// placings are a grant's members by node.
func placings(job *nomad.Job, grant model.Grant) map[string][]nomad.Placing {
	out := map[string][]nomad.Placing{}
	for _, m := range grant.Members {
		out[m.Node] = append(out[m.Node], nomad.Placing{Job: job, Group: m.Group, Members: 1})
	}
	return out
}

// takeRoom notes a grant's members as pending on their nodes.
func (s step) takeRoom(g ledger.Gang, grant model.Grant, sites map[string]*site) {
	for node, list := range placings(s.Nomad.Jobs[jobOf(g)], grant) {
		sites[node].pending = slices.Concat(sites[node].pending, list)
	}
}

// grant makes the documents of a grant.
func (s step) grant(g ledger.Gang, grant model.Grant, sites map[string]*site, ports ports) Action {
	members := slices.SortedFunc(slices.Values(grant.Members), func(a, b model.Member) int { return cmp.Compare(a.Rank, b.Rank) })
	g.Reservation = &ledger.Grant{
		ID: s.rules.NewID(), At: s.now, JobVersion: g.JobVersion, Shape: g.Spec.Shape,
		MasterPort: ports.free(members[0].Node, s.rules.PortBase), Placements: placementsOf(g.Spec, members, sites),
	}
	g = s.waitsNoMore(g)
	g.State, g.Since, g.Why, g.NotBefore, g.HoldUntil = ledger.GangReserved, s.now, nil, nil, nil
	g.Attempts++
	slots := map[string][]ledger.Slot{}
	for _, m := range members {
		group, at := groupOf(g.Spec, m.Group), sites[m.Node]
		slots[m.Node] = append(slots[m.Node], ledger.Slot{
			Reservation: g.Reservation.ID, Rank: m.Rank, Size: g.Spec.Size(), Driver: group.Driver,
			Owner: ledger.Owner{
				Gang: g.Name, Value: group.Value, Namespace: g.Namespace, Job: g.Job, CreateIndex: g.CreateIndex,
				Group: group.Group, Task: group.Task,
			},
			GPUs: at.inventory.Machine.UUIDs(m.GPUs), State: ledger.SlotOpen, Checkpoint: group.Checkpoint,
			MachineID: at.inventory.MachineID, BootID: at.inventory.BootID,
		})
	}
	return Action{Kind: Grant, What: "grant", Gang: g, Slots: slots}
}

// placementsOf joins members of one group with consecutive ranks on one node.
func placementsOf(spec ledger.Spec, members []model.Member, sites map[string]*site) []ledger.Placement {
	var out []ledger.Placement
	for _, m := range members {
		out = joined(out, ledger.Placement{
			Node: m.Node, Address: sites[m.Node].inventory.Address, Group: m.Group, Rank: m.Rank, Members: 1,
			GPUs: groupOf(spec, m.Group).GPUs,
		})
	}
	return out
}

// joined adds the next member to placements: to the last one, if it continues it.
func joined(placements []ledger.Placement, next ledger.Placement) []ledger.Placement {
	if n := len(placements) - 1; n >= 0 {
		last := &placements[n]
		if last.Node == next.Node && last.Group == next.Group && last.Rank+last.Members == next.Rank {
			last.Members++
			return placements
		}
	}
	return append(placements, next)
}

// portsPerReservation are the consecutive ports that a reservation may use on the node of its rank 0.
const portsPerReservation = 3

// ports are the first ports in use on each node.
type ports map[string]map[int]bool

// ports gathers those of all reservations, closing ones included.
func (s step) ports() ports {
	used := ports{}
	for _, g := range s.Ledger.Gangs {
		used.take(g.Doc)
	}
	return used
}

func (p ports) take(g ledger.Gang) {
	if g.Reservation == nil {
		return
	}
	for _, at := range g.Reservation.Placements {
		if at.Rank != 0 {
			continue
		}
		if p[at.Node] == nil {
			p[at.Node] = map[int]bool{}
		}
		p[at.Node][g.Reservation.MasterPort] = true
	}
}

// free is the lowest first port from base on that no reservation on the node has.
func (p ports) free(node string, base int) int {
	port := base
	for p[node][port] {
		port += portsPerReservation
	}
	return port
}
