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
	shape := c.shapeOf(&g, widest, false)
	if c.memo.fails(shape) {
		return model.Grant{}, false
	}
	// The first rules are the loosest: most gangs that wait fail them, and need no second look.
	loose := c.newAttempt(&g, rules{nvlink: g.NVLinkRequired})
	p, found := loose.best(&g, widest)
	if !found {
		// The fastest place of several groups is not searched for to the end: with less free, another may be found.
		if !loose.cutOff && (len(loose.asks) == 1 || !g.RelaxAuto) {
			c.memo.failed(shape)
		}
		return model.Grant{}, false
	}
	for _, r := range c.stricter(&g) {
		strict := c.newAttempt(&g, r)
		if better, found := strict.best(&g, widest); found && !strict.declines(&g, better, now) {
			return strict.grant(&g, better), true
		}
	}
	if loose.declines(&g, p, now) {
		return model.Grant{}, false
	}
	return loose.grant(&g, p), true
}

// best looks for the best place on the rungs that the gang may use.
func (a *attempt) best(g *model.Gang, widest int) (plan, bool) {
	if g.RelaxAuto {
		return a.fastest(g)
	}
	return a.within(widest)
}

func (a *attempt) declines(g *model.Gang, p plan, now time.Time) bool {
	return g.RelaxAuto && a.weigh(g, p, now).declines
}

// stricter lists the rules that are better than what the gang must have, best first.
func (c *Cluster) stricter(g *model.Gang) []rules {
	var better []rules
	joins := !g.NVLinkRequired && slices.ContainsFunc(g.Groups, func(g model.Group) bool { return g.GPUs > 1 && g.Count > 0 })
	if len(g.Avoid) > 0 {
		if joins {
			better = append(better, rules{spareAvoided: true, nvlink: true})
		}
		better = append(better, rules{spareAvoided: true, nvlink: g.NVLinkRequired})
	}
	if joins && !c.joined {
		better = append(better, rules{nvlink: true})
	}
	return better
}

// within looks for a place on the rungs up to the widest, innermost first.
func (a *attempt) within(widest int) (plan, bool) {
	if a.members == 0 || !a.possible(a.c.all()) {
		return nil, false
	}
	if p, found := a.onOneNode(); found {
		return p, true
	}
	for r := 1; r <= widest; r++ {
		if p, found := a.onRung(r); found {
			return p, true
		}
	}
	return nil, false
}

// onRung looks for a place in one domain of a rung.
func (a *attempt) onRung(r int) (plan, bool) {
	for _, d := range a.candidates(&a.c.rungs[r]) {
		if p, found := a.inDomain(d, r); found {
			return p, true
		}
	}
	return nil, false
}

func (a *attempt) possible(d *domain) bool {
	_, could := a.couldFit(d)
	return could
}

// onOneNode looks for a node that can hold the whole gang: the nodes to avoid last, otherwise the fullest first.
func (a *attempt) onOneNode() (plan, bool) {
	if a.gpus > a.c.largest {
		return nil, false
	}
	for at := range a.c.grades {
		if p, found := a.onGrade(at, false); found {
			return p, true
		}
	}
	if a.avoid == nil || a.rules.spareAvoided {
		return nil, false
	}
	for at := range a.c.grades {
		if p, found := a.onGrade(at, true); found {
			return p, true
		}
	}
	return nil, false
}

// onGrade looks for a node of one grade, of those to avoid or of the others.
func (a *attempt) onGrade(at int, avoided bool) (plan, bool) {
	if a.c.grades[at].free < a.gpus || !a.holdsAny(at, &a.summary(a.c.all()).grades[at]) {
		return nil, false
	}
	for b := range a.c.blocks {
		if !a.holdsAny(at, &a.summaryOfBlock(b).grades[at]) {
			continue
		}
		for i := a.c.blocks[b].lo; i < a.c.blocks[b].hi; i++ {
			if a.gradeAt(i) != at || a.avoided(i) != avoided || !a.holdsAlone(i) {
				continue
			}
			if p, _ := a.greedy([]int{i}, false); p != nil {
				return p, true
			}
		}
	}
	return nil, false
}

// holdsAny says whether some node of a tally may hold all members of each group on its own.
func (a *attempt) holdsAny(at int, t *tally) bool {
	if a.usableOf(t) == 0 {
		return false
	}
	for k := range a.asks {
		want := &a.asks[k]
		if room, exact := a.roomOf(k, at, t, want.Count); room < want.Count || !exact && !a.rules.anyNode && !a.most(t, want) {
			return false
		}
	}
	return true
}

// most says whether the resources of a tally's nodes could be enough for all members of an ask on one of them.
func (a *attempt) most(t *tally, want *ask) bool {
	for r, need := range want.needs {
		if need > 0 && !a.rules.anyResources && t.most[r] < need*int64(want.Count) {
			return false
		}
	}
	return true
}

