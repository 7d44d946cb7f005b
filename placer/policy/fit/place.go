// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// Fit returns where the gang goes, or false if it does not fit now. It takes nothing; see Take.
func (c *Cluster) Fit(g model.Gang, now time.Time) (model.Grant, bool) {
	widest, _ := c.permitted(&g, now)
	if widest < 0 || g.Size() == 0 {
		return model.Grant{}, false
	}
	// The first rules are the loosest: most gangs that wait fail them, and need no second look.
	loose := c.newAttempt(&g, rules{nvlink: g.NVLinkRequired})
	p, found := loose.within(widest)
	if !found {
		return model.Grant{}, false
	}
	for _, r := range stricter(&g) {
		strict := c.newAttempt(&g, r)
		if better, found := strict.within(widest); found {
			return strict.grant(&g, better), true
		}
	}
	return loose.grant(&g, p), true
}

// stricter lists the rules that are better than what the gang must have, best first.
func stricter(g *model.Gang) []rules {
	var better []rules
	if len(g.Avoid) > 0 {
		if !g.NVLinkRequired {
			better = append(better, rules{spareAvoided: true, nvlink: true})
		}
		better = append(better, rules{spareAvoided: true, nvlink: g.NVLinkRequired})
	}
	if !g.NVLinkRequired {
		better = append(better, rules{nvlink: true})
	}
	return better
}

// within looks for a place on the rungs up to the widest, innermost first.
func (a *attempt) within(widest int) (plan, bool) {
	if a.members == 0 || !a.couldFit(a.c.rungs[len(a.c.rungs)-1].domains[0].nodes) {
		return nil, false
	}
	for r := range widest + 1 {
		for _, d := range a.candidates(&a.c.rungs[r]) {
			if p, found := a.inDomain(d.nodes, r); found {
				return p, true
			}
		}
	}
	return nil, false
}

// candidates returns the domains of a rung that could hold the gang: those without nodes to avoid first, then the
// fullest, then the smallest.
func (a *attempt) candidates(r *rung) []domain {
	type scored struct {
		domain
		key nodeKey
	}
	var fits []scored
	for _, d := range r.domains {
		if a.couldFit(d.nodes) {
			fits = append(fits, scored{domain: d, key: a.keyOf(d.nodes)})
		}
	}
	slices.SortStableFunc(fits, func(x, y scored) int {
		return cmp.Or(x.key.compare(y.key), cmp.Compare(x.usable, y.usable))
	})
	domains := make([]domain, len(fits))
	for i := range fits {
		domains[i] = fits[i].domain
	}
	return domains
}

// couldFit says whether each group on its own has room on the nodes. For a gang of one group it is the whole truth.
func (a *attempt) couldFit(nodes []int) bool {
	for k := range a.asks {
		room := 0
		for _, i := range nodes {
			room += a.alone[k][i]
		}
		if room < a.asks[k].Count {
			return false
		}
		if len(nodes) > a.c.span && fewest(a.roomsOf(k, nodes), a.asks[k].Count) > a.c.span {
			return false
		}
	}
	return true
}

func (a *attempt) roomsOf(k int, nodes []int) []int {
	rooms := make([]int, len(nodes))
	for at, i := range nodes {
		rooms[at] = a.alone[k][i]
	}
	return rooms
}

// inDomain places the gang on the nodes of one domain. Three ways, in this order: by the obvious order on the fewest
// domains of the rungs inside, by the obvious order on all nodes, by search.
func (a *attempt) inDomain(nodes []int, r int) (plan, bool) {
	if inner := a.narrow(nodes, r); len(inner) < len(nodes) {
		if p, _ := a.greedy(inner); p != nil {
			return p, true
		}
	}
	if p, _ := a.greedy(nodes); p != nil {
		return p, true
	}
	if len(a.asks) == 1 || len(nodes) == 1 {
		return nil, false // there the obvious order is the only one
	}
	return a.search(nodes)
}

// narrow returns the nodes of the fewest domains inside that have room for the largest group, level by level from
// the outermost to multi-node NVLink, of several choices the fullest. What can't be narrowed stays as it is.
func (a *attempt) narrow(nodes []int, r int) []int {
	for level := len(a.c.levels) - r + 1; level <= len(a.c.levels) && r > 0; level++ {
		groups := a.c.group(nodes, level)
		if len(groups) < 2 {
			continue
		}
		slices.SortStableFunc(groups, func(x, y []int) int { return a.keyOf(x).compare(a.keyOf(y)) })
		rooms := make([]int, len(groups))
		for at, group := range groups {
			for _, i := range group {
				rooms[at] += a.alone[0][i]
			}
		}
		var inner []int
		for _, at := range pick(rooms, a.asks[0].Count, len(groups)) {
			inner = append(inner, groups[at]...)
		}
		slices.Sort(inner)
		nodes = inner
	}
	return nodes
}

