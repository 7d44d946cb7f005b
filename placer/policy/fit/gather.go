// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import "slices"

// gathering collects the nodes of some domains that a gang may use.
type gathering struct {
	*attempt
	ranked []int // rank and index in one number
	limit  int   // of nodes that are alike
	odd    bool  // some nodes are out for a group or to be avoided
}

// fullestFirst returns the nodes with room for any group in the order in which to use them. Of nodes that are alike in every
// way it returns no more than the gang has members, unless all are asked for.
func (a *attempt) fullestFirst(domains []*domain, all bool) []int {
	g := gathering{attempt: a, limit: a.members, odd: a.avoid != nil}
	if all {
		g.limit = len(a.c.nodes)
	}
	for k := range a.asks {
		g.odd = g.odd || a.asks[k].out != nil
	}
	least := a.asks[len(a.asks)-1].GPUs // the asks are sorted
	for at := range a.c.grades {
		if a.c.grades[at].free >= least {
			g.grade(at, domains)
		}
	}
	slices.Sort(g.ranked)
	for at, r := range g.ranked {
		g.ranked[at] = r & (1<<32 - 1)
	}
	return g.ranked
}

// grade adds nodes of one grade.
func (g *gathering) grade(at int, domains []*domain) {
	alike := 0
	for _, d := range domains {
		if d.slot < 0 {
			for i := d.lo; i < d.hi; i++ {
				g.node(at, i)
			}
			continue
		}
		t := &g.summary(d).grades[at]
		if g.usableOf(t) == 0 || alike >= g.limit && !g.odd && g.plenty(at, t) {
			continue
		}
		for b := d.blockLo; b < d.blockHi; b++ {
			alike += g.block(at, b, g.limit-alike)
		}
	}
}

// block adds nodes of a block, at most limit of those that are like the rest of their grade, and returns how many of
// those it added.
func (g *gathering) block(at, b, limit int) int {
	t := &g.summaryOfBlock(b).grades[at]
	if g.usableOf(t) == 0 || g.useless(at, t) {
		return 0
	}
	plenty := g.plenty(at, t)
	if plenty && limit <= 0 && !g.odd {
		return 0
	}
	alike := 0
	for i := g.c.blocks[b].lo; i < g.c.blocks[b].hi; i++ {
		plain := plenty && g.gradeAt(i) == at && g.plain(i)
		if plain && alike >= limit {
			continue
		}
		if g.node(at, i) && plain {
			alike++
		}
	}
	return alike
}

func (g *gathering) node(at, i int) bool {
	if g.gradeAt(i) != at {
		return false
	}
	for k := range g.asks {
		if g.alone(k, i) > 0 {
			g.ranked = append(g.ranked, g.rank(i)<<32|i)
			return true
		}
	}
	return false
}

// useless says whether no node of a tally has room for any group.
func (g *gathering) useless(at int, t *tally) bool {
	for k := range g.asks {
		if room, exact := g.roomOf(k, at, t); room > 0 || !exact {
			return false
		}
	}
	return true
}

// plenty says whether the GPUs alone limit what the nodes of a tally can hold, whatever the mixture.
func (g *gathering) plenty(at int, t *tally) bool {
	var needs resources
	for k := range g.asks {
		room, exact := g.roomOf(k, at, t)
		if !exact {
			return false
		}
		for r, need := range g.asks[k].needs {
			needs[r] += need * int64(room)
		}
	}
	for r, need := range needs {
		if need > 0 && !g.rules.anyResources && t.least[r] < need {
			return false
		}
	}
	return true
}

// plain says whether a node is neither out for any group nor to be avoided.
func (g *gathering) plain(i int) bool {
	if !g.odd {
		return true
	}
	for k := range g.asks {
		if g.asks[k].out.has(i) {
			return false
		}
	}
	return !g.avoided(i)
}
