// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"slices"
	"strconv"

	"github.com/nomad-muster/muster/driver/gpu"
)

// maxPackSteps bounds the search for separate NVLink-joined sets on a machine whose NVLink mesh is not a set of
// islands. Eight GPUs never come near it; a larger irregular mesh may be given up on as not fitting.
const maxPackSteps = 20000

// packing answers how many members' GPUs one node has room for when each member's must be joined by NVLink, and chooses
// every member's GPUs. It remembers answers, because many nodes are alike.
type packing struct {
	meshes map[*gpu.Topology]mesh
	fits   map[packKey]bool
	chosen map[packKey][]gpu.Set
}

// mesh is what a machine's NVLink looks like.
type mesh struct {
	islands []gpu.Set
	regular bool // no two GPUs of different islands are joined, so that only the islands' sizes matter
}

type packKey struct {
	topology *gpu.Topology
	free     gpu.Set
	sizes    string
	nvlink   bool
}

// maxPacked bounds the answers that are remembered; when there are more, all are forgotten.
const maxPacked = 1 << 14

func newPacking() *packing {
	return &packing{meshes: make(map[*gpu.Topology]mesh), fits: make(map[packKey]bool), chosen: make(map[packKey][]gpu.Set)}
}

func keep[V any](table map[packKey]V, key packKey, v V) {
	if len(table) >= maxPacked {
		clear(table)
	}
	table[key] = v
}

// nvlink says how GPUs of a machine are joined.
func (p *packing) nvlink(t *gpu.Topology, gpus gpu.Set) nvlink {
	how := nvlinkNone
	for _, island := range p.mesh(t).islands {
		switch {
		case island.Contains(gpus):
			return nvlinkAll
		case island.Len() > 1:
			how = nvlinkSome
		}
	}
	return how
}

// room returns how many members of k GPUs, at most limit, the free GPUs can hold beside members of the sizes in placed,
// each member joined by NVLink.
func (p *packing) room(t *gpu.Topology, free gpu.Set, placed []int, k, limit int) int {
	if m := p.mesh(t); len(placed) == 0 && m.regular {
		room := 0
		for _, island := range m.islands {
			room += (island & free).Len() / k
		}
		return min(room, limit)
	}
	sizes := slices.Clone(placed)
	for n := range limit {
		sizes = append(sizes, k)
		if !p.canHold(t, free, sizes) {
			return n
		}
	}
	return limit
}

// canHold says whether the free GPUs have separate NVLink-joined sets of the given sizes.
func (p *packing) canHold(t *gpu.Topology, free gpu.Set, sizes []int) bool {
	sizes = slices.Clone(sizes)
	slices.SortFunc(sizes, func(a, b int) int { return b - a })
	key := packKey{topology: t, free: free, sizes: sizesKey(sizes)}
	if answer, known := p.fits[key]; known {
		return answer
	}
	var answer bool
	if m := p.mesh(t); m.regular {
		var rooms []int
		for _, island := range m.islands {
			rooms = append(rooms, (island & free).Len())
		}
		answer = binsHold(rooms, sizes)
	} else {
		search := cliques{topology: t, dead: make(map[packKey]bool), steps: maxPackSteps}
		answer = search.hold(free, sizes)
	}
	keep(p.fits, key, answer)
	return answer
}

func sizesKey(sizes []int) string {
	key := make([]byte, 0, 3*len(sizes))
	for _, k := range sizes {
		key = append(strconv.AppendInt(key, int64(k), 10), ' ')
	}
	return string(key)
}

func (p *packing) mesh(t *gpu.Topology) mesh {
	m, known := p.meshes[t]
	if !known {
		m = mesh{islands: t.Islands()}
		m.regular = apart(t, m.islands)
		p.meshes[t] = m
	}
	return m
}

func apart(t *gpu.Topology, islands []gpu.Set) bool {
	for a, island := range islands {
		for _, other := range islands[:a] {
			for i := range island.All() {
				for j := range other.All() {
					if t.JoinedByNVLink(gpu.SetOf(i, j)) {
						return false
					}
				}
			}
		}
	}
	return true
}

