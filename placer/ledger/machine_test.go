// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// TestInvariants tries to break the invariants of the ledger with any order of grants, closings, releases, claims, ends,
// acknowledgements, reboots, changes of leader, lost answers, transactions that arrive late, and decisions on old
// snapshots by old leaders. After each step the whole ledger is compared with what a model of the machines knows.
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

	nodes map[string]*machineNode
	procs map[SlotID]proc // what runs on GPUs
	was   Snapshot        // after the last step
	moved bool            // the ledger was set back in this step
}

// machineNode is what a device plugin remembers.
type machineNode struct {
	boot    int
	session string
	table   SlotTable // last acted on, on disk
	clear   []string
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
		nodes: map[string]*machineNode{}, procs: map[SlotID]proc{},
	}
	m.elect()
	for i := range machineNodes {
		node := fmt.Sprintf("n%d", i)
		m.nodes[node] = &machineNode{boot: 1}
		m.ok(m.clean.EnsureTable(m.ctx, m.term, node))
		m.publish(node)
	}
	m.was = m.load()
	return m
}

func (m *machine) run() {
	actions := map[string]func(*rapid.T){
		"grant": m.grant, "grant more": m.grant, "close": m.close, "release": m.release, "claim": m.claim, "end": m.end, "acknowledge": m.acknowledge,
		"sweep": m.sweep, "look": m.look, "elect": func(*rapid.T) { m.elect() }, "late": func(*rapid.T) { m.deliver() }, "reboot": m.reboot, "": m.check,
	}
	if _, ok := m.store.Store.(*Memory); ok {
		actions["save"], actions["set back"], actions["lose"] = m.save, m.setBack, m.lose
	}
	m.Repeat(actions)
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
	if len(m.old) > 0 && rapid.IntRange(0, 3).Draw(m.T, "old snapshot") == 0 {
		return pick(m, "snapshot", m.old)
	}
	return m.load()
}

