// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"math/bits"
	"slices"
)

// Topology is a machine's links made ready for choosing. It never changes, so that it may be shared, and it knows
// nothing of which GPUs are free.
type Topology struct {
	count     int
	links     [][]Link  // always count x count
	value     []pair    // count x count, row after row
	nvlinked  []Set     // per GPU: those that it has an NVLink connection to
	islands   []Set     // a partition, ordered by lowest index
	twin      []int     // per GPU: the next lower GPU that is its twin, or -1
	strengths []uint64  // the distinct strengths of all pairs, strongest first
	weight    [49]int64 // what an island with that many free GPUs is worth, see islandWeights
}

// pair is the value of a pair of GPUs, made so that values can be added up: NVLink bandwidth in MB/s, then the PCIe
// closeness of pairs without NVLink, then how many pairs are within one NUMA node. Even sums over all pairs of 64 GPUs,
// counted twice, leave each field within its bits.
type pair uint64

const (
	pairPathShift   = 13
	pairNVLinkShift = 29
	pairNUMAMask    = 1<<pairPathShift - 1
)

// strength is the value without NUMA closeness. Of a single pair it has the order of Link.Strength.
func (p pair) strength() uint64 { return uint64(p) >> pairPathShift }

// nvlinkMBps is the NVLink bandwidth in the value.
func (p pair) nvlinkMBps() int { return int(p >> pairNVLinkShift) } //nolint:gosec // G115: 35 bits

// NewTopology prepares a machine's links. A matrix that is too small counts as PathUnknown where it ends, and of two
// directions that differ the weaker one counts. GPUs beyond MaxGPUs are left out.
func NewTopology(m Machine) *Topology {
	n := min(len(m.GPUs), MaxGPUs)
	t := &Topology{count: n, value: make([]pair, n*n), nvlinked: make([]Set, n), twin: make([]int, n), links: make([][]Link, n)}
	for i := range n {
		t.links[i] = make([]Link, n)
		for j := range n {
			if i == j {
				continue
			}
			l := weaker(linkAt(m.Links, i, j), linkAt(m.Links, j, i))
			t.links[i][j] = l
			t.value[i*n+j] = valueOf(l, m.GPUs[i].NUMANode, m.GPUs[j].NUMANode)
			if l.NVLinks > 0 {
				t.nvlinked[i] = t.nvlinked[i].Add(j)
			}
			t.strengths = append(t.strengths, t.value[i*n+j].strength())
		}
	}
	slices.Sort(t.strengths)
	slices.Reverse(t.strengths)
	t.strengths = slices.Compact(t.strengths)
	t.islands = t.findIslands()
	t.findTwins()
	t.weight = islandWeights(n)
	return t
}

func linkAt(links [][]Link, i, j int) Link {
	if i >= len(links) || j >= len(links[i]) {
		return Link{}
	}
	return links[i][j]
}

func weaker(a, b Link) Link {
	if b.Strength() < a.Strength() {
		return b
	}
	return a
}

func valueOf(l Link, numaA, numaB int) pair {
	var v pair
	if l.NVLinks > 0 {
		v = pair(max(l.NVLinkMBps, 1)) << pairNVLinkShift //nolint:gosec // G115: positive
	} else {
		v = pair(l.PCIe.closeness()) << pairPathShift //nolint:gosec // G115: 0 to 5
	}
	if numaA >= 0 && numaA == numaB {
		v++
	}
	return v
}

func (t *Topology) at(i, j int) pair { return t.value[i*t.count+j] }

// Link returns the connection of the GPUs i and j; the zero Link if either is not on the machine or they are one.
func (t *Topology) Link(i, j int) Link { return linkAt(t.links, i, j) }

// Islands returns the islands, ordered by their lowest index: every GPU is in exactly one, and the GPUs of an island are
// all joined to one another by NVLink, directly or through NVSwitch. On nearly every machine the NVLink connections form
// separate groups that are fully joined, and those are the islands; a GPU without NVLink is an island of its own.
//
// Where a mesh is not fully joined (DGX-1), the largest fully joined group is the first island (of several, the one
// with the most bandwidth, then the lowest indexes), and so on with the GPUs that are left: for DGX-1 the two quads.
// NVLinks between islands still count when GPUs are chosen and for JoinedByNVLink. An irregular mesh of more than
// 16 GPUs is cut greedily instead, each island grown from the lowest index that is left.
func (t *Topology) Islands() []Set { return slices.Clone(t.islands) }

