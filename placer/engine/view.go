// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/nomad"
	"github.com/nomad-muster/muster/placer/queues"
)

// View is all that one step looks at.
type View struct {
	Ledger ledger.Snapshot
	Nomad  nomad.State
	Memory Memory                 // what this leader has seen so far
	Denied map[nomad.JobID]string // why Nomad did not take the last change of each job
}

// Rules are what a step decides by. They are the same for as long as a placer runs.
type Rules struct {
	Keys              ledger.Keys
	Levels            []string // topology levels above the node, outermost first
	PortBase          int      // first port for tasks without the muster driver
	PlacementDeadline time.Duration
	StartTimeout      time.Duration
	FenceTime         time.Duration // how long a node may be silent before its gangs go on elsewhere
	MaxFailures       int           // of the user's command in a row, after which a gang fails for good; 0: no limit

	// Read reads the gang that a job asks for; nil without one. The same job always gives the same answer.
	Read func(job *nomad.Job) (*jobspecs.Gang, jobspecs.Diagnostics)
	// Decide is the policy.
	Decide func(model.Snapshot, time.Time) model.Decision
	// Refusal says why Nomad would not place a group on a node with such a slot; empty: it would.
	Refusal func(job *nomad.Job, group string, node *structs.Node, device nomad.SlotDevice) string
	// NewID makes a reservation's ID, never the same twice.
	NewID func() string
}

// Times that nobody needs to set.
const (
	backoffLeast    = 5 * time.Second  // after the first failure; doubles with each
	backoffMost     = 5 * time.Minute  //
	backoffForgiven = 10 * time.Minute // a run that lasted so long starts the count anew
	deadFor         = 10 * time.Second // a job must be dead for so long: Nomad shows it for a moment between two attempts
	reasonTakes     = 2 * time.Second  // how long Nomad may take to say why it has a member ended
	claimGoneFor    = 30 * time.Second // how long Nomad may take to say how a task without the muster driver ended
	hearingTakes    = 10 * time.Second // how long nodes may take to answer a new leader before others are granted without them
	releaseShows    = time.Minute      // how long a task that has ended may still show in Nomad's books
	checkpointGrace = time.Minute      // how long a task without the muster driver may checkpoint before it is killed
	killEvery       = 30 * time.Second // how often the signal that ends it is sent
)

// Memory is what a leader knows from having watched: since when something has been so, by its own monotonic clock. A new
// leader starts with none, so that all times start again.
type Memory struct {
	// Began is when this leadership began.
	Began time.Time
	// SetBack says that the ledger is known to have been lost or set back.
	SetBack bool
	// Ports are the ports of reservations, as nodes remember them.
	Ports map[string]int
	// Granted is when each reservation was first seen, or Nomad came back since.
	Granted map[string]time.Time
	// ClaimGone is since when a slot of a running gang has had no claim.
	ClaimGone map[ledger.SlotID]time.Time
	// Stopped is since when a member of each reservation has been stopped by its driver on request.
	Stopped map[string]time.Time
	// Dead is since when the job of a gang has been dead.
	Dead map[string]time.Time
	// Released is when this leader released each reservation that Nomad's books may still show: its nodes have vouched
	// that nothing uses it.
	Released map[string]time.Time
	// Explained is when the reason of each waiting gang was written last.
	Explained map[string]time.Time
	// Outlined is when anything that can be said about the start of each waiting gang was written last.
	Outlined map[string]time.Time
	// Topologies are the nodes' links made ready for choosing, which takes longer than choosing.
	Topologies map[string]Topology
	// Signalled is what the tasks of closing slots were sent last.
	Signalled map[ledger.SlotID]Signalled
	// Written is how each job was last changed in Nomad.
	Written map[nomad.JobID]Written
	// Silent is since when each node has been silent.
	Silent map[string]time.Time
	// Used is the GPU time that queues have used.
	Used queues.Account
	// Holding are the GPUs that each queue's own gangs held when this leader last looked.
	Holding map[string]int
}

// Written is a change of a job.
type Written struct {
	At    time.Time
	Index uint64 // JobModifyIndex of the version that was changed
}

// Topology is one node's, as its inventory was at an index.
type Topology struct {
	index uint64
	links *gpu.Topology
}

