// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

// fullSnapshot is nodes of 8 GPUs in racks of 100, all in use by gangs of as many GPUs as each says, which may end in any
// order; a checkpoint of each was finished at another time.
func fullSnapshot(nodes, gpus int) model.Snapshot {
	s := model.Snapshot{Levels: []string{"rack"}}
	topology := gpu.NewTopology(machine(8, "switch"))
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		s.Nodes = append(s.Nodes, model.Node{
			Name: name, Path: []string{fmt.Sprintf("r%03d", i/100)}, Topology: topology, Usable: gpu.FirstN(8),
			CPUMHz: 200_000, MemoryMB: 2_000_000, DiskMB: 1_000_000,
		})
		for k := 0; k < 8; k += gpus {
			n := len(s.Running)
			s.Running = append(s.Running, model.Running{
				Gang: model.Gang{
					Name: fmt.Sprintf("small-%05d", n), Queue: "guests", Priority: 50, Locality: model.LocalityAny,
					Expected: time.Duration(1+n*7919%1000) * time.Hour, Groups: []model.Group{{Name: "w", Count: 1, GPUs: gpus}},
				},
				Members: []model.Member{{Group: "w", Node: name, GPUs: gpu.FirstN(gpus) << k}},
				Level:   model.LocalityNode, Granted: epoch, Started: epoch, Saved: epoch.Add(time.Duration(n*7919%1000) * time.Second),
			})
		}
	}
	return s
}

// BenchmarkReclaim measures a cluster full of gangs of one GPU, half of which a queue wants back for one large gang.
func BenchmarkReclaim(b *testing.B) {
	for _, nodes := range []int{100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			s := fullSnapshot(nodes, 1)
			s.MaxNodes = nodes
			s.Queues = []model.Queue{{Name: "owner", Quota: 4 * nodes}, {Name: "guests"}}
			s.Gangs = []model.Gang{{
				Name: "large", Queue: "owner", Submitted: epoch, WaitingSince: epoch, Locality: model.LocalityAny,
				Groups: []model.Group{{Name: "w", Count: nodes / 2, GPUs: 8, CPUMHz: 8000, MemoryMB: 65536}},
			}}
			for b.Loop() {
				must.Len(b, 4*nodes, policy.Decide(s, epoch.Add(time.Hour)).Evictions)
			}
		})
	}
}

// BenchmarkVerdict measures how long it takes to say why a gang of 10 x 8 can't start on a full cluster.
func BenchmarkVerdict(b *testing.B) {
	s := fullSnapshot(500, 8)
	s.Gangs = []model.Gang{{
		Name: "ten", Submitted: epoch, WaitingSince: epoch, Locality: "rack", RelaxAfter: time.Hour,
		Groups: []model.Group{{Name: "w", Count: 10, GPUs: 8, CPUMHz: 8000, MemoryMB: 65536}},
	}}
	for b.Loop() {
		must.Len(b, 1, policy.Decide(s, epoch.Add(time.Hour)).Waits)
	}
}

// BenchmarkCrowd measures a decision about many waiting gangs of a few dozen shapes in ten queues on a full cluster.
func BenchmarkCrowd(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("nodes=%d/gangs=2000", nodes), func(b *testing.B) {
			s := fullSnapshot(nodes, 4)
			for q := range 10 {
				s.Queues = append(s.Queues, model.Queue{Name: fmt.Sprintf("q%d", q), Quota: nodes / 2})
			}
			for i := range s.Running {
				s.Running[i].Queue = fmt.Sprintf("q%d", i%10)
			}
			for i := range 2000 {
				s.Gangs = append(s.Gangs, model.Gang{
					Name: fmt.Sprintf("gang-%04d", i), Queue: fmt.Sprintf("q%d", i%10), Submitted: epoch.Add(time.Duration(i) * time.Second),
					WaitingSince: epoch, Locality: []string{"rack", model.LocalityAny}[i%2], RelaxNever: true,
					Groups: []model.Group{{Name: "worker", Count: 1 + i*31%16, GPUs: 1 << (i % 4), CPUMHz: 8000, MemoryMB: 65536}},
				})
			}
			for b.Loop() {
				must.Len(b, 2000, policy.Decide(s, epoch.Add(2*time.Hour)).Waits)
			}
		})
	}
}
