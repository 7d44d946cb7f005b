// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// TestInvariants tries to break the invariants of the ledger with any order of grants, closings, releases, claims, ends,
// acknowledgements, reboots, changes of leader, lost answers, transactions that arrive late, decisions on old snapshots by
// old leaders, snapshots restored, the ledger lost, and each step of putting it in order. After each step the whole ledger
// is compared with what a model of the machines knows; in the end a leader puts everything in order.
func TestInvariants(t *testing.T) {
	setFlag(t, "rapid.steps", "60")
	t.Run("memory", func(t *testing.T) {
		rapid.Check(t, func(r *rapid.T) { newMachine(t, r, NewMemory(), "global").run() })
	})
	t.Run("consul", func(t *testing.T) {
		store := NewConsul(consulClient(t))
		setFlag(t, "rapid.checks", "5")
		rapid.Check(t, func(r *rapid.T) { newMachine(t, r, store, region(t)).run() })
	})
}

// setFlag sets one of rapid's flags for a test.
func setFlag(t *testing.T, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	before := f.Value.String()
	must.NoError(t, f.Value.Set(value))
	t.Cleanup(func() { must.NoError(t, f.Value.Set(before)) })
}

const (
	machineNodes = 3
	machineGPUs  = 4
	machineGangs = 2
)

// machine drives one ledger and knows what really runs.
type machine struct {
	*rapid.T
	ctx   context.Context
	l     *Ledger
	store *faultyStore
	clean *Ledger // the same ledger without faults

	term    Lease // of the current leader
	past    []Lease
	old     []Snapshot // to decide on
	granted int
	saved   *Saved // memory only

	epoch   string   // that the leader has given the ledger
	seen    Snapshot // that the leader has read last
	doubted map[string]bool

	nodes   map[string]*machineNode
	procs   map[SlotID]proc // what runs on GPUs
	vouched map[string]bool // reservations of which an operator has said that nothing uses them
}

// machineNode is what a device plugin remembers, on disk.
type machineNode struct {
	boot  int
	table SlotTable // last acted on
	asked *Lineage  // the question that it answers now; nil: none
	clear []string
}

type proc struct {
	node, allocation string
	gpus             []string
}

func (n machineNode) bootID() string { return fmt.Sprintf("boot %d", n.boot) }

// faultyStore makes transactions get lost or late, for any Store.
type faultyStore struct {
	Store
	fault Fault // of the next transaction
	late  [][]Op
}

func (s *faultyStore) Txn(ctx context.Context, ops []Op) ([]Entry, error) {
	fault := s.fault
	s.fault = None
	switch fault {
	case Lose:
		_, _ = s.Store.Txn(ctx, ops)
	case Late:
		s.late = append(s.late, ops)
	case Refuse:
		return nil, errRefused
	case None:
		return s.Store.Txn(ctx, ops)
	case Drop:
	}
	return nil, ErrUnknownOutcome
}

func newMachine(t *testing.T, r *rapid.T, store Store, region string) *machine {
	t.Helper()
	faulty := &faultyStore{Store: store}
	m := &machine{
		T: r, ctx: t.Context(), l: New(faulty, region), clean: New(store, region), store: faulty,
		doubted: map[string]bool{}, nodes: map[string]*machineNode{}, procs: map[SlotID]proc{}, vouched: map[string]bool{},
	}
	for i := range machineNodes {
		node := fmt.Sprintf("n%d", i)
		m.nodes[node] = &machineNode{boot: 1}
		m.publish(node)
	}
	m.elect()
	m.settle()
	return m
}