// binsHold says whether items of the given sizes, largest first, go into bins with that much room. Bins of equal room
// are tried once.
func binsHold(rooms, sizes []int) bool {
	if len(sizes) == 0 {
		return true
	}
	for b, room := range rooms {
		if room < sizes[0] || slices.Contains(rooms[:b], room) {
			continue
		}
		rooms[b] -= sizes[0]
		fits := binsHold(rooms, sizes[1:])
		rooms[b] += sizes[0]
		if fits {
			return true
		}
	}
	return false
}

// cliques searches an irregular mesh for separate joined sets.
type cliques struct {
	topology *gpu.Topology
	dead     map[packKey]bool // tried before without success
	steps    int
}

// hold decides about the lowest free GPU: in a set of one of the sizes, or in none.
func (c *cliques) hold(free gpu.Set, sizes []int) bool {
	total := 0
	for _, k := range sizes {
		total += k
	}
	if total == 0 {
		return true
	}
	key := packKey{free: free, sizes: sizesKey(sizes)}
	c.steps--
	if total > free.Len() || c.steps < 0 || c.dead[key] {
		return false
	}
	lowest := free & -free
	for i, k := range sizes {
		if i > 0 && sizes[i-1] == k {
			continue
		}
		rest := slices.Delete(slices.Clone(sizes), i, i+1)
		for set := range joinedSets(c.topology, lowest, free&^lowest, k-1) {
			if c.hold(free&^set, rest) {
				return true
			}
		}
	}
	if c.hold(free&^lowest, sizes) {
		return true
	}
	c.dead[key] = true
	return false
}

// joinedSets yields every set made of chosen and need more GPUs of rest that is joined by NVLink, lowest indexes first.
func joinedSets(t *gpu.Topology, chosen, rest gpu.Set, need int) func(yield func(gpu.Set) bool) {
	return func(yield func(gpu.Set) bool) { walkJoined(t, chosen, rest, need, yield) }
}

func walkJoined(t *gpu.Topology, chosen, rest gpu.Set, need int, yield func(gpu.Set) bool) bool {
	if need == 0 {
		return yield(chosen)
	}
	for ; rest.Len() >= need; rest &= rest - 1 {
		lowest := rest & -rest
		if t.JoinedByNVLink(chosen|lowest) && !walkJoined(t, chosen|lowest, rest&^lowest, need-1, yield) {
			return false
		}
	}
	return true
}

// sets chooses the GPUs of each member on a node, largest members first as in sizes. Each gets the best that is left,
// unless the rest could then not all be joined although they must be.
func (p *packing) sets(t *gpu.Topology, free gpu.Set, sizes []int, nvlink bool) []gpu.Set {
	key := packKey{topology: t, free: free, sizes: sizesKey(sizes), nvlink: nvlink}
	chosen, known := p.chosen[key]
	if !known {
		chosen = p.choose(t, free, sizes, nvlink)
		keep(p.chosen, key, chosen)
	}
	return slices.Clone(chosen)
}

func (p *packing) choose(t *gpu.Topology, free gpu.Set, sizes []int, nvlink bool) []gpu.Set {
	chosen := make([]gpu.Set, 0, len(sizes))
	for i, k := range sizes {
		set := gpu.Set(0)
		if choice, found := t.Choose(k, free); found {
			set = choice.GPUs
		}
		if nvlink && !p.leaves(t, free, set, sizes[i+1:]) {
			set = p.spare(t, free, k, sizes[i+1:])
		}
		chosen = append(chosen, set)
		free &^= set
	}
	return chosen
}

// leaves says whether a set is joined and the rest still has room for members of the given sizes.
func (p *packing) leaves(t *gpu.Topology, free, set gpu.Set, rest []int) bool {
	return t.JoinedByNVLink(set) && p.canHold(t, free&^set, rest)
}

// spare returns the best set that leaves room for the rest, of those that an island offers, or else any such set. There
// is one, since canHold was asked before.
func (p *packing) spare(t *gpu.Topology, free gpu.Set, k int, rest []int) gpu.Set {
	for _, island := range p.mesh(t).islands {
		if choice, found := t.Choose(k, free&island); found && p.leaves(t, free, choice.GPUs, rest) {
			return choice.GPUs
		}
	}
	for set := range joinedSets(t, 0, free, k) {
		if p.leaves(t, free, set, rest) {
			return set
		}
	}
	return 0
}
