// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/shoenig/test/must"
)

// BenchmarkReserve grants a gang on a real Consul by Commit, and by turns sends a bare transaction of as many operations
// and bytes, so that both meet the same moments of the machine. Medians; "x-bare" is their ratio, to be at most 1.3.
func BenchmarkReserve(b *testing.B) {
	for _, n := range []int{1, 8, 64, MaxNodes} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) { benchmarkReserve(b, n) })
	}
}

func benchmarkReserve(b *testing.B, n int) {
	b.Helper()
	store := NewConsul(consulClient(b))
	l := New(store, region(b))
	lease, s, gang, slots := wide(b, l, n)
	change, err := BuildGrant(s, gang, slots)
	must.NoError(b, err)
	bare := bareOps(b, l, lease, change)
	ours, theirs := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for i := range b.N {
		touch(change, bare, i)
		reserve := func() {
			start := time.Now()
			indexes, err := l.Commit(b.Context(), lease, change)
			ours = append(ours, time.Since(start))
			must.NoError(b, err)
			change.Gang.Index = indexes[l.Keys().Gang(gang.Name)]
			for node, table := range change.Tables {
				table.Index = indexes[l.Keys().Slots(node)]
				change.Tables[node] = table
			}
		}
		send := func() {
			start := time.Now()
			_, err := store.Txn(b.Context(), bare)
			theirs = append(theirs, time.Since(start))
			must.NoError(b, err)
		}
		if i%2 == 0 {
			reserve()
			send()
		} else {
			send()
			reserve()
		}
	}
	b.ReportMetric(0, "ns/op") // of both together: of no use
	b.ReportMetric(medianMS(theirs), "bare-ms")
	b.ReportMetric(medianMS(ours), "commit-ms")
	b.ReportMetric(medianMS(ours)/medianMS(theirs), "x-bare")
}

// touch makes both transactions write something new, as Consul passes over a write of what is there.
func touch(change Change, bare []Op, i int) {
	change.Gang.Doc.Attempts = 1 + i%2
	for node, table := range change.Tables {
		table.Doc.Sequence = uint64(2 + i%2)
		change.Tables[node] = table
	}
	for j := range bare {
		if len(bare[j].Value) > 0 {
			bare[j].Value[0] = 'a' + byte(i%2)
		}
	}
}

func medianMS(times []time.Duration) float64 {
	slices.Sort(times)
	return float64(times[len(times)/2].Microseconds()) / 1000
}

// bareOps are plain sets of the same number and size as a change's operations.
func bareOps(b *testing.B, l *Ledger, lease Lease, change Change) []Op {
	b.Helper()
	ops, err := l.changeOps(lease, change)
	must.NoError(b, err)
	for i := range ops {
		if ops[i].Verb == CheckSession {
			continue
		}
		ops[i] = Op{Verb: Set, Key: strings.Replace(ops[i].Key, "muster/", "musteR/", 1), Value: []byte(strings.Repeat("a", len(ops[i].Value)))}
	}
	b.Cleanup(func() { must.NoError(b, must1(consulClient(b).KV().DeleteTree("musteR/", nil))) })
	return ops
}

func must1[T any](_ T, err error) error { return err }

// BenchmarkLoad reads and decodes a whole ledger of nodes with 8 GPUs of which half hold a slot: the first time, and
// again when nothing has changed but slots.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		l := New(NewMemory(), "global")
		fill(b, l, n)
		b.Run(fmt.Sprintf("first/nodes=%d", n), func(b *testing.B) {
			for b.Loop() {
				_, err := New(l.Store(), "global").Load(b.Context())
				must.NoError(b, err)
			}
		})
		b.Run(fmt.Sprintf("again/nodes=%d", n), func(b *testing.B) {
			for b.Loop() {
				_, err := l.Load(b.Context())
				must.NoError(b, err)
			}
		})
	}
}

// fill writes the documents of n nodes.
func fill(b *testing.B, l *Ledger, n int) {
	b.Helper()
	var ops []Op
	for i, node := range names("gpu-node-", n) {
		inventory := inventory(node, 8)
		inventory.Machine.Links = make([][]gpu.Link, 8)
		for j := range inventory.Machine.Links {
			inventory.Machine.Links[j] = make([]gpu.Link, 8)
			for k := range inventory.Machine.Links[j] {
				inventory.Machine.Links[j][k] = gpu.Link{NVLinks: 18, NVLinkMBps: 450000, PCIe: gpu.PathSYS}
			}
		}
		table := SlotTable{Version: Version, Sequence: 2}
		if i%2 == 0 {
			gang := asked(node, 1, 8)
			gang, slots := placed(Snapshot{}, gang, fmt.Sprintf("r%d", i), []string{node}, [][]string{make([]string, 8)})
			table.Slots = slots[node]
			for j := range table.Slots[0].GPUs {
				table.Slots[0].GPUs[j] = fmt.Sprintf("GPU-%036d", j)
			}
			ops = append(ops, Op{Verb: Set, Key: l.Keys().Gang(node), Value: encode(gang)})
		}
		ops = append(ops,
			Op{Verb: Set, Key: l.Keys().Node(node), Value: encode(inventory)},
			Op{Verb: Set, Key: l.Keys().Slots(node), Value: encode(table)},
			Op{Verb: Set, Key: l.Keys().Ack(node), Value: encode(Ack{Version: Version, Sequence: 2, BootID: "boot 1"})})
	}
	for len(ops) > 0 {
		k := min(MaxOps, len(ops))
		_, err := l.Store().Txn(b.Context(), ops[:k])
		must.NoError(b, err)
		ops = ops[k:]
	}
}
