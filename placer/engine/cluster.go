// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/nomad"
)

// site is a node as both the ledger and Nomad know it.
type site struct {
	name      string
	inventory ledger.Node
	nomad     *structs.Node // nil: Nomad does not know it
	topology  *gpu.Topology
	usable    gpu.Set
	free      gpu.Set
	best      nomad.SlotDevice // what a slot here would offer at most, its GPUs and owner left open
	island    int              // the most usable GPUs that are joined by NVLink
	closed    string           // why nothing may be placed here now
	pending   []nomad.Placing  // granted, but not placed by Nomad yet: their room is taken
	network   *nomad.Network   // with the first of those; nil: nobody has asked for it
}

// sites are all nodes with an inventory, by name.
func (s step) sites() map[string]*site {
	out := make(map[string]*site, len(s.Ledger.Nodes))
	for name, n := range s.Ledger.Nodes {
		at := &site{name: name, inventory: n.Doc, nomad: s.Nomad.Nodes[n.Doc.NodeID], topology: s.Memory.topology(name, n).links}
		at.usable = usable(n.Doc, s.Ledger.Health[name].Doc)
		free, err := n.Doc.Machine.SetOf(s.Ledger.FreeGPUs(name))
		if err != nil {
			at.closed = err.Error()
		}
		at.free = free & at.usable
		at.closed = s.closed(at)
		at.best = at.device(at.usable)
		for _, island := range at.topology.Islands() {
			at.island = max(at.island, (island & at.usable).Len())
		}
		out[name] = at
	}
	s.addPending(out)
	return out
}

// nodeNames are the names of the ledger's nodes by Nomad node ID; of two with one ID it is the first by name.
func (v View) nodeNames() map[string]string {
	names := make(map[string]string, len(v.Ledger.Nodes))
	for name, n := range v.Ledger.Nodes {
		if known, taken := names[n.Doc.NodeID]; !taken || name < known {
			names[n.Doc.NodeID] = name
		}
	}
	return names
}

// usable are the GPUs of a node that a slot could ever hold. A GPU whose health nobody has written counts as healthy, and
// one that is only busy will be.
func usable(n ledger.Node, written ledger.Health) gpu.Set {
	health := make(map[string]gpu.Health, len(n.Machine.GPUs))
	for _, g := range n.Machine.GPUs {
		health[g.UUID] = gpu.Health{State: gpu.Healthy}
		if h, some := written.GPUs[g.UUID]; some && h.State != gpu.Busy {
			health[g.UUID] = h
		}
	}
	return n.Machine.Free(health, n.Unmanaged, nil)
}

// closed says why nothing may be placed on a node now; empty: it is open.
func (s step) closed(at *site) string {
	if why := s.Ledger.Withheld(at.name); why != "" {
		return why
	}
	if at.nomad == nil {
		return "Nomad does not know it"
	}
	if why := nomad.Closed(at.nomad); why != "" {
		return why
	}
	table := s.Ledger.Tables[at.name].Doc
	for _, a := range s.Nomad.Allocs[at.nomad.ID] {
		for _, slot := range a.Slots {
			_, known := table.Find(slot)
			_, released := s.Memory.Released[slot.Reservation]
			if !known && !released && !a.Terminal() {
				return fmt.Sprintf("allocation %s stands on slot %s, which the ledger does not have", short(a.ID), slot)
			}
		}
	}
	return at.closed
}

// short is how Nomad's command line shows an ID.
func short(id string) string { return id[:min(8, len(id))] }

// addPending notes the members that hold slots but are not placed yet: Nomad's books do not show what they will need.
func (s step) addPending(sites map[string]*site) {
	for _, name := range slices.Sorted(maps.Keys(s.Ledger.Gangs)) {
		g := s.Ledger.Gangs[name].Doc
		job := s.Nomad.Jobs[jobOf(g)]
		if g.State != ledger.GangReserved || job == nil {
			continue
		}
		for _, m := range s.members(g) {
			if at := sites[m.node]; at != nil && !m.placed() {
				at.pending = append(at.pending, nomad.Placing{Job: job, Group: m.group.Group, Members: 1})
			}
		}
	}
}

