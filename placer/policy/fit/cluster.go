// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package fit says where one gang goes, and if nowhere, why not. It works on a copy of a snapshot, from which each grant
// of a round is taken so that later gangs see it.
//
// A gang is placed whole, within one domain of the level that it may use by now (ladder.go), and as tightly as that
// allows: on one node if one can hold it, else in the innermost domain that can, of several the fullest, there on as few
// nodes as will do, of several the fullest, with the members spread evenly over them. What is kept in
// mind by the way, strongest first: nodes that failed the last attempt are used only if nothing else fits;
// `muster_nvlink = "preferred"` is kept whenever some permitted place can; nodes that are wholly free are used only where
// fragments will not do.
//
// A gang of one group is placed if and only if it can be. With several groups that is bin packing, so the search
// for what the obvious order misses ends after maxSteps steps: a gang of several groups may be told to wait
// though a place exists, and is never placed where it does not fit. Steps are counted, not timed, so that a replay
// gives the same answer on any machine. For gangs of a few members the search always ends by itself; the tests
// compare with trying everything and find no difference.
//
// The package reads no clock and writes no log. Package policy and, later, its siblings import it.
package fit

import (
	"cmp"
	"slices"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// Cluster is what is free, less what has been taken so far. It is not safe for concurrent use.
type Cluster struct {
	levels  []string // outermost first, as in the snapshot
	nodes   []node   // in topology order: path, fabric, name
	byName  map[string]int
	rungs   []rung // innermost first
	largest int    // GPUs of Usable of the largest node
	span    int    // different nodes that one gang may use
	packing packing
}

// node is a node as it is left by the grants so far.
type node struct {
	*model.Node
	free   gpu.Set
	has    resources
	usable int // GPUs of Usable
}

// resources are what a member needs beside GPUs: CPU (MHz), memory (MiB), disk (MiB).
type resources [3]int64

// rung is one step of the locality ladder with the domains that a gang may stay within there.
type rung struct {
	name    string
	domains []domain
}

// domain is a set of nodes that count as close together.
type domain struct {
	name   string // for people: the label, or the whole path where the label alone is not unique
	nodes  []int  // ascending, so in topology order
	usable int    // GPUs
}

// New copies what a round of decisions may use up. The snapshot itself is never changed. Nodes may come in any order.
func New(s model.Snapshot) *Cluster {
	c := &Cluster{levels: s.Levels, nodes: make([]node, 0, len(s.Nodes)), byName: make(map[string]int, len(s.Nodes)), packing: newPacking()}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		c.nodes = append(c.nodes, node{
			Node: n, free: n.Free & n.Usable, usable: n.Usable.Len(),
			has: resources{n.CPUMHz, n.MemoryMB, n.DiskMB},
		})
		c.largest = max(c.largest, n.Usable.Len())
	}
	if c.span = s.MaxNodes; c.span == 0 {
		c.span = model.DefaultMaxNodes
	}
	slices.SortFunc(c.nodes, func(a, b node) int {
		return cmp.Or(slices.Compare(a.Path, b.Path), cmp.Compare(a.Fabric, b.Fabric), cmp.Compare(a.Name, b.Name))
	})
	for i := range c.nodes {
		c.byName[c.nodes[i].Name] = i
	}
	c.rungs = c.buildRungs()
	return c
}

// Clone returns a copy to try things out on: what is taken from one is not taken from the other.
func (c *Cluster) Clone() *Cluster {
	clone := *c
	clone.nodes = slices.Clone(c.nodes)
	return &clone
}

// Take removes a grant of the gang from what is free.
func (c *Cluster) Take(g model.Gang, grant model.Grant) { c.move(g, grant.Members, -1) }

// Give adds what the members of a gang hold to what is free: as if it had ended.
func (c *Cluster) Give(g model.Gang, members []model.Member) { c.move(g, members, 1) }

// move takes what members hold (sign -1) or gives it back (sign 1). Nodes that the cluster does not know any more have
// nothing to give.
func (c *Cluster) move(g model.Gang, members []model.Member, sign int64) {
	needs := make(map[string]resources, len(g.Groups))
	for _, group := range g.Groups {
		needs[group.Name] = resourcesOf(group)
	}
	for _, m := range members {
		i, known := c.byName[m.Node]
		if !known {
			continue
		}
		n := &c.nodes[i]
		if sign < 0 {
			n.free &^= m.GPUs
		} else {
			n.free |= m.GPUs & n.Usable
		}
		for r, need := range needs[m.Group] {
			n.has[r] += sign * need
		}
	}
}

// Withhold removes GPUs from what is free, whoever asks, and returns those of them that were free: see Restore.
func (c *Cluster) Withhold(marks []model.Earmark) (withheld []model.Earmark) {
	for _, mark := range marks {
		i, known := c.byName[mark.Node]
		if !known || c.nodes[i].free&mark.GPUs == 0 {
			continue
		}
		withheld = append(withheld, model.Earmark{Node: mark.Node, GPUs: c.nodes[i].free & mark.GPUs})
		c.nodes[i].free &^= mark.GPUs
	}
	return withheld
}

// Restore makes GPUs free again that Withhold returned.
func (c *Cluster) Restore(withheld []model.Earmark) {
	for _, mark := range withheld {
		c.nodes[c.byName[mark.Node]].free |= mark.GPUs
	}
}

func resourcesOf(g model.Group) resources { return resources{g.CPUMHz, g.MemoryMB, g.DiskMB} }

// whole says whether no GPU of the node is in use.
func (n *node) whole() bool { return n.free == n.Usable }

// label is the node's label at a level; empty if it has none.
func (n *node) label(level int) string {
	if level >= len(n.Path) {
		return ""
	}
	return n.Path[level]
}