// group splits nodes by their path down to a level; the level after the innermost stands for the NVLink fabric. A
// node without a label there is a group of its own. Nodes are in topology order, so groups are runs.
func (c *Cluster) group(nodes []int, level int) [][]int {
	together := func(x, y *node) bool {
		if level < len(c.levels) {
			return x.label(level) != "" && len(y.Path) > level && slices.Equal(x.Path[:level+1], y.Path[:level+1])
		}
		return x.Fabric != "" && x.Fabric == y.Fabric && slices.Equal(x.Path, y.Path)
	}
	var groups [][]int
	for at, i := range nodes {
		if at > 0 && together(&c.nodes[nodes[at-1]], &c.nodes[i]) {
			groups[len(groups)-1] = append(groups[len(groups)-1], i)
			continue
		}
		groups = append(groups, []int{i})
	}
	return groups
}

// greedy places group after group, largest members first, each in the obvious order. If one does not fit the plan is
// nil, and placed is how many members fitted before.
func (a *attempt) greedy(nodes []int) (p plan, placed int) {
	ordered := a.fullestFirst(nodes)
	p = plan{}
	for k := range a.asks {
		n := a.spread(p, k, ordered)
		placed += n
		if n < a.asks[k].Count {
			return nil, placed
		}
	}
	return p, placed
}

// spread places the members of ask k: on nodes that the gang uses already and, where those don't suffice, on the fewest
// others, evenly. It returns how many it could place.
func (a *attempt) spread(p plan, k int, ordered []int) int {
	rooms := make(map[int]int)
	var used, others, otherRooms []int
	need := a.asks[k].Count
	for _, i := range ordered {
		switch here, ours := p[i]; {
		case ours:
			if room := a.room(k, i, here); room > 0 {
				used = append(used, i)
				rooms[i] = room
				need -= room
			}
		case a.alone[k][i] > 0:
			others = append(others, i)
			otherRooms = append(otherRooms, a.alone[k][i])
		}
	}
	for _, at := range pick(otherRooms, need, a.c.span-len(p)) {
		used = append(used, others[at])
		rooms[others[at]] = otherRooms[at]
	}
	return a.deal(p, k, used, rooms)
}

// deal gives each node one member in turn until all are placed or no room is left.
func (a *attempt) deal(p plan, k int, nodes []int, rooms map[int]int) int {
	left := a.asks[k].Count
	for dealt := true; dealt && left > 0; {
		dealt = false
		for _, i := range nodes {
			if left > 0 && rooms[i] > 0 {
				p.add(i, k, 1, len(a.asks))
				rooms[i]--
				left--
				dealt = true
			}
		}
	}
	return a.asks[k].Count - left
}

// grant chooses each member's GPUs and gives out the ranks.
func (a *attempt) grant(g *model.Gang, p plan) model.Grant {
	c := a.c
	byGroup := make([][]model.Member, len(g.Groups))
	used := slices.Sorted(maps.Keys(p))
	for _, i := range used {
		sets := c.packing.sets(c.nodes[i].Topology, c.nodes[i].free, a.sizes(p[i]), a.rules.nvlink)
		for k, n := range p[i] {
			mine := sets[:n]
			sets = sets[n:]
			slices.Sort(mine)
			for _, set := range mine {
				index := a.asks[k].index
				byGroup[index] = append(byGroup[index], model.Member{Group: g.Groups[index].Name, Node: c.nodes[i].Name, GPUs: set})
			}
		}
	}
	grant := model.Grant{Gang: g.Name, Level: c.levelOf(used), Members: slices.Concat(byGroup...)}
	for rank := range grant.Members {
		grant.Members[rank].Rank = rank
	}
	return grant
}

// levelOf returns the innermost rung that holds all the nodes in one domain.
func (c *Cluster) levelOf(nodes []int) string {
	for r := range c.rungs[:len(c.rungs)-1] {
		level := len(c.levels) - r // len(levels) is the node itself
		if len(nodes) == 1 || level < len(c.levels) && len(c.group(nodes, level)) == 1 {
			return c.rungs[r].name
		}
	}
	return model.LocalityAny
}
