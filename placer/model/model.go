// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package model holds the values that a placement decision is made from and what it comes out as: the cluster, the
// gangs that wait, the grants and the reasons. It computes nothing that needs a clock, a network or a log; the engine
// fills it from the ledger and from Nomad, the replay from a trace, and package policy reads it.
package model

import (
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
)

// Snapshot is everything that one decision looks at.
type Snapshot struct {
	Levels []string // topology levels above the node, outermost first, for example zone, rack
	Nodes  []Node   // sorted by Name
	Gangs  []Gang   // those that wait; any order
	// Running are the gangs that hold GPUs, those that are giving them back included; any order. What they hold is not
	// in Free of any node.
	Running []Running
	Queues  []Queue // the whole tree, any order; a gang of a queue that is not listed is in one without quota or limit
	Settings
	// Object says why a grant can't be made although it fits: what only Nomad's arithmetic and the ledger's limits know.
	// It is asked once about each grant, in the order in which they are made; a grant without a reason counts as made.
	// Nil: every grant can be.
	Object func(Grant) (Reason, bool)
}

// Settings are what an operator decides about the policy; the zero value is the default of each.
type Settings struct {
	HalfLife     time.Duration // of the GPU time that fair share looks back on; 0: DefaultHalfLife
	MinRuntime   time.Duration // a gang is not evicted sooner after its start; 0: DefaultMinRuntime
	ReclaimAbove float64       // share of all usable GPUs in use from which lent quota is reclaimed; 0: DefaultReclaimAbove
	Evictions    int           // of one gang within EvictionWindow, at most; 0: DefaultEvictions
	AgeBound     time.Duration // a gang that has waited for so long goes before all younger ones of its queue; 0: DefaultAgeBound
	Defragment   bool          // moves are carried out, not only proposed
	MaxNodes     int           // different nodes that one gang may span; 0: DefaultMaxNodes
}

// The defaults of Settings.
const (
	DefaultHalfLife     = 24 * time.Hour
	DefaultMinRuntime   = 10 * time.Minute
	DefaultReclaimAbove = 0.90 // as Philly did (Jeon et al., USENIX ATC 2019, section 2.3)
	DefaultEvictions    = 3
	EvictionWindow      = 24 * time.Hour
	DefaultAgeBound     = 24 * time.Hour
	DefaultMaxNodes     = 126 // what one transaction of the ledger holds
)

// Queue is a share of the cluster. Queues nest: the name of a queue inside another starts with the other's and a dot.
type Queue struct {
	Name       string  // "research", "research.vision"
	Quota      int     // GPUs that it is owed; they are part of its parent's
	Max        int     // GPUs that it and all queues inside may hold at most; 0: no limit
	Weight     float64 // its part, beside its siblings, of what nobody is owed or uses; 0: 1
	Preempt    bool    // gangs of higher priority may evict those of lower priority of the same queue
	GPUSeconds float64 // used so far by its own gangs, decayed with Settings.HalfLife to the moment of the snapshot
}

// Running is a gang that holds GPUs.
type Running struct {
	Gang               // as it was asked for
	Members  []Member  // by rank
	Level    string    // the locality that it got
	Granted  time.Time // since when it holds its GPUs
	Started  time.Time // of its processes; zero: not yet
	Saved    time.Time // when the last checkpoint that every member has finished was finished; zero: none since Started
	Closing  bool      // it is giving its GPUs back
	FreedFor string    // closing: the gang that it was evicted for; empty: none
}

// Node is one GPU node as the placer may use it now.
type Node struct {
	Name     string
	Address  string
	Path     []string      // its label at each of Snapshot.Levels; "" where the node has none
	Topology *gpu.Topology // of its Machine; shared, never changed
	Usable   gpu.Set       // managed, healthy, not MIG: what a slot could ever hold
	Free     gpu.Set       // the part of Usable that is in no slot
	CPUMHz   int64         // free, after every allocation that is not terminal
	MemoryMB int64         // free
	DiskMB   int64         // free
	Fabric   string        // the multi-node NVLink domain of all its GPUs (cluster UUID and clique); empty: none, or not known
	Closed   string        // why nothing may be placed here now ("draining", "client down"); empty: open
}

// Gang is a gang that waits.
type Gang struct {
	Name           string
	Queue          string
	Priority       int       // Nomad's job priority, higher first
	Submitted      time.Time // its place in the queue
	WaitingSince   time.Time // what RelaxAfter counts from: submission, or the last time it went back to waiting
	NotBefore      time.Time // back-off or hold; zero: none
	Held           bool      // NotBefore is an operator's hold
	NVLinkRequired bool      // each member's GPUs in one island, always; otherwise preferred
	Locality       string    // LocalityNode, one of Snapshot.Levels, or LocalityAny
	RelaxAfter     time.Duration
	RelaxNever     bool
	RelaxAuto      bool          // widen when waiting costs more than the slower run; RelaxAfter and RelaxNever mean nothing
	Comm           Comm          // how much its members talk to one another
	MaxRuntime     time.Duration // 0: not stated
	Expected       time.Duration // how long gangs like it have run; 0: not known
	Evicted        []time.Time   // when it was evicted, within EvictionWindow
	Earmarks       []Earmark     // GPUs that were freed for it: no other gang may have them
	Groups         []Group       // in file order: ranks follow it
	Avoid          []string      // nodes where the last attempt failed: used last
}

