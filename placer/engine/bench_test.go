// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"testing"
)

// BenchmarkStep is one decision about gangs that all wait, on nodes that are all taken: what a placer does each tick of
// a busy cluster.
func BenchmarkStep(b *testing.B) {
	for _, size := range []struct{ nodes, gangs int }{{100, 50}, {500, 200}, {1000, 500}} {
		b.Run(fmt.Sprintf("nodes=%d/gangs=%d", size.nodes, size.gangs), func(b *testing.B) {
			w := newWorld(b)
			for i := range size.nodes {
				w.addNode(fmt.Sprintf("n%d", i), fmt.Sprintf("r%d", i/16), 8)
			}
			w.settle()
			w.ack()
			for i := range size.nodes {
				w.happen([]string{"job", fmt.Sprintf("full-%d", i), "gpus=8"})
			}
			w.settle()
			for i := range size.gangs {
				w.happen([]string{"job", fmt.Sprintf("wait-%d", i), "gpus=8", "count=4"})
			}
			w.settle()
			l := w.leader
			v := View{Ledger: l.snapshot, Nomad: w.State()}
			for b.Loop() {
				l.Turn()
				l.memory = Remember(l.memory, v, w.now)
				v.Memory = l.memory
				if actions := l.Rules.Step(v, w.now); len(actions) > 0 {
					b.Fatalf("%d actions, the first is %+v", len(actions), actions[0].Kind)
				}
			}
		})
	}
}