// JoinedByNVLink says whether the GPUs of the set are all joined to one another by NVLink, as `muster_nvlink =
// "required"` asks. A single GPU is.
func (t *Topology) JoinedByNVLink(s Set) bool {
	for i := range s.All() {
		if i >= t.count || !t.nvlinked[i].Contains(s.Remove(i)) {
			return false
		}
	}
	return true
}

func (t *Topology) findIslands() []Set {
	var islands []Set
	left := FirstN(t.count)
	for left != 0 {
		island := t.largestIsland(left)
		islands = append(islands, island)
		left &^= island
	}
	slices.SortFunc(islands, func(a, b Set) int { return a.first() - b.first() })
	return islands
}

// largestIsland returns the best fully joined group among the GPUs of left.
func (t *Topology) largestIsland(left Set) Set {
	var best Set
	var bestMBps int
	for todo := left; todo != 0; {
		group := t.connected(left, todo.first())
		todo &^= group
		if !t.JoinedByNVLink(group) {
			group = t.largestClique(group)
		}
		mbps := t.total(group).nvlinkMBps()
		if group.Len() > best.Len() || group.Len() == best.Len() && mbps > bestMBps {
			best, bestMBps = group, mbps
		}
	}
	return best
}

// connected returns the GPUs of among that are reached from one by NVLink in any number of steps.
func (t *Topology) connected(among Set, from int) Set {
	group := SetOf(from)
	for grown := true; grown; {
		before := group
		for i := range before.All() {
			group |= t.nvlinked[i] & among
		}
		grown = group != before
	}
	return group
}

// largestClique returns the largest fully joined group; of several the one with the most bandwidth, then the lowest
// indexes, since those are visited first. Above 16 GPUs it is the one that grows from the lowest index.
func (t *Topology) largestClique(among Set) Set {
	var best Set
	var bestMBps int
	var grow func(group, rest Set)
	grow = func(group, rest Set) {
		if group.Len()+rest.Len() < best.Len() {
			return
		}
		if mbps := t.total(group).nvlinkMBps(); group.Len() > best.Len() || group.Len() == best.Len() && mbps > bestMBps {
			best, bestMBps = group, mbps
		}
		for ; rest != 0; rest &= rest - 1 {
			grow(group.Add(rest.first()), rest&t.nvlinked[rest.first()])
			if among.Len() > maxExact {
				return
			}
		}
	}
	grow(0, among)
	return best
}

// total adds up the values of all pairs within the set.
func (t *Topology) total(s Set) pair {
	var sum pair
	for ; s != 0; s &= s - 1 {
		i := s.first()
		for rest := s & (s - 1); rest != 0; rest &= rest - 1 {
			sum += t.at(i, rest.first())
		}
	}
	return sum
}

// findTwins finds GPUs that may be exchanged for one another in any set without changing its value: they are in one
// island and have the same connection to every third GPU. Being twins is an equivalence, so that a search may take
// twins in index order only.
func (t *Topology) findTwins() {
	for j := range t.count {
		t.twin[j] = -1
		for i := j - 1; i >= 0 && t.twin[j] < 0; i-- {
			if t.areTwins(i, j) {
				t.twin[j] = i
			}
		}
	}
}

func (t *Topology) areTwins(i, j int) bool {
	for _, island := range t.islands {
		if island.Has(i) != island.Has(j) {
			return false
		}
	}
	for x := range t.count {
		if x != i && x != j && t.at(i, x) != t.at(j, x) {
			return false
		}
	}
	return true
}

// islandWeights returns what the free part of an island is worth by its size, so that of two ways to leave GPUs to
// others the sum is higher where the largest part is larger, or at equal largest parts the next, and so on: each weight is
// one more than the parts smaller than it can reach together. Sizes above 48 count as 48, to stay within 64 bits.
func islandWeights(gpus int) (weight [49]int64) {
	gpus = min(gpus, len(weight)-1)
	best := make([]int64, gpus+1) // the highest sum of parts so far that make up that many GPUs
	for size := 1; size <= gpus; size++ {
		weight[size] = best[gpus] + 1
		for sum := size; sum <= gpus; sum++ {
			best[sum] = max(best[sum], weight[size]+best[sum-size])
		}
	}
	return weight
}

// leftWhole values the islands that the GPUs of left form.
func (t *Topology) leftWhole(left Set) int64 {
	var sum int64
	for _, island := range t.islands {
		size := bits.OnesCount64(uint64(island & left))
		sum += t.weight[min(size, len(t.weight)-1)]
	}
	return sum
}
