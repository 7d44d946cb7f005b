// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import "sort"

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

// members returns the sum of all.
func (h histogram) members() int {
	sum := 0
	for size, n := range h {
		sum += size * n
	}
	return sum
}

// least returns the smallest size that can be one of n that add up to need; the largest there is if none can.
func (h histogram) least(need, n int) int {
	least := 1 + sort.Search(len(h)-1, func(below int) bool { return h.enough(below+1, need, n) })
	for size := least; size < len(h); size++ {
		if h[size] > 0 {
			return size
		}
	}
	for size := min(least, len(h)-1); size > 0; size-- {
		if h[size] > 0 {
			return size
		}
	}
	return 0
}

// enough says whether n rooms of which one is of that size can add up to need.
func (h histogram) enough(size, need, n int) bool {
	if h[size] == 0 {
		return size+h.largest(n-1) >= need
	}
	h[size]--
	sum := size + h.largest(n-1)
	h[size]++
	return sum >= need
}

// even says where each of the rooms to pick from is, per level from the outermost: the members that are picked are to be
// the same number in each place.
type even [][]int

// pick returns the positions of the fewest rooms, at most limit, that add up to need. At each place it is, of those
// that still let the rest succeed, one where the fewest members are so far, then the first in order. If they never do, it
// is the limit largest.
func pick(rooms []int, need, limit int, where even) []int {
	if need <= 0 || limit <= 0 || len(rooms) == 0 {
		return nil
	}
	p := newPicker(rooms, where)
	count := min(p.sizes.fewest(need), limit, len(rooms))
	picked := make([]int, 0, count)
	for left := count; left > 0; left-- {
		at := p.next(p.sizes.least(need, left))
		picked = append(picked, at)
		p.take(at, min(rooms[at], max(need, 0)))
		need -= rooms[at]
	}
	return picked
}

// picker keeps the rooms that are left, those of one size in a list each.
type picker struct {
	rooms []int
	sizes histogram
	first []int // by size; -1: none is left
	after []int // by position: the next of the same size
	where even
	loads []map[int]int // per level and place: members that were picked
	taken []bool
}

func newPicker(rooms []int, where even) *picker {
	p := &picker{rooms: rooms, sizes: newHistogram(rooms), where: where}
	if len(where) > 0 {
		p.taken = make([]bool, len(rooms))
		p.loads = make([]map[int]int, len(where))
		for level := range where {
			p.loads[level] = make(map[int]int)
		}
		return p
	}
	p.first = make([]int, len(p.sizes))
	for size := range p.first {
		p.first[size] = -1
	}
	p.after = make([]int, len(rooms))
	for at := len(rooms) - 1; at >= 0; at-- {
		p.after[at] = p.first[rooms[at]]
		p.first[rooms[at]] = at
	}
	return p
}

// next finds the one to pick of those that have at least that size.
func (p *picker) next(least int) int {
	best := -1
	if p.taken == nil {
		for size := least; size < len(p.first); size++ {
			if at := p.first[size]; at >= 0 && (best < 0 || at < best) {
				best = at
			}
		}
		return best
	}
	for at, room := range p.rooms {
		if room >= least && !p.taken[at] && (best < 0 || p.emptier(at, best)) {
			best = at
		}
	}
	return best
}

// emptier says whether fewer members were picked where x is than where y is.
func (p *picker) emptier(x, y int) bool {
	for level, place := range p.where {
		if a, b := p.loads[level][place[x]], p.loads[level][place[y]]; a != b {
			return a < b
		}
	}
	return false
}

func (p *picker) take(at, members int) {
	p.sizes[p.rooms[at]]--
	if p.taken == nil {
		p.first[p.rooms[at]] = p.after[at]
		return
	}
	p.taken[at] = true
	for level, place := range p.where {
		p.loads[level][place[at]] += members
	}
}
