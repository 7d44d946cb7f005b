// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// joined makes up a machine whose GPUs are all joined by NVLink, or none of them.
func joined(gpus int, nvlink bool) *gpu.Topology {
	m := gpu.Machine{GPUs: make([]gpu.GPU, gpus), Links: make([][]gpu.Link, gpus)}
	for i := range gpus {
		m.Links[i] = make([]gpu.Link, gpus)
		for j := range gpus {
			m.Links[i][j] = gpu.Link{PCIe: gpu.PathSYS}
			if nvlink && i != j {
				m.Links[i][j] = gpu.Link{NVLinks: 4, NVLinkMBps: 100_000, PCIe: gpu.PathSYS}
			}
		}
	}
	return gpu.NewTopology(m)
}

// rack makes up a cluster of 8-GPU nodes in racks of a size and zones of 32 racks.
func racks(nodes, size int, free func(i int) gpu.Set) model.Snapshot {
	s := model.Snapshot{Levels: []string{"zone", "rack"}}
	topology := joined(8, true)
	for i := range nodes {
		s.Nodes = append(s.Nodes, model.Node{
			Name: fmt.Sprintf("node-%05d", i), Path: []string{fmt.Sprintf("z%03d", i/size/32), fmt.Sprintf("r%04d", i/size)},
			Topology: topology, Usable: gpu.FirstN(8), Free: free(i), CPUMHz: 200_000, MemoryMB: 2_000_000, DiskMB: 1_000_000,
		})
	}
	return s
}

func gang(i, members, gpus int, locality string) model.Gang {
	return model.Gang{
		Name: fmt.Sprintf("gang-%05d", i), Submitted: epoch.Add(time.Duration(i) * time.Second), WaitingSince: epoch,
		Locality: locality, RelaxAfter: 10 * time.Minute,
		Groups: []model.Group{{Name: "worker", Count: members, GPUs: gpus, CPUMHz: 8000, MemoryMB: 65536}},
	}
}

// decide is a round as package policy makes it: every gang is tried, and every one that waits gets its reason.
func decide(c *fit.Cluster, gangs []model.Gang, now time.Time) (granted int) {
	var waiting []model.Gang
	for _, g := range gangs {
		if grant, found := c.Fit(g, now); found {
			c.Take(g, grant)
			granted++
			continue
		}
		waiting = append(waiting, g)
	}
	for _, g := range waiting {
		c.Explain(g, now)
	}
	return granted
}

// BenchmarkMixed is one round of gangs of many shapes of which few can start, with the copy of the snapshot: aimed at is
// 100 ms for 10,000 nodes and 2,000 gangs on two cores.
func BenchmarkMixed(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10_000} {
		for _, gangs := range []int{200, 2000} {
			rng := rand.New(rand.NewSource(1))
			s := racks(nodes, 16, func(int) gpu.Set {
				if rng.Intn(20) == 0 {
					return gpu.Set(rng.Intn(256))
				}
				return gpu.FirstN(rng.Intn(2))
			})
			refused := make(map[string]string)
			for i := 0; i < nodes; i += 10 {
				refused[s.Nodes[i].Name] = "missing drivers"
				s.Nodes[i/2].MemoryMB = int64(rng.Intn(200_000))
			}
			localities := []string{model.LocalityNode, "rack", "zone", model.LocalityAny}
			var all []model.Gang
			for i := range gangs {
				g := gang(i, 1+rng.Intn(64), 1<<rng.Intn(4), localities[i%4])
				if g.Groups[0].Refused = refused; i%5 == 0 {
					g.Groups = append(g.Groups, model.Group{Name: "launcher", Count: 1, GPUs: 1, CPUMHz: 1000, MemoryMB: 4096, Refused: refused})
				}
				all = append(all, g)
			}
			b.Run(fmt.Sprintf("nodes=%d/gangs=%d", nodes, gangs), func(b *testing.B) {
				granted := 0
				for b.Loop() {
					granted = decide(fit.New(s), all, epoch.Add(5*time.Minute))
				}
				b.ReportMetric(float64(granted), "granted")
			})
		}
	}
}

