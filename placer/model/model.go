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
	// Object says why a grant can't be made although it fits: what only Nomad's arithmetic and the ledger's limits know.
	// It is asked once about each grant, in the order in which they are made; a grant without a reason counts as made.
	// Nil: every grant can be.
	Object func(Grant) (Reason, bool)
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
	MaxRuntime     time.Duration // 0: not stated
	Groups         []Group       // in file order: ranks follow it
	Avoid          []string      // nodes where the last attempt failed: used last
}

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

// Decision is what to do now: the gangs to start, whole, and for every other gang why it waits.
type Decision struct {
	Grants []Grant
	Waits  []Wait
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
}

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
)
