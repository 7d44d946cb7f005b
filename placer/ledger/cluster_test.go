// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/shoenig/test/must"
)

// epochTime is the time of all test documents.
var epochTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func gpuName(node string, i int) string { return fmt.Sprintf("GPU-%s-%02d", node, i) }

// inventory is a node with some GPUs.
func inventory(node string, gpus int) Node {
	n := Node{Version: Version, Node: node, NodeID: "id of " + node, Address: "10.0.0.1", MachineID: "machine of " + node, BootID: "boot 1"}
	for i := range gpus {
		n.Machine.GPUs = append(n.Machine.GPUs, gpu.GPU{UUID: gpuName(node, i), Index: i, Model: "H100", MemoryMiB: 81920})
	}
	return n
}

// lead makes a lease without a campaign.
func lead(tb testing.TB, l *Ledger, name string) Lease {
	tb.Helper()
	id, err := l.Store().CreateSession(tb.Context(), SessionSpec{Name: name})
	must.NoError(tb, err)
	tb.Cleanup(func() { _ = l.Store().DestroySession(tb.Context(), id) })
	lease := Lease{Session: id, Key: l.Keys().Leader()}
	eventually(tb, func() error {
		_, err := l.Store().Txn(tb.Context(), []Op{{Verb: Lock, Key: lease.Key, Value: []byte(`{"name":"` + name + `"}`), Session: id}})
		return err
	})
	return lease
}

// join makes a node take part: inventory, table, acknowledgement.
func join(tb testing.TB, l *Ledger, lease Lease, n Node) {
	tb.Helper()
	id, err := l.Store().CreateSession(tb.Context(), NodeSession(n.Node))
	must.NoError(tb, err)
	must.NoError(tb, l.PublishNode(tb.Context(), id, n))
	hear(tb, l, lease, n.Node, Remembered{}, n.BootID)
}

// hear asks a node what it remembers, lets it answer, and writes down what follows.
func hear(tb testing.TB, l *Ledger, lease Lease, node string, remembered Remembered, boot string, clear ...string) {
	tb.Helper()
	ask(tb, l, lease, node)
	answer(tb, l, node, remembered, boot, clear...)
	restoreTable(tb, l, lease, node)
}

func answer(tb testing.TB, l *Ledger, node string, remembered Remembered, boot string, clear ...string) {
	tb.Helper()
	table := load(tb, l).Tables[node].Doc
	remembered.Asked = table.Sequence
	must.NoError(tb, l.PublishAck(tb.Context(), node, Ack{
		Version: Version, Epoch: table.Epoch, Sequence: table.Sequence, BootID: boot, Clear: clear, Remembered: &remembered,
	}))
}

func restoreTable(tb testing.TB, l *Ledger, lease Lease, node string) {
	tb.Helper()
	restored, due := BuildRestore(load(tb, l), node)
	must.True(tb, due)
	_, err := l.CommitTable(tb.Context(), lease, node, restored)
	must.NoError(tb, err)
}

func ask(tb testing.TB, l *Ledger, lease Lease, node string) {
	tb.Helper()
	asking, due := BuildAsk(load(tb, l), node)
	must.True(tb, due)
	_, err := l.CommitTable(tb.Context(), lease, node, asking)
	must.NoError(tb, err)
}

// cluster is a ledger with a leader and nodes of some GPUs each.
func cluster(tb testing.TB, l *Ledger, gpus int, nodes ...string) Lease {
	tb.Helper()
	lease := lead(tb, l, "leader")
	_, err := l.NewEpoch(tb.Context(), lease)
	must.NoError(tb, err)
	for _, node := range nodes {
		join(tb, l, lease, inventory(node, gpus))
	}
	return lease
}

// asked is a gang that waits, of one group.
func asked(name string, members, gpus int) Gang {
	group := GroupSpec{Group: "worker", Value: name, Count: members, GPUs: gpus, Task: "train", Driver: "muster"}
	return Gang{
		Version: Version, Name: name, Namespace: "default", Job: name, CreateIndex: 7, State: GangWaiting, Submitted: epochTime, Since: epochTime,
		Spec: Spec{Groups: []GroupSpec{group}, Shape: "shape", Queue: "default", NVLink: "preferred", Locality: "any", RelaxAfterS: 600},
	}
}

