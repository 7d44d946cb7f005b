// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/shoenig/test/must"
)

// TestLifeOfAGang counts the transactions from grant to release.
func TestLifeOfAGang(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1", "n2")
		must.EqOp(t, "leader", load(t, l).Leader)
		gang := grant(t, l, lease, asked("a", 2, 8), "r1", "n1", "n2")
		must.Eq(t, []string{"r1.0 open"}, sortedSlots(load(t, l).Tables["n1"].Doc))
		for rank, node := range []string{"n1", "n2"} {
			_, err := l.Claim(t.Context(), node, claimOf("r1", rank, "alloc-"+node), anyone)
			must.NoError(t, err)
		}
		closeGang(t, l, lease, "a", "finished")
		acknowledge(t, l, "n1")
		acknowledge(t, l, "n2")
		s := load(t, l)
		_, err := BuildRelease(s, waiting(gang), Release{})
		must.EqError(t, err, "releasing gang a: not clear yet: slot r1.0 on node n1: claimed by allocation alloc-n1; slot r1.1 on node n2: claimed by allocation alloc-n2")
		must.NoError(t, l.Unclaim(t.Context(), "n1", SlotID{"r1", 0}, "alloc-n1"))
		must.NoError(t, l.Unclaim(t.Context(), "n2", SlotID{"r1", 1}, "alloc-n2"))
		acknowledge(t, l, "n1")
		missing, ok := Cleared(load(t, l), gang, Release{})
		must.False(t, ok)
		must.Eq(t, []string{"slot r1.1 on node n2: the node has not acknowledged it as clear"}, missing)
		acknowledge(t, l, "n2")
		s = load(t, l)
		change, err := BuildRelease(s, waiting(gang), Release{})
		must.NoError(t, err)
		commit(t, l, lease, change)
		s = load(t, l)
		must.Len(t, 0, s.Tables["n1"].Doc.Slots)
		must.EqOp(t, 5, s.Tables["n1"].Doc.Sequence)
		must.Len(t, 8, s.FreeGPUs("n1"))
		grant(t, l, lease, s.Gangs["a"].Doc, "r2", "n2", "n1")
	})
}

// TestCommitIsFenced holds invariant 3 against a leader that is not the leader any more (C6 of the references: without
// check-session its delayed transaction would land).
func TestCommitIsFenced(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		old := cluster(t, l, 8, "n1", "n2")
		s := load(t, l)
		gang, slots := placed(s, asked("a", 1, 8), "r1", []string{"n1"}, [][]string{s.FreeGPUs("n1")})
		delayed, err := BuildGrant(s, gang, slots)
		must.NoError(t, err)
		ops, err := l.changeOps(old, delayed)
		must.NoError(t, err)
		must.NoError(t, l.Store().DestroySession(t.Context(), old.Session))
		lands := func(ops []Op) {
			t.Helper()
			before := load(t, l)
			_, err := l.Store().Txn(t.Context(), ops)
			must.ErrorIs(t, err, ErrConflict)
			must.EqOp(t, before.Index, load(t, l).Index)
		}
		lands(ops) // nobody leads
		_, err = l.Commit(t.Context(), old, delayed)
		must.ErrorIs(t, err, ErrNotLeader)
		must.ErrorIs(t, err, ErrConflict)
		lease := lead(t, l, "next")
		lands(ops) // another leads
		_, err = l.CommitTable(t.Context(), old, "n9", Versioned[SlotTable]{})
		must.ErrorIs(t, err, ErrNotLeader)
		must.ErrorIs(t, l.PutRefusal(t.Context(), old, Refusal{Version: Version, Namespace: "default", Job: "j"}), ErrNotLeader)
		must.ErrorIs(t, l.DeleteRefusal(t.Context(), old, "default", "j"), ErrNotLeader)
		must.ErrorIs(t, l.DeleteRun(t.Context(), old, RunID{"a", "r1"}), ErrNotLeader)
		_, err = l.NewEpoch(t.Context(), old)
		must.ErrorIs(t, err, ErrNotLeader)

		// The same leader's own lost transaction can't land after its next decision about the gang either.
		ops, err = l.changeOps(lease, delayed)
		must.NoError(t, err)
		grant(t, l, lease, asked("a", 1, 8), "r2", "n2")
		lands(ops)
		_, err = l.Commit(t.Context(), lease, delayed)
		must.ErrorIs(t, err, ErrConflict)
		must.False(t, errors.Is(err, ErrNotLeader))
		must.Len(t, 0, load(t, l).Tables["n1"].Doc.Slots)
	})
}

