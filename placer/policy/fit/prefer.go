// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"slices"
)

// nodeKey orders nodes, or domains, by what should be used first.
type nodeKey struct {
	avoided bool // holds a node where the last attempt failed
	whole   bool // no GPU in use, worth keeping
	free    int  // GPUs; fewer first
}

func (a nodeKey) compare(b nodeKey) int {
	return cmp.Or(falseFirst(a.avoided, b.avoided), falseFirst(a.whole, b.whole), cmp.Compare(a.free, b.free))
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

// keyOf values nodes that are used together. What is closed or too small for the gang counts as well: it is the domain
// that is to be kept free.
func (a *attempt) keyOf(nodes []int) nodeKey {
	key := nodeKey{whole: true}
	for _, i := range nodes {
		n := &a.c.nodes[i]
		key.avoided = key.avoided || a.avoided(i)
		key.whole = key.whole && n.whole()
		key.free += n.free.Len()
	}
	return key
}

// fullestFirst returns the nodes with room for any group in the order in which to use them; among equals topology
// order stays.
func (a *attempt) fullestFirst(nodes []int) []int {
	type scored struct {
		i   int
		key nodeKey
	}
	var usable []scored
	for _, i := range nodes {
		for k := range a.asks {
			if a.alone[k][i] > 0 {
				usable = append(usable, scored{i: i, key: a.keyOf([]int{i})})
				break
			}
		}
	}
	slices.SortStableFunc(usable, func(x, y scored) int { return x.key.compare(y.key) })
	ordered := make([]int, len(usable))
	for at := range usable {
		ordered[at] = usable[at].i
	}
	return ordered
}

// fewest returns how many of the rooms, largest first, add up to need, which all of them do.
func fewest(rooms []int, need int) int {
	return newHistogram(rooms).fewest(need)
}

// pick returns the positions of the fewest rooms, at most limit, that add up to need: at each place the first in order
// that still lets the rest succeed. If they never do, it is the limit largest.
func pick(rooms []int, need, limit int) []int {
	if need <= 0 || limit <= 0 {
		return nil
	}
	h := newHistogram(rooms)
	count := min(h.fewest(need), limit, len(rooms))
	taken := make([]bool, len(rooms))
	var picked []int
	for left := count; left > 0; left-- {
		least := h.least(need, left)
		for at, room := range rooms {
			if !taken[at] && room >= least {
				taken[at] = true
				h[room]--
				need -= room
				picked = append(picked, at)
				break
			}
		}
	}
	return picked
}

// histogram counts rooms by size.
type histogram []int

func newHistogram(rooms []int) histogram {
	most := 0
	for _, room := range rooms {
		most = max(most, room)
	}
	h := make(histogram, most+1)
	for _, room := range rooms {
		h[room]++
	}
	return h
}

// fewest returns how many of the largest add up to need; one more than all there are if they don't.
func (h histogram) fewest(need int) int {
	count := 0
	for size := len(h) - 1; size > 0 && need > 0; size-- {
		n := min(h[size], (need+size-1)/size)
		count += n
		need -= n * size
	}
	if need > 0 {
		count++
	}
	return count
}

// largest returns the sum of the n largest.
func (h histogram) largest(n int) int {
	sum := 0
	for size := len(h) - 1; size > 0 && n > 0; size-- {
		sum += min(h[size], n) * size
		n -= min(h[size], n)
	}
	return sum
}

// least returns the smallest size that can be one of n that add up to need; the largest there is if none can.
func (h histogram) least(need, n int) int {
	largest := 0
	for size := 1; size < len(h); size++ {
		if h[size] == 0 {
			continue
		}
		h[size]--
		enough := size+h.largest(n-1) >= need
		h[size]++
		if enough {
			return size
		}
		largest = size
	}
	return largest
}

func sum(numbers []int) int {
	total := 0
	for _, n := range numbers {
		total += n
	}
	return total
}