func (a *attempt) holdsAlone(i int) bool {
	for k := range a.asks {
		if a.alone(k, i) < a.asks[k].Count {
			return false
		}
	}
	return true
}

// candidates returns the domains of a rung that could hold the gang: those without nodes to avoid first, then those where
// it needs the fewest nodes, then the fullest, then the smallest.
func (a *attempt) candidates(r *rung) []*domain {
	type scored struct {
		*domain
		preference
	}
	var fits []scored
	for at := range r.domains {
		d := &r.domains[at]
		if servers, could := a.couldFit(d); could {
			p := a.prefer(d)
			p.servers = servers
			fits = append(fits, scored{domain: d, preference: p})
		}
	}
	slices.SortStableFunc(fits, func(x, y scored) int {
		return cmp.Or(x.compare(y.preference), cmp.Compare(x.usable, y.usable))
	})
	domains := make([]*domain, len(fits))
	for i := range fits {
		domains[i] = fits[i].domain
	}
	return domains
}

// inDomain places the gang on the nodes of one domain. Three ways, in this order: by the obvious order on the fewest
// domains inside, by the obvious order on all nodes, by search.
func (a *attempt) inDomain(d *domain, r int) (plan, bool) {
	inner, narrowed := a.narrow(d, r)
	if p, _ := a.greedy(a.fullestFirst(inner, true), true); p != nil {
		return p, true
	}
	if !narrowed {
		return a.search(a.fullestFirst(inner, false))
	}
	return a.anyhow(d)
}

// anyhow places the gang in a domain by the obvious order or by search.
func (a *attempt) anyhow(d *domain) (plan, bool) {
	nodes := a.fullestFirst([]*domain{d}, false)
	if p, _ := a.greedy(nodes, false); p != nil {
		return p, true
	}
	return a.search(nodes)
}

// greedy places group after group, largest members first, each in the obvious order. If one does not fit the plan is
// nil, and placed is how many members fitted before. Evenly says that the gang needs all the domains that the nodes are in.
func (a *attempt) greedy(ordered []int, evenly bool) (p plan, placed int) {
	p = plan{}
	for k := range a.asks {
		n := a.spread(p, k, ordered, evenly)
		placed += n
		if n < a.asks[k].Count {
			return nil, placed
		}
	}
	return p, placed
}

// spread places the members of ask k: on nodes that the gang uses already and, where those don't suffice, on the fewest
// others, evenly. It returns how many it could place.
func (a *attempt) spread(p plan, k int, ordered []int, evenly bool) int {
	var used, rooms []int
	need := a.asks[k].Count
	for _, i := range a.inOrder(p) {
		if room := a.room(k, i, p[i]); room > 0 {
			used, rooms = append(used, i), append(rooms, room)
			need -= room
		}
	}
	if need > 0 && len(p) < a.c.span {
		others, otherRooms := a.others(p, k, ordered)
		var where even
		if evenly {
			where = a.c.places(others)
		}
		for _, at := range pick(otherRooms, need, a.c.span-len(p), where) {
			used, rooms = append(used, others[at]), append(rooms, otherRooms[at])
		}
	}
	return a.deal(p, k, used, rooms)
}

// inOrder returns the nodes of a plan in the order in which to use them.
func (a *attempt) inOrder(p plan) []int {
	nodes := slices.Sorted(maps.Keys(p))
	slices.SortStableFunc(nodes, func(x, y int) int { return cmp.Compare(a.rank(x), a.rank(y)) })
	return nodes
}

// others returns the nodes with room for ask k that the plan does not use.
func (a *attempt) others(p plan, k int, ordered []int) (nodes, rooms []int) {
	nodes, rooms = make([]int, 0, len(ordered)), make([]int, 0, len(ordered))
	for _, i := range ordered {
		if len(p) > 0 && p[i] != nil {
			continue
		}
		if room := a.alone(k, i); room > 0 {
			nodes, rooms = append(nodes, i), append(rooms, room)
		}
	}
	return nodes, rooms
}

// deal gives each node one member in turn until all are placed or no room is left.
func (a *attempt) deal(p plan, k int, nodes, rooms []int) int {
	left := a.asks[k].Count
	for dealt := true; dealt && left > 0; {
		dealt = false
		for at, i := range nodes {
			if left > 0 && rooms[at] > 0 {
				p.add(i, k, 1, len(a.asks))
				rooms[at]--
				left--
				dealt = true
			}
		}
	}
	return a.asks[k].Count - left
}

// grant chooses each member's GPUs and gives out the ranks: group after group, and in each in topology order.
func (a *attempt) grant(g *model.Gang, p plan) model.Grant {
	c := a.c
	byGroup := make([][]model.Member, len(g.Groups))
	used := slices.Sorted(maps.Keys(p))
	for _, i := range used {
		sets := c.packing.sets(c.nodes[i].Topology, c.nodes[i].free, a.sizes(p[i]), a.rules.nvlink || c.nodes[i].nvlink == nvlinkAll)
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
