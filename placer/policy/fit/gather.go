// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import "slices"

// gathering collects the nodes of some domains that a gang may use.
type gathering struct {
	*attempt
	limit  int   // of nodes that are alike
	ranked []int // rank and index in one number
	grades []gathered
}

// gathered is what is known of the nodes of one grade.
type gathered struct {
	useless bool // in the domain, to all groups
	plenty  bool // in the domain: see attempt.plenty
	block   int  // the last that was asked about
	inBlock bool // there is plenty in it
	alike   int  // nodes so far where there is plenty
}

// fullestFirst returns the nodes with room for any group in the order in which to use them. Of nodes that are alike in every
// way it returns no more than the gang has members, unless all are asked for.
func (a *attempt) fullestFirst(domains []*domain, all bool) []int {
	g := gathering{attempt: a, limit: a.members, grades: make([]gathered, len(a.c.grades))}
	if all {
		g.limit = len(a.c.nodes)
	}
	for _, d := range domains {
		g.domain(d)
	}
	slices.Sort(g.ranked)
	for at, r := range g.ranked {
		g.ranked[at] = r & (1<<32 - 1)
	}
	return g.ranked
}

func (g *gathering) domain(d *domain) {
	if d.slot < 0 {
		for i := d.lo; i < d.hi; i++ {
			g.node(i)
		}
		return
	}
	s := g.summary(d)
	for at := range s.grades {
		known, t := &g.grades[at], &s.grades[at]
		known.useless, known.plenty, known.block = g.useless(at, t), g.plenty(at, t), -1
	}
	for b := d.blockLo; b < d.blockHi && !g.done(s); b++ {
		for i := g.c.blocks[b].lo; i < g.c.blocks[b].hi; i++ {
			if at := g.gradeAt(i); !g.grades[at].useless {
				g.inBlock(at, b, i)
			}
		}
	}
}

// done says whether no further node of a domain can be one to collect.
func (g *gathering) done(s *summary) bool {
	for k := range g.asks {
		if g.avoid != nil || g.asks[k].out != g.asks[0].out {
			return false // those that are out for some groups only, or to be avoided, are not counted
		}
	}
	for at := range s.grades {
		known, t := &g.grades[at], &s.grades[at]
		if g.usableOf(t) > 0 && !known.useless && (!known.plenty || known.alike < g.limit) {
			return false
		}
	}
	return true
}

// inBlock adds a node of block b unless as many as the gang could use are there that are like it.
func (g *gathering) inBlock(at, b, i int) {
	known := &g.grades[at]
	if known.block != b && !known.plenty {
		known.block, known.inBlock = b, g.plenty(at, &g.summaryOfBlock(b).grades[at])
	}
	plain := (known.plenty || known.inBlock) && g.plain(i)
	if plain && known.alike >= g.limit {
		return
	}
	if g.node(i) && plain {
		known.alike++
	}
}

func (g *gathering) node(i int) bool {
	for k := range g.asks {
		if g.alone(k, i) > 0 {
			g.ranked = append(g.ranked, g.rank(i)<<32|i)
			return true
		}
	}
	return false
}

// useless says whether no node of a tally has room for any group.
func (a *attempt) useless(at int, t *tally) bool {
	for k := range a.asks {
		if a.c.grades[at].free < a.asks[k].GPUs {
			continue
		}
		if room, exact := a.roomOf(k, at, t, a.asks[k].Count); room > 0 || !exact {
			return false
		}
	}
	return true
}

// plenty says whether the GPUs alone limit what the nodes of a tally can hold, whatever the mixture.
func (a *attempt) plenty(at int, t *tally) bool {
	var needs resources
	for k := range a.asks {
		room, exact := a.roomOf(k, at, t, a.asks[k].Count)
		if !exact {
			return false
		}
		for r, need := range a.asks[k].needs {
			needs[r] += need * int64(room)
		}
	}
	for r, need := range needs {
		if need > 0 && !a.rules.anyResources && t.least[r] < need {
			return false
		}
	}
	return true
}

// plain says whether a node is neither out for any group nor to be avoided.
func (a *attempt) plain(i int) bool {
	for k := range a.asks {
		if a.asks[k].out.has(i) {
			return false
		}
	}
	return !a.avoided(i)
}
