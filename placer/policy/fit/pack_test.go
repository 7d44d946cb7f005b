// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
)

// drawMesh makes up a machine with any NVLinks at all.
func drawMesh(t *rapid.T) *gpu.Topology {
	n := rapid.IntRange(1, 8).Draw(t, "gpus")
	m := gpu.Machine{GPUs: make([]gpu.GPU, n), Links: make([][]gpu.Link, n)}
	for i := range n {
		m.Links[i] = make([]gpu.Link, n)
		for j := range i {
			link := gpu.Link{PCIe: gpu.PathSYS}
			if rapid.Bool().Draw(t, "joined") {
				link.NVLinks, link.NVLinkMBps = 1, rapid.SampledFrom([]int{25_000, 50_000}).Draw(t, "MB/s")
			}
			m.Links[i][j], m.Links[j][i] = link, link
		}
	}
	return gpu.NewTopology(m)
}

// holds is canHold by trying everything.
func holds(t *gpu.Topology, free gpu.Set, sizes []int) bool {
	if len(sizes) == 0 {
		return true
	}
	for set := gpu.Set(0); ; set = (set - free) & free {
		if set.Len() == sizes[0] && t.JoinedByNVLink(set) && holds(t, free&^set, sizes[1:]) {
			return true
		}
		if set == free {
			return false
		}
	}
}

func TestPackingAgainstTryingEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topology := drawMesh(t)
		free := gpu.Set(rapid.Uint64().Draw(t, "free")) & gpu.FirstN(8)
		for i := range free.All() {
			if !topology.JoinedByNVLink(gpu.SetOf(i)) {
				free = free.Remove(i) // not on this machine
			}
		}
		sizes := rapid.SliceOfN(rapid.IntRange(1, 4), 0, 4).Draw(t, "sizes")
		p := newPacking()
		fits := p.canHold(topology, free, sizes)
		must.Eq(t, holds(topology, free, sizes), fits)

		k := rapid.IntRange(1, 3).Draw(t, "k")
		room := 0
		for room < 4 && p.canHold(topology, free, slices.Concat(sizes, slices.Repeat([]int{k}, room+1))) {
			room++
		}
		must.Eq(t, room, p.room(topology, free, sizes, k, 4))
		if !fits {
			return
		}
		slices.SortFunc(sizes, func(a, b int) int { return b - a })
		left := free
		for i, set := range p.sets(topology, free, sizes, true) {
			must.Eq(t, sizes[i], set.Len())
			must.True(t, topology.JoinedByNVLink(set))
			must.True(t, left.Contains(set))
			left &^= set
		}
	})
}