func (m *machine) run() {
	actions := map[string]func(*rapid.T){
		"grant": m.grant, "grant more": m.grant, "close": m.close, "release": m.release, "claim": m.claim, "end": m.end, "acknowledge": m.acknowledge,
		"die": m.die, "vouch": m.vouch, "vouch again": m.vouchOrphan,
		"sweep": m.sweep, "look": m.look, "look again": m.look, "acknowledge again": m.acknowledge,
		"ask": func(*rapid.T) { m.ask(m.anyNode()) }, "restore": func(*rapid.T) { m.restore(m.anyNode()) },
		"adopt": func(*rapid.T) { m.adopt() }, "forget": func(*rapid.T) { m.forget() }, "reassert": func(*rapid.T) { m.reassert() },
		"elect": func(*rapid.T) { m.elect() }, "late": func(*rapid.T) { m.deliver() }, "reboot": m.reboot, "": m.check,
	}
	if _, ok := m.store.Store.(*Memory); ok {
		actions["save"], actions["set back"], actions["lose"] = m.save, m.setBack, m.lose
	}
	m.Repeat(actions)
	m.wrapUp()
}

func (m *machine) ok(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *machine) load() Snapshot {
	m.Helper()
	s, err := m.clean.Load(m.ctx)
	m.ok(err)
	return s
}

func pick[T any](m *machine, label string, from []T) T {
	return rapid.SampledFrom(from).Draw(m.T, label)
}

// snapshot is what a leader decides on: mostly the present, sometimes an old one.
func (m *machine) snapshot() Snapshot {
	if i := rapid.IntRange(0, 12).Draw(m.T, "snapshot"); i < len(m.old) {
		return m.old[i]
	}
	return m.read()
}

// read is the leader's reading of the ledger. One who sees that it was set back gives up, and another one starts over.
func (m *machine) read() Snapshot {
	s := m.load()
	if !m.current(s) {
		m.elect()
		s = m.load()
	}
	m.seen = s
	return s
}

// current says whether the ledger is the leader's: it would not decide anything on another one.
func (m *machine) current(s Snapshot) bool { return s.EpochID == m.epoch && !s.SetBackFrom(m.seen) }

// lease is whose transaction it is: mostly the leader's, sometimes that of one who led before.
func (m *machine) lease() Lease {
	if i := rapid.IntRange(0, 12).Draw(m.T, "lease"); i < min(len(m.past), 4) {
		return m.past[len(m.past)-1-i]
	}
	return m.term
}

// decide commits a change with a fault. Changes of those who led before must not land.
func (m *machine) decide(change Change, err error) {
	if err != nil {
		return
	}
	m.commit(func(lease Lease) error {
		_, err := m.l.Commit(m.ctx, lease, change)
		return err
	})
}

func (m *machine) commit(write func(Lease) error) {
	m.store.fault = pick(m, "fault", []Fault{None, None, None, Lose, Drop, Late, Late, Refuse})
	lease := m.lease()
	before := m.load()
	err := write(lease)
	if lease != m.term {
		if err == nil {
			m.Fatalf("a transaction of an old leader landed")
		}
		m.same(before, m.load())
	}
}

// same asserts that nobody changed slots or gangs.
func (m *machine) same(a, b Snapshot) {
	m.Helper()
	for node := range a.Tables {
		if a.Tables[node].Index != b.Tables[node].Index {
			m.Fatalf("the table of %s changed", node)
		}
	}
	if len(a.Gangs) != len(b.Gangs) {
		m.Fatalf("gangs changed")
	}
}