// BenchmarkMany is many gangs of four members that all start: aimed at is far more than 300 gangs a second for 750 of them
// on 5,000 nodes in 50 racks.
func BenchmarkMany(b *testing.B) {
	for _, nodes := range []int{500, 5000} {
		for _, locality := range []string{"rack", model.LocalityAny} {
			s := racks(nodes, 100, func(int) gpu.Set { return gpu.FirstN(8) })
			var all []model.Gang
			for i := range 750 {
				all = append(all, gang(i, 4, 1<<(i%4), locality))
			}
			b.Run(fmt.Sprintf("nodes=%d/gangs=750/%s", nodes, locality), func(b *testing.B) {
				granted := 0
				for b.Loop() {
					granted += decide(fit.New(s), all, epoch)
				}
				b.ReportMetric(float64(granted)/b.Elapsed().Seconds(), "gangs/s")
			})
		}
	}
}

// BenchmarkVerdict tells a gang that it can't start, from the snapshot on: aimed at are at most 10 ms for 10 members of 8
// GPUs on 500 full nodes.
func BenchmarkVerdict(b *testing.B) {
	for _, nodes := range []int{50, 500, 5000} {
		s := racks(nodes, 10, func(int) gpu.Set { return 0 })
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				decide(fit.New(s), []model.Gang{gang(0, 10, 8, "rack")}, epoch)
			}
		})
	}
}

// philly makes up a cluster like Philly's: 321 machines of 2 GPUs and 231 of 8 in racks of 24, two thirds in use.
func philly(nvlink bool) model.Snapshot {
	s := model.Snapshot{Levels: []string{"rack"}}
	rng := rand.New(rand.NewSource(1))
	two, eight := joined(2, nvlink), joined(8, nvlink)
	for i := range 552 {
		n := model.Node{CPUMHz: 1e6, MemoryMB: 1e7, Name: fmt.Sprintf("m%03d", i), Topology: two, Usable: gpu.FirstN(2), Path: []string{fmt.Sprintf("r%02d", i/24)}}
		if i >= 321 {
			n.Topology, n.Usable = eight, gpu.FirstN(8)
		}
		n.Free = n.Usable & gpu.Set(rng.Uint64()) & gpu.Set(rng.Uint64())
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

// BenchmarkPhilly is the steps of a long replay on 552 nodes, with a cluster that is kept: the next snapshot, a gang that
// fits and one that does not, each placed or explained.
func BenchmarkPhilly(b *testing.B) {
	s := philly(true)
	c := fit.New(s)
	small, large := gang(0, 1, 1, "rack"), gang(1, 16, 1, "rack")
	huge := gang(2, 64, 8, "rack")
	b.Run("renew", func(b *testing.B) {
		for b.Loop() {
			s.Nodes[400].Free ^= gpu.SetOf(3)
			c.Renew(s)
		}
	})
	b.Run("clone", func(b *testing.B) {
		for b.Loop() {
			c.Clone()
		}
	})
	for name, g := range map[string]model.Gang{"one GPU": small, "16 GPUs": large} {
		b.Run("grant "+name, func(b *testing.B) {
			for b.Loop() {
				grant, found := c.Fit(g, epoch)
				if !found {
					b.Fatal("does not fit")
				}
				c.Take(g, grant)
				c.Give(g, grant.Members)
			}
		})
	}
	b.Run("fail", func(b *testing.B) {
		for b.Loop() {
			grant, _ := c.Fit(small, epoch)
			c.Take(small, grant)
			c.Give(small, grant.Members)
			c.Fit(huge, epoch)
		}
	})
	b.Run("explain", func(b *testing.B) {
		for b.Loop() {
			grant, _ := c.Fit(small, epoch)
			c.Take(small, grant)
			c.Give(small, grant.Members)
			c.Explain(huge, epoch)
		}
	})
}