// TestCommitLost lets the answer of a grant get lost; whichever way it went, the ledger stays whole and the next
// decision wins or fails cleanly.
func TestCommitLost(t *testing.T) {
	for name, fault := range map[string]Fault{"done": Lose, "never arrived": Drop, "arrives late": Late} {
		t.Run(name, func(t *testing.T) {
			m := NewMemory()
			l := New(m, "global")
			lease := cluster(t, l, 8, "n1", "n2")
			s := load(t, l)
			grantOn := func(node, reservation string) Change {
				gang, slots := placed(s, asked("a", 1, 8), reservation, []string{node}, [][]string{s.FreeGPUs(node)})
				change, err := BuildGrant(s, gang, slots)
				must.NoError(t, err)
				return change
			}
			m.Inject(func(c Call) Fault { return fault })
			_, err := l.Commit(t.Context(), lease, grantOn("n1", "r1"))
			must.ErrorIs(t, err, ErrUnknownOutcome)
			m.Inject(nil)
			_, err = l.Commit(t.Context(), lease, grantOn("n2", "r2"))
			m.Deliver()
			s = load(t, l)
			first, second := len(s.Tables["n1"].Doc.Slots), len(s.Tables["n2"].Doc.Slots)
			must.EqOp(t, 1, first+second, must.Sprint("two reservations of one gang"))
			must.EqOp(t, err == nil, second == 1)
		})
	}
}

func TestEpoch(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := lead(t, l, "leader")
		must.EqOp(t, "", load(t, l).EpochID)
		first, err := l.NewEpoch(t.Context(), lease)
		must.NoError(t, err)
		must.EqOp(t, 26, len(first.ID))
		must.EqOp(t, first.ID, load(t, l).EpochID)
		next, err := l.NewEpoch(t.Context(), lease)
		must.NoError(t, err)
		must.NotEq(t, first, next)
		must.EqOp(t, next.ID, load(t, l).EpochID)
	})
}

func TestRefusals(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := lead(t, l, "leader")
		refusal := Refusal{Version: Version, Namespace: "team a", Job: "a/b", Why: Reason{Code: "gang-of-many", Text: "one"}, At: epochTime}
		must.NoError(t, l.PutRefusal(t.Context(), lease, refusal))
		refusal.Why.Text = "two"
		must.NoError(t, l.PutRefusal(t.Context(), lease, refusal))
		must.Eq(t, refusal, load(t, l).Refusals["team a/a/b"].Doc)
		must.NoError(t, l.DeleteRefusal(t.Context(), lease, "team a", "a/b"))
		must.NoError(t, l.DeleteRefusal(t.Context(), lease, "team a", "a/b"))
		must.MapEmpty(t, load(t, l).Refusals)
	})
}

// wide is a gang of one member on each of n nodes, ready to be granted, with names as long as a site may have them.
func wide(tb testing.TB, l *Ledger, n int) (Lease, Snapshot, Gang, map[string][]Slot) {
	tb.Helper()
	nodes := names("gpu-node-row7-rack12-", n)
	lease := cluster(tb, l, 8, nodes...)
	s := load(tb, l)
	var gpus [][]string
	for _, node := range nodes {
		gpus = append(gpus, s.FreeGPUs(node))
	}
	gang, slots := placed(s, asked("wide", n, 8), "r1", nodes, gpus)
	return lease, s, gang, slots
}