func (m *machine) grant(*rapid.T) {
	s := m.snapshot()
	gang := asked(fmt.Sprintf("g%d", rapid.IntRange(0, machineGangs-1).Draw(m.T, "gang")), rapid.IntRange(1, 3).Draw(m.T, "members"), rapid.IntRange(1, 3).Draw(m.T, "gpus"))
	var nodes []string
	var gpus [][]string
	blind := rapid.IntRange(0, 4).Draw(m.T, "blind") == 0 // takes any GPUs, as a wrong policy would
	taken := map[string]bool{}
	for range gang.Spec.Size() {
		node := fmt.Sprintf("n%d", rapid.IntRange(0, machineNodes-1).Draw(m.T, "node"))
		free := slices.DeleteFunc(s.FreeGPUs(node), func(uuid string) bool { return taken[uuid] })
		if blind {
			free = nil
			for i := range machineGPUs {
				free = append(free, gpuName(node, i))
			}
		}
		k := gang.Spec.Groups[0].GPUs
		if len(free) < k {
			return
		}
		for _, uuid := range free[:k] {
			taken[uuid] = true
		}
		nodes, gpus = append(nodes, node), append(gpus, free[:k])
	}
	m.granted++
	gang, slots := placed(s, gang, fmt.Sprintf("r%d", m.granted), nodes, gpus)
	m.decide(BuildGrant(s, gang, slots))
}

func (m *machine) close(*rapid.T) {
	s := m.snapshot()
	if name, ok := m.anyGang(s); ok {
		m.decide(BuildClose(s, closing(s.Gangs[name].Doc), "test"))
	}
}

func (m *machine) release(*rapid.T) {
	s := m.snapshot()
	if name, ok := m.anyGang(s); ok {
		how := Release{Remove: rapid.Bool().Draw(m.T, "remove"), LeftBehind: map[string]bool{}}
		if rapid.IntRange(0, 3).Draw(m.T, "leave behind") == 0 {
			how.LeftBehind[m.anyNode()] = true
		}
		m.decide(BuildRelease(s, waiting(s.Gangs[name].Doc), how))
	}
}

// sweep looks after slots of no gang.
func (m *machine) sweep(*rapid.T) {
	s, node := m.snapshot(), m.anyNode()
	table, due, err := BuildSweep(s, node, "")
	if err != nil || !due {
		return
	}
	m.commitTable(node, table)
}

func (m *machine) commitTable(node string, table Versioned[SlotTable]) {
	m.commit(func(lease Lease) error {
		_, err := m.l.CommitTable(m.ctx, lease, node, table)
		return err
	})
}

func (m *machine) anyGang(s Snapshot) (string, bool) {
	names := slices.Sorted(maps.Keys(s.Gangs))
	if len(names) == 0 {
		return "", false
	}
	return pick(m, "gang", names), true
}

// deliver lets late transactions arrive: each lands whole or not at all, and none of an old leader.
func (m *machine) deliver() {
	for _, ops := range m.store.late {
		before := m.load()
		_, err := m.store.Txn(m.ctx, ops)
		if ops[0].Verb == CheckSession && ops[0].Session != m.term.Session {
			if err == nil {
				m.Fatal("a late transaction of an old leader landed")
			}
			m.same(before, m.load())
		}
	}
	m.store.late = nil
}

// look is a device plugin that sees its table. It takes one of the same epoch that is not older, and one of another epoch
// only if it has answered in it.
func (m *machine) look(*rapid.T) { m.lookAt(m.anyNode()) }

func (m *machine) lookAt(node string) {
	table, err := m.clean.WatchTable(m.ctx, node, 0, 0)
	if err != nil {
		return
	}
	n, next := m.nodes[node], table.Doc
	switch {
	case next.Rebuild:
		n.asked = &Lineage{Epoch: next.Epoch, Sequence: next.Sequence}
	case n.asked != nil && next.Epoch == n.asked.Epoch && next.Sequence > n.asked.Sequence,
		next.Epoch == n.table.Epoch && next.Sequence >= n.table.Sequence:
		n.table, n.asked = next, nil
	}
}

func (m *machine) anyNode() string {
	return fmt.Sprintf("n%d", rapid.IntRange(0, machineNodes-1).Draw(m.T, "node"))
}

// acknowledge is a device plugin that says what it has acted on.
func (m *machine) acknowledge(*rapid.T) { m.ack(m.anyNode()) }