// topology is a node's links made ready for choosing, from memory if its inventory is still the same.
func (m Memory) topology(name string, n ledger.Versioned[ledger.Node]) Topology {
	if known := m.Topologies[name]; known.links != nil && known.index == n.Index {
		return known
	}
	return Topology{index: n.Index, links: gpu.NewTopology(n.Doc.Machine)}
}

// Signalled is a signal that was sent to the task of a slot.
type Signalled struct {
	At   time.Time
	Kill bool // SIGKILL; else the signal that asks for a checkpoint
}

// Remember is the memory after having seen a view.
func Remember(before Memory, v View, now time.Time) Memory {
	after := Memory{
		Began: began(before, now), SetBack: before.SetBack || v.contradicted(), Ports: v.portsRemembered(before.Ports), Granted: map[string]time.Time{},
		ClaimGone: map[ledger.SlotID]time.Time{}, Stopped: map[string]time.Time{}, Dead: map[string]time.Time{}, Signalled: map[ledger.SlotID]Signalled{},
		Topologies: make(map[string]Topology, len(v.Ledger.Nodes)), Released: v.stillReleased(before.Released, now),
		Explained: map[string]time.Time{}, Outlined: map[string]time.Time{}, Written: v.stillWritten(before.Written), Silent: v.silentSince(before.Silent, now),
	}
	after.Holding = v.holding()
	after.Used = v.used(before, after.Holding, now)
	for name, n := range v.Ledger.Nodes {
		after.Topologies[name] = before.topology(name, n)
	}
	for _, table := range v.Ledger.Tables {
		for _, slot := range table.Doc.Slots {
			if sent, some := before.Signalled[slot.ID()]; some {
				after.Signalled[slot.ID()] = sent
			}
		}
	}
	stale := v.Nomad.Stale != ""
	for name, gang := range v.Ledger.Gangs {
		if r := gang.Doc.Reservation; r != nil {
			after.Granted[r.ID] = since(before.Granted, r.ID, now, stale)
		}
		for _, m := range v.members(gang.Doc) {
			if gang.Doc.State == ledger.GangRunning && m.claim == nil {
				after.ClaimGone[m.slot] = since(before.ClaimGone, m.slot, now, stale)
			}
			if m.doc != nil && m.doc.State == ledger.MemberStopped {
				after.Stopped[m.slot.Reservation] = since(before.Stopped, m.slot.Reservation, now, stale)
			}
		}
		if gang.Doc.State == ledger.GangWaiting {
			keepTime(after.Explained, before.Explained, name)
			keepTime(after.Outlined, before.Outlined, name)
		}
		if job := v.Nomad.Jobs[jobOf(gang.Doc)]; job != nil && job.Dead() {
			after.Dead[name] = since(before.Dead, name, now, stale)
		}
	}
	return after
}

func keepTime(after, before map[string]time.Time, name string) {
	if at, some := before[name]; some {
		after[name] = at
	}
}

// stillReleased forgets released reservations that no living allocation names any more.
func (v View) stillReleased(before map[string]time.Time, now time.Time) map[string]time.Time {
	named := map[string]bool{}
	for slot, allocs := range v.Nomad.Slots {
		if _, some := before[slot.Reservation]; some {
			named[slot.Reservation] = named[slot.Reservation] || slices.ContainsFunc(allocs, func(a *nomad.Alloc) bool { return !a.Terminal() })
		}
	}
	after := map[string]time.Time{}
	for reservation, at := range before {
		if named[reservation] || now.Sub(at) < releaseShows {
			after[reservation] = at
		}
	}
	return after
}

// since is when something was first seen; while Nomad can't be asked, time does not count.
func since[K comparable](before map[K]time.Time, key K, now time.Time, stale bool) time.Time {
	if at, seen := before[key]; seen && !stale {
		return at
	}
	return now
}

// longer says whether something has lasted for so long.
func longer[K comparable](seen map[K]time.Time, key K, d time.Duration, now time.Time) bool {
	at, found := seen[key]
	return found && now.Sub(at) >= d
}

func jobOf(g ledger.Gang) nomad.JobID { return nomad.JobID{Namespace: g.Namespace, ID: g.Job} }