// TestWidestGang grants, closes and releases a gang of 126 nodes, each in one transaction of exactly 128 operations.
func TestWidestGang(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease, s, gang, slots := wide(t, l, MaxNodes)
		change, err := BuildGrant(s, gang, slots)
		must.NoError(t, err)
		ops, err := l.changeOps(lease, change)
		must.NoError(t, err)
		must.Len(t, MaxOps, ops)
		indexes, err := l.Commit(t.Context(), lease, change)
		must.NoError(t, err)
		must.MapLen(t, 1+MaxNodes, indexes)
		closeGang(t, l, lease, "wide", strings.Repeat("why ", 100))
		for node := range slots {
			acknowledge(t, l, node)
		}
		change, err = BuildRelease(load(t, l), waiting(gang), Release{Remove: true})
		must.NoError(t, err)
		commit(t, l, lease, change)
		s = load(t, l)
		must.MapEmpty(t, s.Gangs)
		for node := range slots {
			must.Len(t, 8, s.FreeGPUs(node))
		}
	})
}

// TestWidestGangOfLongNames: how nodes are called does not lower the limit.
func TestWidestGangOfLongNames(t *testing.T) {
	l := New(NewMemory(), "global")
	_, s, gang, slots := wide(t, l, MaxNodes)
	long := func(node string) string { return node + strings.Repeat("x", 63-len(node)) }
	for i := range gang.Reservation.Placements {
		p := &gang.Reservation.Placements[i]
		before := p.Node
		p.Node, p.Address = long(before), "100.100.100.100"
		s.Nodes[p.Node], s.NodeSessions[p.Node], s.Tables[p.Node], s.Acks[p.Node], slots[p.Node] =
			s.Nodes[before], s.NodeSessions[before], s.Tables[before], s.Acks[before], slots[before]
		delete(slots, before)
	}
	_, err := BuildGrant(s, gang, slots)
	must.NoError(t, err)
}

func TestTooWideGang(t *testing.T) {
	l := New(NewMemory(), "global")
	_, s, gang, slots := wide(t, l, MaxNodes+1)
	_, err := BuildGrant(s, gang, slots)
	var large *TooLargeError
	must.True(t, errors.As(err, &large))
	must.EqOp(t, 127, large.Nodes)
	must.ErrorIs(t, err, ErrTooLarge)
	must.EqError(t, err, "too large for the ledger: gang wide: it spans 127 nodes; the limit is 126")
}

// TestFullestGang fills what the limits allow: every table and the gang document at their largest must still fit into
// one transaction, or a granted gang could never be closed.
func TestFullestGang(t *testing.T) {
	l := New(NewMemory(), strings.Repeat("r", 63))
	change := Change{Gang: &Versioned[Gang]{Doc: asked(strings.Repeat("g", 63), 126, 1), Index: 1 << 40}, Tables: map[string]Versioned[SlotTable]{}}
	pad := func(doc document, limit int) string { return strings.Repeat("x", limit-len(encode(doc))) }
	change.Gang.Doc.Avoid = []string{""}
	change.Gang.Doc.Avoid[0] = pad(change.Gang.Doc, MaxGangBytes)
	for i := range MaxNodes {
		table := SlotTable{Version: Version, Sequence: 1, Slots: []Slot{{}}}
		table.Slots[0].Owner.Task = pad(table, MaxSlotTableBytes)
		change.Tables[fmt.Sprintf("%03d", i)+strings.Repeat("n", 250)] = Versioned[SlotTable]{Doc: table, Index: 1 << 40}
	}
	ops, err := l.changeOps(Lease{Session: strings.Repeat("s", 36), Key: l.Keys().Leader()}, change)
	must.NoError(t, err)
	must.NoError(t, checkSize(ops))
}

