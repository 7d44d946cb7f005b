// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"cmp"
	"fmt"
)

// maxExact is how many free GPUs are searched exactly.
const maxExact = 16

// Choice is a set of GPUs with what it is worth.
type Choice struct {
	GPUs      Set
	Weakest   Link // the weakest connection within the set, the bottleneck of a ring; zero for a single GPU
	TotalMBps int  // NVLink bandwidth of all pairs within the set, MB/s in one direction
	OneIsland bool // all GPUs are joined to one another by NVLink
}

// String describes the choice for an operator.
func (c Choice) String() string {
	switch {
	case c.GPUs.Len() < 2:
		return fmt.Sprintf("GPU %s", c.GPUs)
	case c.OneIsland:
		return fmt.Sprintf("GPUs %s, one island, weakest link %s (%.1f GB/s)", c.GPUs, c.Weakest, float64(c.Weakest.NVLinkMBps)/1000)
	}
	return fmt.Sprintf("GPUs %s, weakest link %s", c.GPUs, c.Weakest)
}

// Choose returns the best k GPUs of free, or false if free has fewer or k is not positive. Of two sets the better is, by the
// first of these in which they differ:
//
//  1. the one whose weakest link is stronger (Link.Strength);
//  2. the one with more NVLink bandwidth over all pairs, then with the shorter PCIe paths over all pairs without NVLink;
//  3. the one that leaves the largest islands to others: the free part of each island, largest first;
//  4. the one with more pairs within one NUMA node;
//  5. the one whose other free GPUs are better joined among themselves, as in 2 and then 4;
//  6. the one with the lowest indexes.
//
// So a single GPU comes from leftovers: 3 spares islands, 5 spares pairs of a PCIe switch and whole sockets. The
// answer is exact up to 16 free GPUs; above that the best of the sets that grow greedily by the same rule, one from
// each free GPU. If the choice for `muster_nvlink = "required"` is not OneIsland, then no set of that size is.
func (t *Topology) Choose(k int, free Set) (Choice, bool) {
	free &= FirstN(t.count)
	if k <= 0 || k > free.Len() {
		return Choice{}, false
	}
	s := search{t: t, free: free}
	for i := range free.All() {
		for j := range free.All() {
			s.degree[i] += t.at(i, j)
		}
	}
	var best Set
	if free.Len() <= maxExact {
		best = s.exact(k)
	} else {
		best = s.greedy(k)
	}
	return t.describe(best), true
}

// describe says what a set is worth.
func (t *Topology) describe(s Set) Choice {
	c := Choice{GPUs: s, TotalMBps: t.total(s).nvlinkMBps(), OneIsland: t.JoinedByNVLink(s)}
	weakest := -1
	for i := range s.All() {
		for j := range s.All() {
			if l := t.links[i][j]; i < j && (weakest < 0 || l.Strength() < weakest) {
				c.Weakest, weakest = l, l.Strength()
			}
		}
	}
	return c
}

// score is what rules 1 to 5 of Choose compare.
type score struct {
	weakest uint64
	total   pair
	whole   int64
	degrees pair // the values of all pairs of free GPUs that the set takes part in; fewer leave more
}

// compare returns a positive number if a is the better score. Rule 2 and rule 4 are parts of one total, and where
// that is equal, fewer degrees mean more left among the others.
func (a score) compare(b score) int {
	return cmp.Or(
		cmp.Compare(a.weakest, b.weakest),
		cmp.Compare(a.total.strength(), b.total.strength()),
		cmp.Compare(a.whole, b.whole),
		cmp.Compare(a.total&pairNUMAMask, b.total&pairNUMAMask),
		cmp.Compare(b.degrees, a.degrees),
	)
}

// search is one call of Choose.
type search struct {
	t      *Topology
	free   Set
	degree [MaxGPUs]pair // per free GPU: the values of its pairs with all other free GPUs

	near   [MaxGPUs]Set // per free GPU: the free GPUs whose link with it is at least as strong as the bottleneck
	gain   [maxExact + 1][MaxGPUs]pair
	best   Set
	better score
}

// exact finds the strongest possible bottleneck first, which leaves few sets to compare.
func (s *search) exact(k int) Set {
	if k > 1 {
		s.bottleneck(k)
	}
	s.best, s.better = 0, score{}
	s.walk(0, s.free, k, 0)
	return s.best
}

// bottleneck sets near for the strongest threshold at which k GPUs are all joined. A set that is joined at one threshold
// is joined at every weaker one, hence the halving.
func (s *search) bottleneck(k int) {
	strong, weak := 0, len(s.t.strengths)-1 // the weakest strength joins all GPUs
	for strong < weak {
		middle := (strong + weak) / 2
		s.setNear(s.t.strengths[middle])
		if s.joined(0, s.free, k) {
			weak = middle
		} else {
			strong = middle + 1
		}
	}
	s.setNear(s.t.strengths[weak])
}

func (s *search) setNear(threshold uint64) {
	for i := range s.free.All() {
		s.near[i] = 0
		for j := range s.free.All() {
			if i != j && s.t.at(i, j).strength() >= threshold {
				s.near[i] |= 1 << j
			}
		}
	}
}

// joined says whether need of the GPUs in rest are all near one another.
func (s *search) joined(chosen, rest Set, need int) bool {
	if need == 0 {
		return true
	}
	for ; rest.Len() >= need; rest &= rest - 1 {
		i := rest.first()
		if s.allowed(chosen, i) && s.joined(chosen|1<<i, rest&s.near[i], need-1) {
			return true
		}
	}
	return false
}

// allowed says whether GPU i may follow: twins are taken in index order, which loses no set but those that are
// equal to another one with lower indexes.
func (s *search) allowed(chosen Set, i int) bool {
	twin := s.t.twin[i]
	return twin < 0 || !s.free.Has(twin) || chosen&(1<<twin) != 0
}

// walk visits every set of need more GPUs from rest that are all near one another, lowest indexes first, so that among
// equals the first one stays. gain[need][i] is what GPU i would add to the total.
func (s *search) walk(chosen, rest Set, need int, total pair) {
	gain := &s.gain[need]
	if need == 1 {
		for ; rest != 0; rest &= rest - 1 {
			i := rest.first()
			if sum := total + gain[i]; sum.strength() >= s.better.total.strength() && s.allowed(chosen, i) {
				s.consider(chosen|1<<i, sum)
			}
		}
		return
	}
	next := &s.gain[need-1]
	for ; rest.Len() >= need; rest &= rest - 1 {
		i := rest.first()
		others := rest & s.near[i]
		if others.Len() < need-1 || !s.allowed(chosen, i) {
			continue
		}
		row := s.t.value[i*s.t.count:]
		for o := others; o != 0; o &= o - 1 {
			next[o.first()] = gain[o.first()] + row[o.first()]
		}
		s.walk(chosen|1<<i, others, need-1, total+gain[i])
	}
}

// consider keeps a complete set if it beats the best so far.
func (s *search) consider(set Set, total pair) {
	if sc := s.score(set, 0, total); s.best == 0 || sc.compare(s.better) > 0 {
		s.best, s.better = set, sc
	}
}

func (s *search) score(set Set, weakest uint64, total pair) score {
	sc := score{weakest: weakest, total: total, whole: s.t.leftWhole(s.free &^ set)}
	for ; set != 0; set &= set - 1 {
		sc.degrees += s.degree[set.first()]
	}
	return sc
}
