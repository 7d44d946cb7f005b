// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import "cmp"

// preference orders nodes, or domains, by what should be used first.
type preference struct {
	avoided bool // holds a node where the last attempt failed
	servers int  // of a domain: nodes that the gang needs there; fewer first
	whole   bool // no GPU in use, worth keeping
	free    int  // GPUs; fewer first
}

func (a preference) compare(b preference) int {
	return cmp.Or(falseFirst(a.avoided, b.avoided), cmp.Compare(a.servers, b.servers), falseFirst(a.whole, b.whole),
		cmp.Compare(a.free, b.free))
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// prefer values a domain as a whole. What is closed or too small for the gang counts as well: it is the domain that is to
// be kept free.
func (a *attempt) prefer(d *domain) preference {
	p := preference{avoided: len(a.avoid.within(d.lo, d.hi)) > 0, whole: true}
	if d.slot >= 0 {
		s := a.c.summary(d)
		p.whole, p.free = s.whole, s.free
		return p
	}
	for i := d.lo; i < d.hi; i++ {
		p.whole = p.whole && a.c.nodes[i].whole()
		p.free += a.c.nodes[i].free.Len()
	}
	return p
}

// rank values a single node: of two, the one to use first has the lower rank. Among equals topology order decides.
func (a *attempt) rank(i int) int {
	n := &a.c.nodes[i]
	rank := n.free.Len()
	if n.whole() {
		rank += 1 << 8
	}
	if a.avoided(i) {
		rank += 1 << 9
	}
	return rank
}
