// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu_test

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// worth is what the rules of Choose compare, spelled out for one set; each slice is compared from its front, and more
// is better.
type worth struct {
	set  gpu.Set
	keys []int
}

// reference is the slow and obvious Choose: it values every set of k free GPUs by the rules as they are written.
func reference(m gpu.Machine, k int, free gpu.Set) (gpu.Set, bool) {
	top := gpu.NewTopology(m)
	var best worth
	found := false
	for bitmap := range uint64(1) << len(m.GPUs) {
		set := gpu.Set(bitmap)
		if bits.OnesCount64(bitmap) != k || k == 0 || !free.Contains(set) {
			continue
		}
		w := worth{set, valueKeys(m, top, set, free&^set)}
		order := slices.Compare(w.keys, best.keys)
		if !found || order > 0 || order == 0 && slices.Compare(set.Indexes(), best.set.Indexes()) < 0 {
			best, found = w, true
		}
	}
	return best.set, found
}

func valueKeys(m gpu.Machine, top *gpu.Topology, set, left gpu.Set) []int {
	weakest := 1 << 40
	eachPair(m, set, func(l gpu.Link, _ bool) { weakest = min(weakest, l.Strength()) })
	nvlink, path, numa := sums(m, set)
	keys := []int{weakest, nvlink, path}

	sizes := make([]int, len(m.GPUs))
	for i, island := range top.Islands() {
		sizes[i] = (island & left).Len()
	}
	slices.SortFunc(sizes, func(a, b int) int { return cmp.Compare(b, a) })
	keys = append(keys, sizes...)

	leftNVLink, leftPath, leftNUMA := sums(m, left)
	return append(keys, numa, leftNVLink, leftPath, leftNUMA)
}

func sums(m gpu.Machine, set gpu.Set) (nvlink, path, numa int) {
	eachPair(m, set, func(l gpu.Link, sameNUMA bool) {
		if l.NVLinks > 0 {
			nvlink += l.NVLinkMBps
		} else {
			path += gpu.Link{PCIe: l.PCIe}.Strength()
		}
		if sameNUMA {
			numa++
		}
	})
	return nvlink, path, numa
}

func eachPair(m gpu.Machine, set gpu.Set, visit func(l gpu.Link, sameNUMA bool)) {
	for i := range set.All() {
		for j := range set.All() {
			if i < j {
				a, b := m.GPUs[i].NUMANode, m.GPUs[j].NUMANode
				visit(m.Links[i][j], a >= 0 && a == b)
			}
		}
	}
}

func TestChoose_PublishedMachinesEqualReference(t *testing.T) {
	t.Parallel()
	for name, m := range publishedMachines(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := gpu.NewTopology(m)
			for k := range len(m.GPUs) + 2 {
				want, possible := reference(m, k, m.All())
				got, ok := top.Choose(k, m.All())
				must.Eq(t, possible, ok)
				must.Eq(t, want.String(), got.GPUs.String(), must.Sprintf("%d of all", k))
			}
			if len(m.GPUs) > 8 {
				return // the random free sets below would take the reference minutes
			}
			rapid.Check(t, func(t *rapid.T) {
				free := m.All() & gpu.Set(rapid.Uint64().Draw(t, "free"))
				k := rapid.IntRange(0, len(m.GPUs)).Draw(t, "k")
				want, possible := reference(m, k, free)
				got, ok := top.Choose(k, free)
				must.Eq(t, possible, ok)
				must.Eq(t, want.String(), got.GPUs.String())
			})
		})
	}
}

func TestChoose_AnyMachineEqualsReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "gpus")
		m := mesh(n, rapid.IntRange(0, 100).Draw(t, "nvlink percent"), rapid.Uint64().Draw(t, "seed"))
		free := m.All() & gpu.Set(rapid.Uint64().Draw(t, "free"))
		k := rapid.IntRange(1, n).Draw(t, "k")
		want, possible := reference(m, k, free)
		got, ok := gpu.NewTopology(m).Choose(k, free)
		must.Eq(t, possible, ok)
		must.Eq(t, want.String(), got.GPUs.String())
	})
}

func TestChoose_SixteenGPUsEqualReference(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]gpu.Machine{
		"two DGX-1 in one case": joined(dgx1(t), dgx1(t)),
		"random mesh":           mesh(16, 40, 7),
		"ring":                  ring(16, 3),
		"four kinds together":   joined(pairs(t), sockets(t), dgx1(t)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := gpu.NewTopology(m)
			for _, free := range []gpu.Set{m.All(), 0xFDB7} {
				for k := 1; k <= 16; k += 3 {
					want, _ := reference(m, k, free)
					got, _ := top.Choose(k, free)
					must.Eq(t, want.String(), got.GPUs.String(), must.Sprintf("%d of %s", k, free))
				}
			}
		})
	}
}