// TestFullTable says how many single-GPU slots a node takes.
func TestFullTable(t *testing.T) {
	longest := strings.Repeat("n", 63)
	cases := map[string]struct {
		gpus, slots int
		name        string
	}{
		"8 GPUs, 8 slots, usual names":   {8, 8, "resnet50-imagenet-seed-17"},
		"16 GPUs, 16 slots, usual names": {16, 16, "resnet50-imagenet-seed-17"},
		"8 GPUs, longest names":          {8, 5, longest},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := New(NewMemory(), "global")
			node := inventory("n1", c.gpus)
			node.MachineID, node.BootID = strings.Repeat("0", 32), strings.Repeat("0", 36)
			for i := range node.Machine.GPUs {
				node.Machine.GPUs[i].UUID = fmt.Sprintf("GPU-%036d", i)
			}
			lease := cluster(t, l, c.gpus)
			join(t, l, lease, node)
			granted := 0
			for i := range c.gpus {
				s := load(t, l)
				gang := asked(fmt.Sprintf("%s%02d", c.name[:len(c.name)-2], i), 1, 1)
				gang.Spec.Groups[0].Group, gang.Spec.Groups[0].Task = c.name, c.name
				if c.name != longest {
					gang.Spec.Groups[0].Group, gang.Spec.Groups[0].Task = "worker", "train"
				}
				gang, slots := placed(s, gang, fmt.Sprintf("%012d", i), []string{"n1"}, [][]string{s.FreeGPUs("n1")[:1]})
				change, err := BuildGrant(s, gang, slots)
				if err != nil {
					must.ErrorIs(t, err, ErrTooLarge)
					break
				}
				commit(t, l, lease, change)
				granted++
			}
			must.EqOp(t, c.slots, granted)
			for name := range load(t, l).Gangs {
				closeGang(t, l, lease, name, strings.Repeat("y", 100))
			}
			must.LessEq(t, (c.gpus+7)/8*MaxSlotTableBytes, len(encode(load(t, l).Tables["n1"].Doc)))
		})
	}
}