func (m *machine) ack(node string) {
	n := m.nodes[node]
	claims, _, err := m.clean.WatchClaims(m.ctx, node, 0, 0)
	m.ok(err)
	var clear []string
	for _, slot := range n.table.Slots {
		_, claimed := claims[slot.ID()]
		_, runs := m.procs[slot.ID()]
		if slot.State == SlotClosing && !claimed && !runs || slices.Contains(n.clear, slot.ID().String()) {
			clear = append(clear, slot.ID().String())
		}
	}
	n.clear = clear
	ack := Ack{Version: Version, Epoch: n.table.Epoch, Sequence: n.table.Sequence, BootID: n.bootID(), Clear: clear}
	if n.asked != nil {
		ack.Epoch, ack.Sequence, ack.Remembered = n.asked.Epoch, n.asked.Sequence, &Remembered{Asked: n.asked.Sequence, Table: n.table}
	}
	m.ok(m.clean.PublishAck(m.ctx, node, ack))
}

// publish is a device plugin that starts.
func (m *machine) publish(node string) {
	n := m.nodes[node]
	inventory := inventory(node, machineGPUs)
	inventory.BootID = n.bootID()
	id, err := m.store.CreateSession(m.ctx, NodeSession(node))
	m.ok(err)
	m.ok(m.clean.PublishNode(m.ctx, id, inventory))
	m.ack(node)
}

// claim is a task that starts on a slot that its node's plugin has offered, as it last saw it.
func (m *machine) claim(*rapid.T) {
	node := m.anyNode()
	n := m.nodes[node]
	if len(n.table.Slots) == 0 {
		return
	}
	slot := n.table.Slots[rapid.IntRange(0, len(n.table.Slots)-1).Draw(m.T, "slot")]
	if slot.State != SlotOpen || slot.BootID != n.bootID() {
		return // the plugin does not serve it
	}
	allocation := fmt.Sprintf("alloc-%d", rapid.IntRange(0, 2).Draw(m.T, "allocation"))
	c := claimOf(slot.Reservation, slot.Rank, allocation)
	c.BootID = n.bootID()
	if p, runs := m.procs[slot.ID()]; runs && m.load().Claims[node][slot.ID()].Doc.Allocation != p.allocation {
		return // only a ledger that was set back knows another claim, or none; Nomad holds the slot for what runs on it
	}
	m.store.fault = pick(m, "fault", []Fault{None, None, Lose, Drop, Late})
	got, err := m.l.Claim(m.ctx, node, c, anyone)
	if err != nil {
		return
	}
	if p, runs := m.procs[got.ID()]; runs && p.allocation != allocation {
		m.Fatalf("slot %s claimed by %s while %s runs on it", got.ID(), allocation, p.allocation)
	}
	m.procs[got.ID()] = proc{node: node, allocation: allocation, gpus: got.GPUs}
}

// end is a task whose processes end; its claim goes afterwards.
func (m *machine) end(*rapid.T) {
	ids := slices.SortedFunc(maps.Keys(m.procs), compareSlots)
	if len(ids) == 0 {
		return
	}
	id := pick(m, "process", ids)
	p := m.procs[id]
	delete(m.procs, id)
	m.store.fault = pick(m, "fault", []Fault{None, Lose, Drop})
	m.ok(m.l.Unclaim(m.ctx, p.node, id, p.allocation))
	m.ok(m.l.Unclaim(m.ctx, p.node, id, p.allocation))
}

// reboot ends everything on a node; its plugin starts anew and ends the claims that the last boot has left.
func (m *machine) reboot(*rapid.T) {
	node := m.anyNode()
	n := m.nodes[node]
	n.boot, n.clear = n.boot+1, nil
	maps.DeleteFunc(m.procs, func(_ SlotID, p proc) bool { return p.node == node })
	claims, _, err := m.clean.WatchClaims(m.ctx, node, 0, 0)
	m.ok(err)
	for id, claim := range claims {
		m.ok(m.clean.Unclaim(m.ctx, node, id, claim.Doc.Allocation))
	}
	m.publish(node)
}