func TestChoose_Examples(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		machine  gpu.Machine
		free     gpu.Set
		k        int
		want     string
		weakest  string
		oneWhole bool
	}{
		"a pair is bridged":                           {pairs(t), gpu.SetOf(1, 2, 3), 2, "2-3", "NV12", true},
		"a single GPU spares the pair":                {pairs(t), gpu.SetOf(0, 1, 3), 1, "3", "-", true},
		"three of two pairs":                          {pairs(t), gpu.FirstN(4), 3, "0-2", "NODE", false},
		"two sockets that only NUMA tells apart":      {sockets(t), gpu.SetOf(1, 2, 3), 2, "2-3", "SYS", false},
		"a single GPU spares a whole socket":          {sockets(t), gpu.SetOf(0, 1, 3), 1, "3", "-", true},
		"a quad of DGX-1 is an island":                {dgx1(t), gpu.FirstN(8), 4, "0-3", "NV1", true},
		"the double link of DGX-1":                    {dgx1(t), gpu.SetOf(0, 1, 2), 2, "1-2", "NV2", true},
		"NVLinks between the quads of DGX-1 do count": {dgx1(t), gpu.SetOf(0, 4, 5), 2, "0,4", "NV2", true},
		"five of DGX-1 cannot all be joined":          {dgx1(t), gpu.FirstN(8), 5, "0-4", "SYS", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := gpu.NewTopology(tc.machine).Choose(tc.k, tc.free)
			must.True(t, ok)
			must.Eq(t, tc.want, got.GPUs.String())
			must.Eq(t, tc.weakest, got.Weakest.String())
			must.Eq(t, tc.oneWhole, got.OneIsland)
		})
	}
}

func TestChoose_Impossible(t *testing.T) {
	t.Parallel()
	top := gpu.NewTopology(pairs(t))
	for name, tc := range map[string]struct {
		k    int
		free gpu.Set
	}{
		"none asked for":       {0, gpu.FirstN(4)},
		"fewer than none":      {-1, gpu.FirstN(4)},
		"more than are free":   {3, gpu.SetOf(0, 1)},
		"more than there are":  {5, ^gpu.Set(0)},
		"nothing is free":      {1, 0},
		"free but not present": {1, gpu.SetOf(9)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ok := top.Choose(tc.k, tc.free)
			must.False(t, ok)
		})
	}
}

// Above 16 free GPUs the answer is not proven best, but where a machine is regular it is, and it never
// contradicts the rule for `muster_nvlink = "required"` there.
func TestChoose_MoreThanSixteen(t *testing.T) {
	t.Parallel()
	m := joined(dgx1(t), dgx1(t), pairs(t), dgx1(t), sockets(t))
	top := gpu.NewTopology(m)
	for k, want := range map[int]string{1: "28", 2: "16-17", 4: "0-3"} {
		got, ok := top.Choose(k, m.All())
		must.True(t, ok)
		must.Eq(t, want, got.GPUs.String())
	}
	got, ok := top.Choose(len(m.GPUs), m.All())
	must.True(t, ok)
	must.Eq(t, m.All(), got.GPUs)
}

func TestJoinedByNVLink(t *testing.T) {
	t.Parallel()
	top := gpu.NewTopology(dgx1(t))
	must.True(t, top.JoinedByNVLink(gpu.SetOf(0, 1, 2, 3)))
	must.True(t, top.JoinedByNVLink(gpu.SetOf(0, 4)))
	must.True(t, top.JoinedByNVLink(gpu.SetOf(5)))
	must.False(t, top.JoinedByNVLink(gpu.SetOf(0, 1, 4)))
	must.False(t, top.JoinedByNVLink(gpu.SetOf(0, 8)))
}

func TestIslands(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		machine gpu.Machine
		want    []string
	}{
		"bridged pairs":          {pairs(t), []string{"0-1", "2-3"}},
		"no NVLink":              {sockets(t), []string{"0", "1", "2", "3"}},
		"DGX-1 is two quads":     {dgx1(t), []string{"0-3", "4-7"}},
		"a ring is cut in pairs": {ring(6, 1), []string{"0-1", "2-3", "4-5"}},
		"many GPUs, irregular":   {ring(20, 2), []string{"0-2", "3-5", "6-8", "9-11", "12-14", "15-17", "18-19"}},
		"no GPUs":                {gpu.Machine{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, island := range gpu.NewTopology(tc.machine).Islands() {
				got = append(got, island.String())
			}
			must.Eq(t, tc.want, got)
		})
	}
}

func TestIslands_ArePartitionOfJoinedGPUs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := mesh(rapid.IntRange(0, 20).Draw(t, "gpus"), rapid.IntRange(0, 100).Draw(t, "nvlink percent"), rapid.Uint64().Draw(t, "seed"))
		top := gpu.NewTopology(m)
		var seen gpu.Set
		for _, island := range top.Islands() {
			must.Eq(t, gpu.Set(0), seen&island)
			must.True(t, top.JoinedByNVLink(island))
			seen |= island
		}
		must.Eq(t, m.All(), seen)
	})
}

func BenchmarkChoose(b *testing.B) {
	machines := map[string]gpu.Machine{
		"8 DGX-1": dgx1(b), "8 random mesh": mesh(8, 40, 7), "8 ring": ring(8, 2), "8 pairs": joined(pairs(b), pairs(b)),
		"16 two DGX-1": joined(dgx1(b), dgx1(b)), "16 random mesh": mesh(16, 40, 7), "16 dense mesh": mesh(16, 90, 7),
		"16 no NVLink mesh": mesh(16, 0, 7), "16 ring": ring(16, 3), "16 ring, every second": ring(16, 7),
	}
	for name, m := range publishedMachines(b) {
		machines[name] = m
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range machines {
			if !yield(name) {
				return
			}
		}
	}) {
		top, all := gpu.NewTopology(machines[name]), machines[name].All()
		b.Run(name, func(b *testing.B) {
			for k := 1; k <= all.Len(); k++ {
				b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
					for b.Loop() {
						top.Choose(k, all)
					}
				})
			}
		})
	}
}