// TestGrantRefusals is what BuildGrant refuses however sure the caller is.
func TestGrantRefusals(t *testing.T) {
	cases := map[string]struct {
		spoil func(s *Snapshot, gang *Gang, slots map[string][]Slot)
		want  string
	}{
		"no epoch":         {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { s.EpochID = "" }, "granting gang a: the ledger has no epoch: it is new or was lost"},
		"not reserved":     {func(_ *Snapshot, g *Gang, _ map[string][]Slot) { g.State = GangWaiting }, "granting gang a: its new document must be reserved, with a reservation"},
		"bad reservation":  {func(_ *Snapshot, g *Gang, _ map[string][]Slot) { g.Reservation.ID = "r.1" }, `granting gang a: reservation "r.1": an ID must not hold a dot, a slash or an @`},
		"holds one":        {func(s *Snapshot, g *Gang, _ map[string][]Slot) { s.Gangs["a"] = Versioned[Gang]{Doc: *g} }, "granting gang a: it holds reservation r1"},
		"a member missing": {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { delete(m, "n2") }, "granting gang a: group worker has 1 of 2 members"},
		"a member twice":   {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"] = append(m["n1"], m["n1"][0]) }, "granting gang a: rank 0 has two slots"},
		"another owner": {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].Owner.Job = "b" },
			"granting gang a: rank 0: owner {Gang:a Value:a Namespace:default Job:b CreateIndex:7 Group:worker Task:train}, want {Gang:a Value:a Namespace:default Job:a CreateIndex:7 Group:worker Task:train}"},
		"too few GPUs":       {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].GPUs = m["n1"][0].GPUs[1:] }, "granting gang a: rank 0 has 3 GPUs, want 4"},
		"another size":       {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].Size = 3 }, "granting gang a: rank 0 of 3 in reservation r1 is not of reservation r1 of size 2"},
		"closing from birth": {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].State = SlotClosing }, "granting gang a: rank 0: a new slot must be open"},
		"another driver":     {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].Driver = "docker" }, `granting gang a: rank 0: driver "docker", want "muster"`},
		"another node":       {func(_ *Snapshot, g *Gang, _ map[string][]Slot) { g.Reservation.Placements[0].Node = "n2" }, "granting gang a: rank 0 is in group worker on node n1, but its document places it elsewhere"},
		"another boot":       {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].BootID = "boot 0" }, "granting gang a: slot r1.0 is for another machine or boot of node n1"},
		"unknown GPU":        {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].GPUs[0] = "GPU-x" }, "granting gang a: GPU GPU-x of node n1: not in the inventory"},
		"a GPU twice":        {func(_ *Snapshot, _ *Gang, m map[string][]Slot) { m["n1"][0].GPUs[1] = m["n1"][0].GPUs[0] }, "granting gang a: GPU GPU-n1-00 of node n1: in slot r1.0"},
		"a GPU that is taken": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			change(s.Tables, "n1", func(t *SlotTable) { t.Slots = []Slot{{Reservation: "r0", GPUs: []string{gpuName("n1", 2)}}} })
		}, "granting gang a: GPU GPU-n1-02 of node n1: in slot r0.0"},
		"an unhealthy GPU": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			s.Health["n1"] = Versioned[Health]{Doc: Health{GPUs: map[string]gpu.Health{gpuName("n1", 1): {State: gpu.Lost, Reason: "XID 79"}}}}
		}, "granting gang a: GPU GPU-n1-01 of node n1: lost: XID 79"},
		"an unmanaged GPU": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			change(s.Nodes, "n1", func(n *Node) { n.Unmanaged = []string{gpuName("n1", 1)} })
		}, "granting gang a: GPU GPU-n1-01 of node n1: unmanaged"},
		"a GPU in MIG mode": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			change(s.Nodes, "n1", func(n *Node) { n.Machine.GPUs[1].MIG = true })
		}, "granting gang a: GPU GPU-n1-01 of node n1: in MIG mode"},
		"unknown node": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { delete(s.Nodes, "n1") }, "granting gang a: node n1: not in the inventory"},
		"silent node":  {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { s.NodeSessions["n1"] = "" }, "granting gang a: node n1: silent: its device plugin has lost its session"},
		"node problem": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			change(s.Nodes, "n1", func(n *Node) { n.Problem = "NVML is missing" })
		}, "granting gang a: node n1: NVML is missing"},
		"no table": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { delete(s.Tables, "n1") }, "granting gang a: the slot table of node n1: not in the ledger"},
		"newer table": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			delete(s.Tables, "n1")
			s.Newer = []string{"muster/global/slots/n1"}
		}, "granting gang a: the slot table of node n1: written by a newer version of Muster"},
		"newer health": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { s.Newer = []string{"muster/global/health/n1"} }, "granting gang a: node n1: some of its documents are of a newer version of Muster"},
		"not acked":    {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { delete(s.Acks, "n1") }, "granting gang a: node n1: it has not acknowledged its slot table since it started"},
		"booted since": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			change(s.Acks, "n1", func(a *Ack) { a.BootID = "boot 0" })
		}, "granting gang a: node n1: it has not acknowledged its slot table since it started"},
		"set back": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { change(s.Acks, "n1", func(a *Ack) { a.Sequence = 5 }) }, "granting gang a: the ledger was set back: node n1 has acted on slot table 5, and the ledger has 2"},
		"another epoch": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) { s.EpochID = "next" },
			"granting gang a: it has not said yet what it remembers of its slots, which each new leader asks first"},
		"not answered": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			change(s.Tables, "n1", func(t *SlotTable) { t.Rebuild = true })
		}, "granting gang a: it has not said yet what it remembers of its slots, which each new leader asks first"},
		"acked to an earlier leader": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			change(s.Acks, "n1", func(a *Ack) { a.Epoch = "before" })
		}, "granting gang a: node n1: it has not acknowledged its slot table since it started"},
		"stray claim": {func(s *Snapshot, _ *Gang, _ map[string][]Slot) {
			s.Claims["n1"] = map[SlotID]Versioned[Claim]{{"r0", 3}: {Doc: claimOf("r0", 3, "alloc-9")}}
		}, "granting gang a: node n1: allocation alloc-9 has a claim on slot r0.3, which the ledger does not have"},
		"large document": {func(_ *Snapshot, g *Gang, _ map[string][]Slot) { g.Avoid = []string{strings.Repeat("n", 24<<10)} },
			"too large for the ledger: gang a: its document has 25256 bytes; the limit is 21760"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := New(NewMemory(), "global")
			cluster(t, l, 4, "n1", "n2")
			s := load(t, l)
			gang, slots := placed(s, asked("a", 2, 4), "r1", []string{"n1", "n2"}, [][]string{s.FreeGPUs("n1"), s.FreeGPUs("n2")})
			_, err := BuildGrant(s, gang, slots)
			must.NoError(t, err)
			c.spoil(&s, &gang, slots)
			_, err = BuildGrant(s, gang, slots)
			must.EqError(t, err, c.want)
		})
	}
}

