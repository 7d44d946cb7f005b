// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package fit says where one gang goes, and if nowhere, why not. It works on a copy of a snapshot, from which each grant
// of a round is taken so that later gangs see it.
//
// A gang is placed whole, within one domain of the level that it may use by now (ladder.go), and as tightly as that
// allows: on one node if one can hold it, else in the innermost domain that can, of several the one where it needs the
// fewest nodes, then the fullest, there on as few nodes as will do, of several the fullest, with the members spread evenly
// over them and over the domains inside. What is kept in mind by the way, strongest first: nodes that failed the last
// attempt are used only if nothing else fits; `muster_nvlink = "preferred"` is kept whenever some permitted place can;
// nodes that are wholly free are used only where fragments will not do.
//
// A gang of one group is placed if and only if it can be. With several groups that is bin packing, so the search
// for what the obvious order misses ends after maxSteps steps: a gang of several groups may be told to wait
// though a place exists, and is never placed where it does not fit. Steps are counted, not timed, so that a replay
// gives the same answer on any machine. For gangs of a few members the search always ends by itself; the tests
// compare with trying everything and find no difference.
//
// A Cluster may be kept from one decision to the next: see Renew. What makes it fast (tallies of each domain, gangs that
// are known not to fit) is brought up to date by whatever changes it, and never shows in an answer.
//
// The package reads no clock and writes no log. Package policy and its siblings import it.
package fit

import (
	"slices"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// Cluster is what is free, less what has been taken so far. It is not safe for concurrent use, and neither are a cluster
// and its clones.
type Cluster struct {
	*layout
	nodes   []node    // in topology order: path, fabric, name
	tallies []summary // by domain.slot
	span    int       // different nodes that one gang may use
	memo    memo

	forecast forecast
}

// node is a node as it is left by the grants so far.
type node struct {
	*model.Node
	free   gpu.Set
	has    resources
	usable int // GPUs of Usable
	grade  int // index in layout.grades
	nvlink nvlink
}

// resources are what a member needs beside GPUs: CPU (MHz), memory (MiB), disk (MiB).
type resources [3]int64

// New copies what a round of decisions may use up. The snapshot itself is never changed. Nodes may come in any order.
func New(s model.Snapshot) *Cluster {
	c := &Cluster{}
	c.build(s)
	return c
}

// Renew makes the cluster what New would return, and is much faster than New where only few nodes have changed since and
// nothing but what is free on them.
func (c *Cluster) Renew(s model.Snapshot) {
	if !c.sameLayout(s) {
		c.build(s)
		return
	}
	if c.span != spanOf(s) {
		c.span, c.memo = spanOf(s), newMemo()
	}
	c.memo.forgetGangs()
	c.forecast = newForecast(s.Running)
	for at := range s.Nodes {
		from := &s.Nodes[at]
		i := c.order[at]
		n := &c.nodes[i]
		free, has := from.Free&from.Usable, resources{from.CPUMHz, from.MemoryMB, from.DiskMB}
		if n.free == free && n.has == has && n.Closed == from.Closed {
			continue
		}
		if n.Closed != from.Closed {
			changed := *n.Node // clones go on with the one they have
			changed.Closed = from.Closed
			n.Node = &changed
		}
		n.free, n.has = free, has
		c.touch(i, true)
	}
}

func (c *Cluster) build(s model.Snapshot) {
	c.layout = newLayout(s)
	c.nodes = make([]node, len(c.layout.nodes))
	for i := range c.nodes {
		n := &c.layout.nodes[i]
		c.nodes[i] = node{
			Node: n, free: n.Free & n.Usable, usable: n.Usable.Len(), has: resources{n.CPUMHz, n.MemoryMB, n.DiskMB},
			nvlink: c.joins[i],
		}
		c.nodes[i].grade = c.gradeOf(&c.nodes[i])
	}
	c.tallies = make([]summary, c.slots)
	c.span = spanOf(s)
	c.memo = newMemo()
	c.forecast = newForecast(s.Running)
}

func spanOf(s model.Snapshot) int {
	if s.MaxNodes == 0 {
		return model.DefaultMaxNodes
	}
	return s.MaxNodes
}

// Clone returns a copy to try things out on: what is taken from one is not taken from the other.
func (c *Cluster) Clone() *Cluster {
	clone := *c
	clone.nodes = slices.Clone(c.nodes)
	clone.tallies = make([]summary, c.slots)
	clone.memo = newMemo()
	clone.forecast = forecast{holdings: c.forecast.holdings}
	return &clone
}

// Take removes a grant of the gang from what is free.
func (c *Cluster) Take(g model.Gang, grant model.Grant) { c.move(g, grant.Members, -1) }

// Give adds what the members of a gang hold to what is free: as if it had ended.
func (c *Cluster) Give(g model.Gang, members []model.Member) { c.move(g, members, 1) }

// move takes what members hold (sign -1) or gives it back (sign 1). Nodes that the cluster does not know any more have
// nothing to give.
func (c *Cluster) move(g model.Gang, members []model.Member, sign int64) {
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
		for r, need := range needsOf(g, m.Group) {
			n.has[r] += sign * need
		}
		c.touch(i, sign > 0)
	}
}

func needsOf(g model.Gang, group string) resources {
	for i := range g.Groups {
		if g.Groups[i].Name == group {
			return resourcesOf(g.Groups[i])
		}
	}
	return resources{}
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
		c.touch(i, false)
	}
	return withheld
}

// Restore makes GPUs free again that Withhold returned.
func (c *Cluster) Restore(withheld []model.Earmark) {
	for _, mark := range withheld {
		if i, known := c.byName[mark.Node]; known {
			c.nodes[i].free |= mark.GPUs & c.nodes[i].Usable
			c.touch(i, true)
		}
	}
}

// touch keeps what is known of the cluster right after node i has changed; more says that it may have room for more now.
func (c *Cluster) touch(i int, more bool) {
	c.nodes[i].grade = c.gradeOf(&c.nodes[i])
	b := &c.blocks[c.blockOf[i]]
	for _, slot := range b.slots {
		c.tallies[slot].valid = false
		c.tallies[slot].changes++
	}
	c.memo.forget(more)
}

func resourcesOf(g model.Group) resources { return resources{g.CPUMHz, g.MemoryMB, g.DiskMB} }

// whole says whether no GPU of the node is in use.
func (n *node) whole() bool { return n.free == n.Usable }

// label is the node's label at a level; empty if it has none.
func label(n *model.Node, level int) string {
	if level >= len(n.Path) {
		return ""
	}
	return n.Path[level]
}