// modelNodes are the sites as the policy sees them.
func (s step) modelNodes(sites map[string]*site) []model.Node {
	out := make([]model.Node, 0, len(sites))
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		at := sites[name]
		n := model.Node{
			Name: name, Address: at.inventory.Address, Topology: at.topology, Usable: at.usable, Free: at.free, Closed: at.closed,
			Path: make([]string, len(s.rules.Levels)),
		}
		for i, level := range s.rules.Levels {
			n.Path[i] = at.inventory.Topology[level]
		}
		if at.nomad != nil {
			room := s.room(at)
			n.CPUMHz, n.MemoryMB, n.DiskMB = room.CPUMHz, room.MemoryMB, room.DiskMB
		}
		out = append(out, n)
	}
	return out
}

func (s step) room(at *site) nomad.Room {
	room := s.Nomad.Free(at.nomad)
	for _, p := range at.pending {
		if needs, ok := p.Job.Needs(p.Group, at.nomad); ok {
			room = room.Less(needs, p.Members)
		}
	}
	return room
}

// modelGang is a waiting gang as the policy sees it.
func (s step) modelGang(g ledger.Gang, job *nomad.Job, sites map[string]*site) model.Gang {
	out := s.asked(g, job)
	out.Earmarks = s.earmarksOf(g)
	for i := range out.Groups {
		out.Groups[i].Refused = s.refused(g, g.Spec.Groups[i], job, sites)
	}
	return out
}

// asked is what a gang asks for, and what has befallen it. Of a job that is gone nobody knows what CPU and memory it needs.
func (s step) asked(g ledger.Gang, job *nomad.Job) model.Gang {
	out := model.Gang{
		Name: g.Name, Queue: g.Spec.Queue, Priority: g.Spec.Priority, Submitted: g.Submitted, WaitingSince: g.Since,
		NVLinkRequired: g.Spec.NVLink == "required", Locality: g.Spec.Locality,
		RelaxAfter: time.Duration(max(g.Spec.RelaxAfterS, 0)) * time.Second, RelaxNever: g.Spec.RelaxAfterS < 0,
		MaxRuntime: time.Duration(g.Spec.MaxRuntimeS) * time.Second, Avoid: g.Avoid,
		Evicted: recentlyEvicted(g, s.now), Expected: s.Ledger.RunTimes[runTimeID(g)].Doc.Typical(),
	}
	out.RelaxAuto, out.Comm = g.Spec.RelaxAuto, model.Comm(g.Spec.Comm)
	if g.NotBefore != nil {
		out.NotBefore = *g.NotBefore
	}
	if g.HoldUntil != nil && g.HoldUntil.After(out.NotBefore) {
		out.NotBefore, out.Held = *g.HoldUntil, true
	}
	for _, group := range g.Spec.Groups {
		var needs nomad.Room
		if job != nil {
			needs, _ = job.Needs(group.Group, nil)
		}
		out.Groups = append(out.Groups, model.Group{
			Name: group.Group, Count: group.Count, GPUs: group.GPUs,
			CPUMHz: needs.CPUMHz, MemoryMB: needs.MemoryMB, DiskMB: needs.DiskMB,
		})
	}
	return out
}

// refused asks Nomad's checkers about every node, with the best slot that the node could offer.
func (s step) refused(g ledger.Gang, group ledger.GroupSpec, job *nomad.Job, sites map[string]*site) map[string]string {
	out := map[string]string{}
	size := g.Spec.Size()
	for name, at := range sites {
		if at.nomad == nil {
			continue
		}
		device := at.best
		device.Gang, device.Value, device.Size, device.GPUs, device.NVLink = g.Name, group.Value, size, group.GPUs, at.island >= group.GPUs
		why := s.rules.Refusal(job, group.Group, at.nomad, device)
		if why == "" && job.AsksForNetwork(group.Group) {
			why = s.network(at).Refusal(job, group.Group)
		}
		if why != "" {
			out[name] = why
		}
	}
	return out
}

// network is a site's network with what is pending there taken, counted once in a step.
func (s step) network(at *site) *nomad.Network {
	if at.network == nil {
		at.network = s.Nomad.Network(at.nomad, at.pending)
	}
	return at.network
}

// device is a slot of some GPUs here as the device plugin would offer it, for nobody yet.
func (at *site) device(gpus gpu.Set) nomad.SlotDevice {
	d := nomad.SlotDevice{GPUs: gpus.Len(), Node: at.name, NVLink: at.topology.JoinedByNVLink(gpus)}
	for i := range gpus.All() {
		this := at.inventory.Machine.GPUs[i]
		if d.Model == "" {
			d.Model, d.MemoryMiB = this.Model, this.MemoryMiB
		}
		d.MemoryMiB = min(d.MemoryMiB, this.MemoryMiB)
	}
	return d
}