func change[T any](in map[string]Versioned[T], name string, f func(*T)) {
	doc := in[name]
	f(&doc.Doc)
	in[name] = doc
}

// TestReleaseRefusals is what must not free a GPU.
func TestReleaseRefusals(t *testing.T) {
	cases := map[string]struct {
		spoil func(s *Snapshot, gang *Gang)
		want  string // empty: released
	}{
		"acknowledged": {func(*Snapshot, *Gang) {}, ""},
		"still open": {func(s *Snapshot, _ *Gang) { change(s.Tables, "n1", func(t *SlotTable) { t.Slots[0].State = SlotOpen }) },
			"slot r1.0 on node n1: it is open"},
		"an older acknowledgement": {func(s *Snapshot, _ *Gang) { change(s.Acks, "n1", func(a *Ack) { a.Sequence = 3 }) },
			"slot r1.0 on node n1: the node has acted on table 3, and it is closing since 4"},
		"another slot acknowledged": {func(s *Snapshot, _ *Gang) { change(s.Acks, "n1", func(a *Ack) { a.Clear = []string{"r0.0"} }) },
			"slot r1.0 on node n1: the node has not acknowledged it as clear"},
		"nothing acknowledged": {func(s *Snapshot, _ *Gang) { delete(s.Acks, "n1") }, "slot r1.0 on node n1: the node has acknowledged nothing"},
		"silent": {func(s *Snapshot, _ *Gang) {
			delete(s.Acks, "n1")
			s.NodeSessions["n1"] = ""
			change(s.Nodes, "n1", func(n *Node) { n.BootID = "boot 2" })
		}, "slot r1.0 on node n1: the node has acknowledged nothing"},
		"a node that is forgotten": {func(s *Snapshot, _ *Gang) { delete(s.Acks, "n1"); delete(s.Nodes, "n1") }, "slot r1.0 on node n1: the node has acknowledged nothing"},
		"started anew": {func(s *Snapshot, _ *Gang) {
			delete(s.Acks, "n1")
			change(s.Nodes, "n1", func(n *Node) { n.BootID = "boot 2" })
		}, ""},
		"a claim of a newer version": {func(s *Snapshot, _ *Gang) {
			s.Claims["n1"] = map[SlotID]Versioned[Claim]{{"r1", 0}: {Doc: Claim{Reservation: "r1"}}}
		}, "slot r1.0 on node n1: claimed by allocation "},
		"a table that is gone": {func(s *Snapshot, _ *Gang) { delete(s.Tables, "n1") }, "the slot table of node n1: not in the ledger; the ledger has 0 of its 1 slots"},
		"slots that are gone":  {func(s *Snapshot, _ *Gang) { change(s.Tables, "n1", func(t *SlotTable) { t.Slots = nil }) }, "the ledger has 0 of its 1 slots"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := New(NewMemory(), "global")
			lease := cluster(t, l, 4, "n1")
			gang := waiting(grant(t, l, lease, asked("a", 1, 4), "r1", "n1"))
			closeGang(t, l, lease, "a", "test")
			acknowledge(t, l, "n1")
			s := load(t, l)
			c.spoil(&s, &gang)
			_, err := BuildRelease(s, gang, Release{})
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.EqError(t, err, "releasing gang a: not clear yet: "+c.want)
		})
	}
	t.Run("vouched for", func(t *testing.T) {
		l := New(NewMemory(), "global")
		lease := cluster(t, l, 4, "n1")
		gang := grant(t, l, lease, asked("a", 1, 4), "r1", "n1")
		_, err := BuildRelease(load(t, l), waiting(gang), Release{Vouched: true})
		must.EqError(t, err, "releasing gang a: not clear yet: slot r1.0 on node n1: it is open", must.Sprint("its tasks must be told first"))
		closeGang(t, l, lease, "a", "test")
		change, err := BuildRelease(load(t, l), waiting(gang), Release{Vouched: true})
		must.NoError(t, err)
		commit(t, l, lease, change)
		must.SliceEmpty(t, load(t, l).Tables["n1"].Doc.Slots)
	})
	t.Run("a ledger that was set back", func(t *testing.T) {
		l := New(NewMemory(), "global")
		lease := cluster(t, l, 4, "n1")
		gang := grant(t, l, lease, asked("a", 1, 4), "r1", "n1")
		must.NoError(t, l.PublishAck(t.Context(), "n1", Ack{Version: Version, Epoch: load(t, l).EpochID, Sequence: 9, BootID: "boot 1"}))
		_, err := BuildClose(load(t, l), closing(gang), "test")
		must.ErrorIs(t, err, ErrSetBack)
	})
	t.Run("no reservation", func(t *testing.T) {
		s := Snapshot{Gangs: map[string]Versioned[Gang]{"a": {Doc: asked("a", 1, 4)}}}
		_, err := BuildRelease(s, asked("a", 1, 4), Release{})
		must.EqError(t, err, "releasing gang a: it has no reservation")
		_, err = BuildClose(s, asked("b", 1, 4), "")
		must.EqError(t, err, "closing gang b: not in the ledger")
	})
}

