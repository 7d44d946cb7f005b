// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"slices"
)

// nodeSet is some nodes of a cluster. Nil is the empty set.
type nodeSet struct {
	list []int // ascending
	bits []uint64
	id   int // of a set that gangs share; zero: none
}

func (s *nodeSet) has(i int) bool { return s != nil && s.bits[i>>6]&(1<<(i&63)) != 0 }

// within returns those from lo to before hi.
func (s *nodeSet) within(lo, hi int) []int {
	if s == nil {
		return nil
	}
	from, _ := slices.BinarySearch(s.list, lo)
	to, _ := slices.BinarySearchFunc(s.list[from:], hi, cmp.Compare[int])
	return s.list[from : from+to]
}

// union returns a new set; other may be nil.
func (s *nodeSet) union(other *nodeSet) *nodeSet {
	if other == nil {
		return s
	}
	both := &nodeSet{list: slices.Concat(s.list, other.list), bits: slices.Clone(s.bits)}
	slices.Sort(both.list)
	both.list = slices.Compact(both.list)
	for at, word := range other.bits {
		both.bits[at] |= word
	}
	return both
}

// newNodeSet makes a set of nodes in any order, each of them once.
func newNodeSet(list []int, nodes int) *nodeSet {
	s := &nodeSet{list: list, bits: make([]uint64, (nodes+63)/64)}
	slices.Sort(s.list)
	for _, i := range list {
		s.bits[i>>6] |= 1 << (i & 63)
	}
	return s
}

// setOf returns the nodes of those names that the cluster has; nil if it has none of them.
func (c *Cluster) setOf(names []string) *nodeSet {
	var list []int
	for _, name := range names {
		if i, known := c.byName[name]; known && !slices.Contains(list, i) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return newNodeSet(list, len(c.nodes))
}