// placed is a gang as it would be granted, with one member on each node named, and each member's GPUs.
func placed(s Snapshot, gang Gang, reservation string, nodes []string, gpus [][]string) (Gang, map[string][]Slot) {
	group := gang.Spec.Groups[0]
	gang.State, gang.Attempts = GangReserved, gang.Attempts+1
	gang.Reservation = &Grant{ID: reservation, At: epochTime, Shape: gang.Spec.Shape, MasterPort: 29500}
	slots := map[string][]Slot{}
	for rank, node := range nodes {
		n := s.Nodes[node].Doc
		gang.Reservation.Placements = append(gang.Reservation.Placements,
			Placement{Node: node, Address: n.Address, Group: group.Group, Rank: rank, Members: 1, GPUs: group.GPUs})
		slots[node] = append(slots[node], Slot{
			Reservation: reservation, Rank: rank, Size: gang.Spec.Size(), Driver: group.Driver, GPUs: gpus[rank], State: SlotOpen,
			Owner: Owner{Gang: gang.Name, Value: group.Value, Namespace: gang.Namespace, Job: gang.Job, CreateIndex: gang.CreateIndex,
				Group: group.Group, Task: group.Task},
			MachineID: n.MachineID, BootID: n.BootID,
		})
	}
	return gang, slots
}

func load(tb testing.TB, l *Ledger) Snapshot {
	tb.Helper()
	s, err := l.Load(tb.Context())
	must.NoError(tb, err)
	return s
}

// grant gives a gang the first free GPUs of each node named, one member each.
func grant(tb testing.TB, l *Ledger, lease Lease, gang Gang, reservation string, nodes ...string) Gang {
	tb.Helper()
	s := load(tb, l)
	taken := map[string]int{}
	var gpus [][]string
	for _, node := range nodes {
		k := gang.Spec.Groups[0].GPUs
		gpus = append(gpus, s.FreeGPUs(node)[taken[node]:taken[node]+k])
		taken[node] += k
	}
	gang, slots := placed(s, gang, reservation, nodes, gpus)
	change, err := BuildGrant(s, gang, slots)
	must.NoError(tb, err)
	commit(tb, l, lease, change)
	return gang
}

func commit(tb testing.TB, l *Ledger, lease Lease, change Change) {
	tb.Helper()
	_, err := l.Commit(tb.Context(), lease, change)
	must.NoError(tb, err)
}

// closeGang starts to end a gang.
func closeGang(tb testing.TB, l *Ledger, lease Lease, name, why string) {
	tb.Helper()
	s := load(tb, l)
	change, err := BuildClose(s, closing(s.Gangs[name].Doc), why)
	must.NoError(tb, err)
	commit(tb, l, lease, change)
}

func closing(gang Gang) Gang {
	gang.State, gang.After = GangClosing, GangWaiting
	return gang
}

func waiting(gang Gang) Gang {
	gang.State, gang.After, gang.Reservation = GangWaiting, "", nil
	return gang
}

// acknowledge does a device plugin's part: closing slots without a claim are clear.
func acknowledge(tb testing.TB, l *Ledger, node string) {
	tb.Helper()
	table, err := l.WatchTable(tb.Context(), node, 0, 0)
	must.NoError(tb, err)
	claims, _, err := l.WatchClaims(tb.Context(), node, 0, 0)
	must.NoError(tb, err)
	ack := Ack{Version: Version, Epoch: table.Doc.Epoch, Sequence: table.Doc.Sequence, BootID: "boot 1"}
	for _, slot := range table.Doc.Slots {
		if _, claimed := claims[slot.ID()]; slot.State == SlotClosing && !claimed {
			ack.Clear = append(ack.Clear, slot.ID().String())
		}
	}
	must.NoError(tb, l.PublishAck(tb.Context(), node, ack))
}

func claimOf(reservation string, rank int, allocation string) Claim {
	return Claim{
		Version: Version, Reservation: reservation, Rank: rank, Allocation: allocation, Task: "train",
		Namespace: "default", Job: "job", By: "driver", BootID: "boot 1", At: epochTime,
	}
}

func anyone(Slot) error { return nil }

func names(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return list
}

func sortedSlots(t SlotTable) []string {
	var ids []string
	for _, slot := range t.Slots {
		ids = append(ids, slot.ID().String()+" "+string(slot.State))
	}
	slices.Sort(ids)
	return ids
}