func (m *machine) save(*rapid.T) {
	saved := m.store.Store.(*Memory).Save()
	m.saved = &saved
}

// setBack restores a snapshot.
func (m *machine) setBack(*rapid.T) {
	if m.saved != nil {
		m.goBack(*m.saved)
	}
}

// lose empties the ledger.
func (m *machine) lose(*rapid.T) { m.goBack(Saved{}) }

// goBack changes the ledger under everybody. The leader has read it since its last transaction: a snapshot is not
// restored within the moment between a request and its lost answer. No request is under way for so long either, and those
// who led before have stopped by their own clocks, whatever the sessions are that come back.
func (m *machine) goBack(to Saved) {
	m.read()
	m.store.Store.(*Memory).SetBack(to)
	m.store.late, m.old, m.past = nil, nil, nil
}

// check compares the ledger with the machines.
func (m *machine) check(*rapid.T) {
	s := m.load()
	m.checkUsers()
	if !m.current(s) {
		return // nobody decides anything on it
	}
	m.checkGPUs(s)
	m.checkWhole(s)
	m.checkKept(s)
	if m.old = append(m.old, s); len(m.old) > 3 {
		m.old = m.old[1:]
	}
}

// checkUsers is invariant 1 on the machines: no GPU has processes of two claims.
func (m *machine) checkUsers() {
	users := map[string]SlotID{}
	for id, p := range m.procs {
		for _, uuid := range p.gpus {
			if other, used := users[uuid]; used {
				m.Fatalf("%s is used by %s and %s", uuid, other, id)
			}
			users[uuid] = id
		}
	}
}

// checkGPUs is invariant 1 in the ledger: no GPU is in two slots, or used by another than its slot's. A node that has
// not answered yet may know better; nothing is granted there.
func (m *machine) checkGPUs(s Snapshot) {
	slots := map[string]SlotID{}
	for _, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			for _, uuid := range slot.GPUs {
				if other, taken := slots[uuid]; taken {
					m.Fatalf("%s is in slots %s and %s", uuid, other, slot.ID())
				}
				slots[uuid] = slot.ID()
			}
		}
	}
	for id, p := range m.procs {
		for _, uuid := range p.gpus {
			if slot, taken := slots[uuid]; (!taken || slot != id) && !s.Unheard(p.node) {
				m.Fatalf("%s is used by %s and in slot %s", uuid, id, slot)
			}
		}
	}
}

// checkWhole is invariant 2 and the ledger's half of 5. Gangs about which a node has contradicted the ledger are not in
// order before the leader has closed them or forgotten their reservations.
func (m *machine) checkWhole(s Snapshot) {
	for node, slots := range s.Orphans() {
		for _, slot := range slots {
			if slot.State != SlotClosing && !m.doubted[slot.Owner.Gang] && !s.Unheard(node) {
				m.Fatalf("slot %s is of no gang, and open", slot.ID())
			}
		}
	}
	for name, gang := range s.Gangs {
		if gang.Doc.Reservation != nil && !m.doubted[name] && !inOrder(s, gang.Doc) {
			m.Fatalf("gang %s is %s, and its slots are %v", name, gang.Doc.State, s.Found(gang.Doc.Reservation.ID))
		}
	}
}

// checkKept is invariant 4: whatever a node has acted on and has not cleared is still in its table, unless an operator has
// vouched for it.
func (m *machine) checkKept(s Snapshot) {
	for node, n := range m.nodes {
		for _, slot := range n.table.Slots {
			_, kept := s.Tables[node].Doc.Find(slot.ID())
			if kept || s.Unheard(node) || slot.BootID != n.bootID() || slices.Contains(n.clear, slot.ID().String()) || m.vouched[slot.Reservation] {
				continue
			}
			m.Fatalf("slot %s was freed without an acknowledgement", slot.ID())
		}
	}
}