// Earmark is GPUs of one node that were, or are being, freed for one gang.
type Earmark struct {
	Node string
	GPUs gpu.Set
}

// Comm is how much the members of a gang talk to one another: how much distance costs it.
type Comm string

// The classes of muster_comm.
const (
	CommUnknown Comm = "" // as CommHigh is the safe guess for more than one member
	CommNone    Comm = "none"
	CommLow     Comm = "low"
	CommHigh    Comm = "high"
)

// The two localities that are no topology level.
const (
	LocalityNode = "node"
	LocalityAny  = "any"
)

// Group is one task group of a gang.
type Group struct {
	Name     string
	Count    int   // members
	GPUs     int   // of each member
	CPUMHz   int64 // of each member, all its tasks
	MemoryMB int64
	DiskMB   int64
	// Refused says, by node name, why Nomad would not place this group there (constraint, datacenter, driver, ...).
	// A node that is not listed is fine.
	Refused map[string]string
}

// Size is the number of members.
func (g Gang) Size() int {
	n := 0
	for _, group := range g.Groups {
		n += group.Count
	}
	return n
}

// GPUs is the number of GPUs of all members.
func (g Gang) GPUs() int {
	n := 0
	for _, group := range g.Groups {
		n += group.Count * group.GPUs
	}
	return n
}

// Decision is what to do now: the gangs to start, whole, those to evict, whole, and for every other gang why it waits.
type Decision struct {
	Grants    []Grant
	Evictions []Eviction
	Moves     []Move
	Waits     []Wait
}

// Eviction ends a running gang after a checkpoint and sends it back to the queue, so that another can start.
type Eviction struct {
	Gang           string
	For            string // the gang that gets what it holds
	Reason         Reason // for the users of Gang
	LostGPUSeconds float64
}

// Move is a proposal: gangs that would be evicted and start again elsewhere, so that For starts sooner.
type Move struct {
	For             string
	Gangs           []string // by name
	LostGPUSeconds  float64  // by the gangs that are moved
	SavedGPUSeconds float64  // by For, which would else wait for so long
}

// Grant places every member of one gang.
type Grant struct {
	Gang    string
	Members []Member // by rank
	Level   string   // the locality that it got: LocalityNode, a level, or LocalityAny
}

// Member is one member's place.
type Member struct {
	Rank  int // over all groups
	Group string
	Node  string
	GPUs  gpu.Set
}

// Wait is a gang that can't start now.
type Wait struct {
	Gang     string
	Reason   Reason
	Position int       // in the order in which gangs are tried, from 1
	RelaxAt  time.Time // when its locality widens next; zero: never or not waiting for that
	Cause    Cause     // what the time that it waits now is put down to
	Planned  *Planned  // where and when it is to start, if that can be said
	Earmarks []Earmark // that it has from now on: those of the snapshot, unless they were given up or added to
}

// Planned is a start that is kept free for a gang.
type Planned struct {
	At    time.Time // zero: not known, as it waits for gangs whose end nobody can tell
	Nodes []string  // by name
	Sure  bool      // At follows from stated run times alone, not from estimates
}

// Cause is what queued time is put down to (Jeon et al., USENIX ATC 2019, section 3.1).
type Cause string

// The causes of queued time.
const (
	CauseFairShare     Cause = "fair-share"    // its queue has used up what it is owed, or others go first
	CauseFragmentation Cause = "fragmentation" // GPUs that it may have are free, but not where it can use them
	CauseOwn           Cause = "own"           // held, in back-off, or asking for what the cluster can't give
)

// Reason is a code for programs and one plain sentence for people.
type Reason struct {
	Code string
	Text string
}

// The codes of reasons to wait.
const (
	WaitCapacity    = "capacity"    // not enough free GPUs anywhere
	WaitLocality    = "locality"    // enough, but not within the wanted domain
	WaitFragmented  = "fragmented"  // enough GPUs, but not enough on single nodes for the members
	WaitNVLink      = "nvlink"      // enough on nodes, but not joined by NVLink
	WaitResources   = "resources"   // CPU, memory or disk
	WaitConstraints = "constraints" // nodes that Nomad would refuse
	WaitNever       = "impossible"  // the cluster could not hold it even empty
	WaitBackoff     = "backoff"     // tried and failed a moment ago
	WaitHeld        = "held"        // an operator holds it back
	WaitQuota       = "quota"       // its queue has all that it may have
	WaitReserved    = "reserved"    // it would delay a gang that is ahead of it
	WaitFreeing     = "freeing"     // gangs are being evicted for it
)

// The codes of reasons to evict.
const (
	EvictReclaim  = "reclaimed" // a queue takes back what it had lent
	EvictPriority = "priority"  // for a gang of higher priority of the same queue
	EvictMove     = "moved"     // it can go on elsewhere, and another can start here
)