// lease is whose transaction it is: mostly the leader's, sometimes that of one who led before.
func (m *machine) lease() Lease {
	if len(m.past) > 0 && rapid.IntRange(0, 3).Draw(m.T, "old leader") == 0 {
		return pick(m, "lease", m.past)
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
	table, due, err := BuildSweep(s, node)
	if err != nil || !due {
		return
	}
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

// elect ends the leader's session and makes another.
func (m *machine) elect() {
	if m.term.Session != "" {
		m.past = append(m.past, m.term)
		m.ok(m.store.DestroySession(m.ctx, m.term.Session))
	}
	id, err := m.store.CreateSession(m.ctx, SessionSpec{Name: "leader"})
	m.ok(err)
	m.term = Lease{Session: id, Key: m.l.Keys().Leader()}
	won := false
	for range 1000 {
		if won, err = m.clean.lock(m.ctx, m.term, "leader"); won {
			break
		}
		// A ledger that was set back has an old session hold the key again, until its check fails.
		entry, getErr := m.store.Get(m.ctx, m.term.Key)
		m.ok(errors.Join(err, getErr))
		m.ok(m.store.DestroySession(m.ctx, entry.Session))
	}
	if !won {
		m.Fatal("nobody can lead")
	}
	_, _, err = m.clean.EnsureEpoch(m.ctx, m.term)
	m.ok(err)
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

// look is a device plugin that sees its table. A table with a smaller sequence is not believed.
func (m *machine) look(*rapid.T) {
	node := m.anyNode()
	table, err := m.clean.WatchTable(m.ctx, node, 0, 0)
	if err != nil {
		return
	}
	n := m.nodes[node]
	if table.Doc.Sequence >= n.table.Sequence {
		n.table = table.Doc
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
		if slot.State == SlotClosing && !claimed && !runs {
			clear = append(clear, slot.ID().String())
		}
	}
	n.clear = clear
	m.ok(m.clean.PublishAck(m.ctx, node, Ack{Version: Version, Sequence: n.table.Sequence, BootID: n.bootID(), Clear: clear}))
}

// publish is a device plugin that starts.
func (m *machine) publish(node string) {
	n := m.nodes[node]
	inventory := inventory(node, machineGPUs)
	inventory.BootID = n.bootID()
	id, err := m.store.CreateSession(m.ctx, NodeSession(node))
	m.ok(err)
	n.session = id
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
	slot := pick(m, "slot", n.table.Slots)
	allocation := fmt.Sprintf("alloc-%d", rapid.IntRange(0, 2).Draw(m.T, "allocation"))
	c := claimOf(slot.Reservation, slot.Rank, allocation)
	c.BootID = n.bootID()
	table, err := m.clean.WatchTable(m.ctx, node, 0, 0)
	if err != nil || table.Doc.Sequence < n.table.Sequence {
		return // the plugin does not serve from a ledger that was set back
	}
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
	n.boot++
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

// setBack restores a snapshot. Then a leader starts over and decides on nothing that it knew, and every plugin says
// again what it remembers, before anything is granted.
func (m *machine) setBack(*rapid.T) {
	if m.saved != nil {
		m.startOver(*m.saved)
	}
}

// lose empties the ledger.
func (m *machine) lose(*rapid.T) { m.startOver(Saved{}) }

func (m *machine) startOver(to Saved) {
	m.store.Store.(*Memory).SetBack(to)
	m.store.late, m.old, m.moved = nil, nil, true
	m.elect()
	for node := range m.nodes {
		m.ok(m.clean.EnsureTable(m.ctx, m.term, node))
		m.publish(node)
	}
}

// check compares the ledger with the machines.
func (m *machine) check(*rapid.T) {
	s := m.load()
	m.checkGPUs(s)
	m.checkWhole(s)
	if !m.moved {
		m.checkFreed(s)
	}
	m.was, m.moved = s, false
	if m.old = append(m.old, s); len(m.old) > 3 {
		m.old = m.old[1:]
	}
}

// checkGPUs is invariant 1.
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
	users := map[string]SlotID{}
	for id, p := range m.procs {
		for _, uuid := range p.gpus {
			if other, used := users[uuid]; used {
				m.Fatalf("%s is used by %s and %s", uuid, other, id)
			}
			users[uuid] = id
			if slot, taken := slots[uuid]; taken && slot != id && !m.withheld(s, p.node) {
				m.Fatalf("%s is used by %s and in slot %s", uuid, id, slot)
			}
		}
	}
}

// withheld is a node whose ledger is known to be wrong.
func (m *machine) withheld(s Snapshot, node string) bool {
	_, err := s.settled(node)
	return err != nil
}

// checkWhole is invariant 2 and the ledger's half of 5.
func (m *machine) checkWhole(s Snapshot) {
	found := map[string]int{}
	states := map[string]map[SlotState]bool{}
	for _, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			found[slot.Reservation]++
			if states[slot.Reservation] == nil {
				states[slot.Reservation] = map[SlotState]bool{}
			}
			states[slot.Reservation][slot.State] = true
			if !s.held(slot) && slot.State != SlotClosing {
				m.Fatalf("slot %s is of no gang, and open", slot.ID())
			}
		}
	}
	for name, gang := range s.Gangs {
		if gang.Doc.Reservation == nil {
			continue
		}
		id := gang.Doc.Reservation.ID
		if found[id] != gang.Doc.Spec.Size() || len(states[id]) != 1 {
			m.Fatalf("gang %s has %d of %d slots in %d states", name, found[id], gang.Doc.Spec.Size(), len(states[id]))
		}
		if states[id][SlotClosing] != (gang.Doc.State == GangClosing) {
			m.Fatalf("gang %s is %s and its slots are %v", name, gang.Doc.State, states[id])
		}
	}
}

// checkFreed is invariant 4: no slot leaves its table while anything runs on it, or without its node's word.
func (m *machine) checkFreed(s Snapshot) {
	for node, table := range m.was.Tables {
		for _, slot := range table.Doc.Slots {
			if _, still := s.Tables[node].Doc.Find(slot.ID()); still {
				continue
			}
			if p, runs := m.procs[slot.ID()]; runs {
				m.Fatalf("slot %s was freed while %s runs on it", slot.ID(), p.allocation)
			}
			n := m.nodes[node]
			if slot.BootID == n.bootID() && !slices.Contains(n.clear, slot.ID().String()) {
				m.Fatalf("slot %s was freed without an acknowledgement", slot.ID())
			}
		}
	}
}
