// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"slices"

	"github.com/nomad-muster/muster/driver/gpu"
)

// maxSteps bounds the search for one gang of several groups, over all domains that are tried, in looks at a node. It is
// a millisecond or two of work, and enough to decide any gang of a few members on a few dozen different nodes.
const maxSteps = 20_000

// search looks for a place that the obvious order missed: group after group, largest members first, every way to
// distribute them, most on the fullest node first. Nodes that are alike are not told apart. attempt.cutOff is set if it had
// to stop.
type search struct {
	*attempt
	nodes []int       // in the order in which to use them, those that are alike together
	class map[int]int // nodes of one class are alike before the gang uses them
	plan  plan
}

// row is where the members of one ask may go, given where those of the asks before are.
type row struct {
	nodes []int
	rooms []int
	rest  []int // rooms from here to the end, added up
}

func (a *attempt) search(ordered []int) (plan, bool) {
	if len(a.asks) == 1 || len(ordered) == 1 {
		return nil, false // there the obvious order is the only one
	}
	s := &search{attempt: a, nodes: ordered, class: make(map[int]int), plan: plan{}}
	s.classify()
	return s.plan, s.ask(0)
}

// classify finds the nodes that are alike and puts them together.
func (s *search) classify() {
	type look struct {
		topology *gpu.Topology
		free     gpu.Set
		gpus     int
		has      resources
		accepts  string
	}
	classes := make(map[look]int)
	for _, i := range s.nodes {
		n := &s.c.nodes[i]
		l := look{gpus: s.free(i).Len(), has: s.matters(i)}
		if s.rules.nvlink {
			l.topology, l.free = n.Topology, s.free(i)
		}
		for k := range s.asks {
			l.accepts += string(rune('0' + min(1, s.alone(k, i))))
		}
		if _, known := classes[l]; !known {
			classes[l] = len(classes)
		}
		s.class[i] = classes[l]
	}
	slices.SortStableFunc(s.nodes, func(x, y int) int {
		return cmp.Or(cmp.Compare(s.rank(x), s.rank(y)), cmp.Compare(s.class[x], s.class[y]))
	})
}

// matters returns the resources of node i, no more than the gang could ever use there.
func (s *search) matters(i int) resources {
	has := s.c.nodes[i].has
	for r := range has {
		most := int64(0)
		for k := range s.asks {
			most += int64(s.alone(k, i)) * s.asks[k].needs[r]
		}
		has[r] = min(has[r], most)
	}
	return has
}

// ask places the members of ask k and of those after it.
func (s *search) ask(k int) bool {
	if k == len(s.asks) {
		return true
	}
	var r row
	for later := len(s.asks) - 1; later >= k; later-- {
		r = s.row(later)
		if len(r.rest) == 0 || r.rest[0] < s.asks[later].Count {
			return false
		}
	}
	return s.distribute(k, r, 0, s.asks[k].Count, 0)
}

// row finds the room for ask k beside what is placed.
func (s *search) row(k int) row {
	var r row
	for _, i := range s.nodes {
		s.steps--
		room := s.alone(k, i)
		if here := s.plan[i]; here != nil {
			room = s.room(k, i, here)
		}
		if room > 0 {
			r.nodes = append(r.nodes, i)
			r.rooms = append(r.rooms, room)
		}
	}
	r.rest = slices.Clone(r.rooms)
	for at := len(r.rest) - 2; at >= 0; at-- {
		r.rest[at] += r.rest[at+1]
	}
	return r
}

// distribute places left members of ask k on the nodes of the row from position at; last is how many the node before got.
func (s *search) distribute(k int, r row, at, left, last int) bool {
	if left == 0 {
		return s.ask(k + 1)
	}
	s.steps--
	if s.steps < 0 {
		s.cutOff = true
		return false
	}
	if at == len(r.nodes) || r.rest[at] < left {
		return false
	}
	i := r.nodes[at]
	most := min(left, r.rooms[at])
	if at > 0 && s.alike(r.nodes[at-1], i, k) {
		most = min(most, last)
	}
	if s.plan[i] == nil && len(s.plan) == s.c.span {
		most = 0
	}
	for n := most; n >= 0; n-- {
		s.put(i, k, n)
		if s.distribute(k, r, at+1, left-n, n) {
			return true
		}
		s.put(i, k, 0)
	}
	return false
}

// alike says whether nodes x and y are the same to ask k, apart from what it has on them itself.
func (s *search) alike(x, y, k int) bool {
	if s.class[x] != s.class[y] {
		return false
	}
	for before := range k {
		if s.plan.at(x, before) != s.plan.at(y, before) {
			return false
		}
	}
	return true
}

// put sets how many members of ask k are on node i.
func (s *search) put(i, k, n int) {
	s.plan.add(i, k, n-s.plan.at(i, k), len(s.asks))
	if slices.Max(s.plan[i]) == 0 {
		delete(s.plan, i)
	}
}
