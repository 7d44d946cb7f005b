// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"math"
	"slices"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// rules says what an attempt must respect. The zero value is what a grant needs at least; the wait reasons ask what would be
// possible without one thing or another.
type rules struct {
	nvlink       bool // every member's GPUs joined by NVLink
	spareAvoided bool // the nodes in Gang.Avoid are out
	anyNode      bool // as if every node were open and accepted every group
	anyResources bool // as if CPU, memory and disk were plenty
	empty        bool // as if no GPU were in use; only with anyNode and anyResources
}

// ask is what each member of a group needs.
type ask struct {
	model.Group
	index int // in Gang.Groups
	needs resources
	out   *nodeSet  // nodes that are not to be used whatever is free there; nil: none
	rooms histogram // of the last question
	view  *view     // nil: not asked for yet
}

// attempt is the search for a place for one gang under some rules.
type attempt struct {
	c       *Cluster
	asks    []ask    // most GPUs first
	avoid   *nodeSet // nil: none
	rules   rules
	steps   int  // left for the search
	cutOff  bool // the search ran out of steps, so that a no means nothing
	members int
	gpus    int
}

// plan is where members go: per node, how many of each ask (by position in attempt.asks).
type plan map[int][]int

func (c *Cluster) newAttempt(g *model.Gang, r rules) *attempt {
	a := &attempt{c: c, rules: r, steps: maxSteps, members: g.Size(), gpus: g.GPUs(), asks: make([]ask, 0, len(g.Groups))}
	if len(g.Avoid) > 0 {
		a.avoid = c.setOf(g.Avoid)
	}
	for i, group := range g.Groups {
		if group.Count > 0 {
			a.asks = append(a.asks, ask{Group: group, index: i, needs: resourcesOf(group), out: a.out(group)})
		}
	}
	if len(a.asks) > 1 {
		slices.SortStableFunc(a.asks, func(x, y ask) int {
			return cmp.Or(cmp.Compare(y.GPUs, x.GPUs), cmp.Compare(y.MemoryMB, x.MemoryMB), cmp.Compare(y.CPUMHz, x.CPUMHz))
		})
	}
	return a
}

// out returns the nodes that are out for a group.
func (a *attempt) out(group model.Group) *nodeSet {
	var out *nodeSet
	if len(group.Refused) > 0 && !a.rules.anyNode {
		out = a.c.refused(group.Refused)
	}
	if a.rules.spareAvoided && a.avoid != nil {
		out = a.avoid.union(out)
	}
	return out
}

func (a *attempt) avoided(i int) bool { return a.avoid.has(i) }

// alone returns how many members of ask k, at most all of them, node i could hold if the gang had none there yet.
func (a *attempt) alone(k, i int) int {
	want := &a.asks[k]
	if a.free(i).Len() < want.GPUs {
		return 0
	}
	return a.room(k, i, nil)
}

// room returns how many members of ask k, at most all of them, node i can hold beside those that here counts per ask.
func (a *attempt) room(k, i int, here []int) int { return a.hold(k, i, here, a.asks[k].Count) }

// hold is room for at most limit members.
func (a *attempt) hold(k, i int, here []int, limit int) int {
	n, want := &a.c.nodes[i], &a.asks[k]
	if !a.accepts(k, i) {
		return 0
	}
	free := a.free(i)
	room := min(limit, share(int64(free.Len()-a.gpusOf(here)), int64(want.GPUs)))
	if !a.rules.anyResources {
		for r, need := range want.needs {
			if need > 0 {
				room = min(room, share(n.has[r]-a.used(r, here), need))
			}
		}
	}
	if room > 0 && a.rules.nvlink && want.GPUs > 0 && (want.GPUs > 1 || here != nil) && n.nvlink != nvlinkAll {
		room = a.c.packing.room(n.Topology, free, a.sizes(here), want.GPUs, room)
	}
	return room
}

// free returns the GPUs of node i that may be used.
func (a *attempt) free(i int) gpu.Set {
	if a.rules.empty {
		return a.c.nodes[i].Usable
	}
	return a.c.nodes[i].free
}

// accepts says whether node i may be used for ask k at all.
func (a *attempt) accepts(k, i int) bool {
	return (a.rules.anyNode || a.c.nodes[i].Closed == "") && !a.asks[k].out.has(i)
}

// share returns how often need goes into have; without a need there is no limit.
func share(have, need int64) int {
	if need <= 0 {
		return math.MaxInt
	}
	return int(max(0, have) / need)
}

func (a *attempt) gpusOf(here []int) int {
	sum := 0
	for k, n := range here {
		sum += n * a.asks[k].GPUs
	}
	return sum
}

func (a *attempt) used(r int, here []int) int64 {
	sum := int64(0)
	for k, n := range here {
		sum += int64(n) * a.asks[k].needs[r]
	}
	return sum
}

// sizes lists the GPUs of each member, largest first, as the asks are sorted.
func (a *attempt) sizes(here []int) []int {
	var sizes []int
	for k, n := range here {
		for range n {
			sizes = append(sizes, a.asks[k].GPUs)
		}
	}
	return sizes
}

// add puts n members of ask k on node i.
func (p plan) add(i, k, n, asks int) {
	if p[i] == nil {
		p[i] = make([]int, asks)
	}
	p[i][k] += n
}

// at returns how many members of ask k are on node i.
func (p plan) at(i, k int) int {
	if p[i] == nil {
		return 0
	}
	return p[i][k]
}
