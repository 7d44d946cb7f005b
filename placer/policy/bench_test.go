// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

// BenchmarkDecide measures one round on a grid of cluster and queue sizes: "free" is a cluster where half of the GPUs are free,
// so that many gangs start; "full" one where every node has a single GPU left, so that nearly all wait and need a reason.
func BenchmarkDecide(b *testing.B) {
	for _, nodes := range []int{10, 100, 1000, 10000} {
		for _, gangs := range []int{1, 10, 100} {
			for _, load := range []string{"free", "full"} {
				s := benchSnapshot(nodes, gangs, load)
				b.Run(fmt.Sprintf("nodes=%d/gangs=%d/%s", nodes, gangs, load), func(b *testing.B) {
					granted := 0
					for b.Loop() {
						granted = len(policy.Decide(s, epoch.Add(5*time.Minute)).Grants)
					}
					b.ReportMetric(float64(granted), "granted")
				})
			}
		}
	}
}

func benchSnapshot(nodes, gangs int, load string) model.Snapshot {
	rng := rand.New(rand.NewSource(1))
	s := model.Snapshot{Levels: []string{"zone", "rack"}}
	topology := gpu.NewTopology(machine(8, "switch"))
	for i := range nodes {
		free := gpu.FirstN(1)
		if load == "free" {
			free = gpu.Set(rng.Intn(256))
			if rng.Intn(2) == 0 {
				free = gpu.FirstN(8)
			}
		}
		s.Nodes = append(s.Nodes, model.Node{
			Name: fmt.Sprintf("node-%05d", i), Path: []string{fmt.Sprintf("z%d", i/512), fmt.Sprintf("r%d", i/16)},
			Topology: topology, Usable: gpu.FirstN(8), Free: free, CPUMHz: 200_000, MemoryMB: 2_000_000, DiskMB: 1_000_000,
		})
	}
	refused := make(map[string]string) // one node in ten, as if it ran another kernel
	for i := 0; i < nodes; i += 10 {
		refused[s.Nodes[i].Name] = "constraint"
	}
	for i := range gangs {
		g := model.Gang{
			Name: fmt.Sprintf("gang-%03d", i), Submitted: epoch.Add(time.Duration(i) * time.Second), WaitingSince: epoch,
			Locality: []string{model.LocalityNode, "rack", "zone", model.LocalityAny}[i%4], RelaxAfter: 10 * time.Minute,
			Groups: []model.Group{{Name: "worker", Count: 1 + rng.Intn(64), GPUs: 1 << rng.Intn(4), CPUMHz: 8000, MemoryMB: 65536}},
		}
		if i%5 == 0 {
			g.Groups = append(g.Groups, model.Group{Name: "launcher", Count: 1, GPUs: 1, CPUMHz: 1000, MemoryMB: 4096})
		}
		g.Groups[0].Refused = refused
		s.Gangs = append(s.Gangs, g)
	}
	return s
}

// BenchmarkDecideHard measures gangs of two groups that each would fit alone but not together, so that every search
// runs to its bound.
func BenchmarkDecideHard(b *testing.B) {
	s := benchSnapshot(80, 100, "full")
	for i := range s.Nodes {
		s.Nodes[i].Free = s.Nodes[i].Usable
		s.Nodes[i].MemoryMB = 1801 + int64(i) // no two are alike
	}
	for i := range s.Gangs {
		s.Gangs[i].Locality = model.LocalityAny
		s.Gangs[i].Groups = []model.Group{{Name: "a", Count: 60, GPUs: 5, MemoryMB: 1000}, {Name: "b", Count: 50, GPUs: 4, MemoryMB: 900}}
	}
	for b.Loop() {
		policy.Decide(s, epoch)
	}
}
