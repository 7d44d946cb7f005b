// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"slices"

	"github.com/nomad-muster/muster/placer/model"
)

// narrow returns the fewest domains inside a domain of rung r that have room for the largest group, level by
// level from the outermost to multi-node NVLink; of several choices where the gang needs the fewest nodes, then the
// fullest. If nothing could be narrowed that is the domain itself.
func (a *attempt) narrow(d *domain, r int) (chosen []*domain, narrowed bool) {
	chosen = []*domain{d}
	for level := len(a.c.levels) - r + 1; level <= len(a.c.levels); level++ {
		inside, domains := a.c.inside(chosen, level)
		if len(inside) < 2 || !domains {
			continue // the obvious order makes the same choice among single nodes
		}
		if inner := a.fewest(inside); len(inner) < len(inside) {
			chosen, narrowed = inner, true
		}
	}
	return chosen, narrowed
}

// inside lists what domains are made of at a level, and says whether any of it is more than a single node.
func (c *Cluster) inside(outer []*domain, level int) (inner []*domain, domains bool) {
	for _, d := range outer {
		for at := d.lo; at < d.hi; at = inner[len(inner)-1].hi {
			part := &c.parts[level][c.partOf[level][at]]
			inner = append(inner, part)
			domains = domains || part.hi-part.lo > 1
		}
	}
	return inner, domains
}

// fewest returns the fewest of the domains that have room for the largest group, in topology order.
func (a *attempt) fewest(inside []*domain) []*domain {
	need := a.asks[0].Count
	rooms := make([]int, len(inside))
	for at, d := range inside {
		rooms[at] = min(need, a.roomsOf(0, d).members())
	}
	share := need / max(1, newHistogram(rooms).fewest(need))
	type scored struct {
		*domain
		preference
		room int
	}
	choice := make([]scored, len(inside))
	for at, d := range inside {
		choice[at] = scored{domain: d, preference: a.prefer(d), room: rooms[at]}
		choice[at].servers = a.roomsOf(0, d).fewest(share)
	}
	slices.SortStableFunc(choice, func(x, y scored) int { return x.compare(y.preference) })
	for at := range choice {
		rooms[at] = choice[at].room
	}
	var chosen []*domain
	for _, at := range pick(rooms, need, len(rooms), nil) {
		chosen = append(chosen, choice[at].domain)
	}
	slices.SortFunc(chosen, func(x, y *domain) int { return x.lo - y.lo })
	return chosen
}

// places says where nodes are, at the levels where they are not all in one domain or one by one.
func (c *Cluster) places(nodes []int) even {
	if len(nodes) < 2 {
		return nil
	}
	var where even
	for level, partOf := range c.partOf {
		first, last := slices.Min(nodes), slices.Max(nodes)
		if partOf[first] == partOf[last] {
			continue
		}
		places := make([]int, len(nodes))
		shared := false
		for at, i := range nodes {
			places[at] = partOf[i]
			d := &c.parts[level][partOf[i]]
			shared = shared || d.hi-d.lo > 1
		}
		if shared {
			where = append(where, places)
		}
	}
	return where
}

// levelOf returns the innermost rung that holds all the nodes, which are ascending, in one domain.
func (c *Cluster) levelOf(nodes []int) string {
	first, last := nodes[0], nodes[len(nodes)-1]
	if first == last {
		return model.LocalityNode
	}
	for level := len(c.levels) - 1; level >= 0; level-- {
		if c.partOf[level][first] == c.partOf[level][last] {
			return c.levels[level]
		}
	}
	return model.LocalityAny
}