// TestBuildersChangeNothing holds builders to the rule that snapshots are shared.
func TestBuildersChangeNothing(t *testing.T) {
	l := New(NewMemory(), "global")
	lease := cluster(t, l, 8, "n1")
	grant(t, l, lease, asked("a", 1, 4), "r1", "n1")
	s := load(t, l)
	before := string(encode(s.Tables["n1"].Doc))
	_, err := BuildClose(s, closing(s.Gangs["a"].Doc), "test")
	must.NoError(t, err)
	gang, slots := placed(s, asked("b", 1, 4), "r2", []string{"n1"}, [][]string{s.FreeGPUs("n1")})
	_, err = BuildGrant(s, gang, slots)
	must.NoError(t, err)
	must.EqOp(t, before, string(encode(s.Tables["n1"].Doc)))
	must.Eq(t, []string{"n1"}, slices.Collect(maps.Keys(s.Tables)))
}

// TestSlotWhy holds the reason of a closing slot to its size, escapes of JSON included.
func TestSlotWhy(t *testing.T) {
	for text, want := range map[string]string{
		"preempted":                              "preempted",
		"preempted by gang big of queue prod":    "preempted by gang big of...",
		strings.Repeat("x", 40):                  strings.Repeat("x", 29) + "...",
		strings.Repeat("ü", 20):                  strings.Repeat("ü", 14) + "...",
		"job \"<a>\" stopped":                    "job   a   stopped",
		"rank 1: exit 1\nsee its log for more\n": "rank 1: exit 1 see its log...",
	} {
		got := cut(text, MaxSlotWhyBytes)
		must.EqOp(t, want, got)
		quoted, err := json.Marshal(got)
		must.NoError(t, err)
		must.LessEq(t, MaxSlotWhyBytes+2, len(quoted))
	}
}
