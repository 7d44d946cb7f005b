// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/nomad"
	"github.com/nomad-muster/muster/placer/policy"
)

// TestWholeOrAbsent lets random things happen to random jobs, with lost answers and changes of leader among them. At
// every moment each reservation is whole or absent, no GPU is in two slots, and none is granted that is earmarked for
// another gang; when all jobs have been stopped and everything has ended, nothing is left.
func TestWholeOrAbsent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		for i, gpus := range []int{8, 8, 4} {
			w.addNode(fmt.Sprintf("n%d", i+1), fmt.Sprintf("r%d", i%2), gpus)
		}
		w.settle()
		w.ack()
		m := &machine{world: w, kept: map[string]string{}, granted: map[string]bool{}}
		policies := map[string]func(model.Snapshot, time.Time) model.Decision{"real": policy.Decide, "by priority": byPriority, "makes room": makeRoom}
		w.decide = policies[rapid.SampledFrom(slices.Sorted(maps.Keys(policies))).Draw(rt, "policy")]
		rt.Repeat(map[string]func(*rapid.T){
			"":            m.check,
			"submit":      m.submitSome,
			"stop":        func(rt *rapid.T) { m.withJob(rt, w.stop) },
			"purge":       func(rt *rapid.T) { m.withJob(rt, w.purge) },
			"place":       func(*rapid.T) { w.place() },
			"claim all":   func(rt *rapid.T) { m.withGang(rt, func(gang string) { w.claim(gang) }) },
			"claim one":   func(rt *rapid.T) { m.withSlot(rt, func(gang string, rank int) { w.claim(gang, rank) }) },
			"succeed":     m.succeed,
			"fail":        m.fail,
			"end closing": func(*rapid.T) { m.endClosing() },
			"acknowledge": func(*rapid.T) { w.ack() },
			"settle":      func(*rapid.T) { w.settle() },
			"wait": func(rt *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 100).Draw(rt, "seconds")) * time.Second)
			},
			"drain":   m.drain,
			"migrate": m.migrate,
			"away":    func(rt *rapid.T) { m.withNode(rt, m.goSilent) },
			"back":    func(rt *rapid.T) { m.withNode(rt, m.comeBack) },
			"rights": func(rt *rapid.T) {
				w.rights, w.allowed = rapid.SampledFrom([]string{"", "", "Permission denied"}).Draw(rt, "rights"), 0
			},
			"order":  m.order,
			"elect":  func(*rapid.T) { w.elect() },
			"outage": func(rt *rapid.T) { w.stale = rapid.SampledFrom([]string{"", "", "down"}).Draw(rt, "stale") },
			"fault":  m.faults,
			"late":   func(*rapid.T) { w.store.Deliver() },
			"save":   func(*rapid.T) { w.saved = w.store.Save(); m.savedOnce = true },
			"set back": func(*rapid.T) {
				if m.savedOnce {
					m.goBack(w.restore)
				}
			},
			"lose": func(*rapid.T) { m.goBack(w.lose) },
		})
		m.wrapUp(rt)
	})
}

// machine is what happens in the property test.
type machine struct {
	*world
	savedOnce bool
	kept      map[string]string // GPUs that were earmarked at the last check, with the gang
	granted   map[string]bool   // reservations that there were
}

// goBack changes the ledger under everybody, and lets it be put in order at once; the steps in any order are for the
// ledger's own tests. The leader has read it before, and no transaction is under way for as long as a restore takes.
func (m machine) goBack(change func()) {
	m.store.Deliver()
	m.settle()
	stale := m.stale
	m.stale = ""
	for _, node := range []string{"n1", "n2", "n3"} {
		m.comeBack(node) // all nodes are asked, and answer
	}
	m.settle()
	m.ack()
	m.settle()
	change()
	for range 3 {
		m.settle()
		m.ack()
		m.settle()
		m.reassert()
	}
	m.now = m.now.Add(m.leader.Rules.FenceTime) // what is not whole is given up
	m.settle()
	m.stale = stale
}

func (m machine) submitSome(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "job")
	gang := rapid.SampledFrom([]string{name, name, "a"}).Draw(rt, "gang")
	m.happen([]string{
		"job", name, "gang=" + gang,
		fmt.Sprintf("count=%d", rapid.IntRange(1, 3).Draw(rt, "count")),
		fmt.Sprintf("gpus=%d", rapid.IntRange(1, 8).Draw(rt, "gpus")),
		fmt.Sprintf("priority=%d", rapid.SampledFrom([]int{10, 50, 90}).Draw(rt, "priority")),
		"driver=" + rapid.SampledFrom([]string{"muster", "docker"}).Draw(rt, "driver"),
	})
}

func (m machine) withJob(rt *rapid.T, do func(nomad.JobID)) {
	if ids := slices.SortedFunc(maps.Keys(m.jobs), nomad.JobID.Compare); len(ids) > 0 {
		do(rapid.SampledFrom(ids).Draw(rt, "job"))
	}
}

// withGang picks a gang that has slots.
func (m machine) withGang(rt *rapid.T, do func(gang string)) {
	var names []string
	for name, g := range m.load().Gangs {
		if g.Doc.Reservation != nil {
			names = append(names, name)
		}
	}
	if slices.Sort(names); len(names) > 0 {
		do(rapid.SampledFrom(names).Draw(rt, "gang"))
	}
}

func (m machine) withSlot(rt *rapid.T, do func(gang string, rank int)) {
	m.withGang(rt, func(gang string) {
		ranks := slices.Sorted(maps.Keys(m.slotsOf(gang)))
		do(gang, rapid.SampledFrom(ranks).Draw(rt, "rank"))
	})
}

// succeed lets a gang whose members are all there do its work.
func (m machine) succeed(rt *rapid.T) {
	m.withGang(rt, func(gang string) {
		for _, at := range m.slotsOf(gang) {
			if _, claimed := m.load().Claims[at.node][at.slot.ID()]; !claimed || at.slot.State != ledger.SlotOpen {
				return
			}
		}
		if m.slotsOf(gang)[0].slot.Driver == driverMuster {
			m.run(gang, ledger.RunSucceeded, "")
		}
		zero := 0
		for rank := range m.slotsOf(gang) {
			m.end(gang, rank, structs.AllocClientStatusComplete, nomad.Task{Exit: &zero})
		}
	})
}

func (m machine) fail(rt *rapid.T) {
	m.withSlot(rt, func(gang string, rank int) {
		at, one := m.slotsOf(gang)[rank], 1
		if m.holder(at) == nil {
			return
		}
		if at.slot.Driver == driverMuster && rapid.Bool().Draw(rt, "reported") {
			m.member(at, ledger.Member{State: ledger.MemberFailed, ExitCode: &one})
		}
		m.end(gang, rank, structs.AllocClientStatusFailed, nomad.Task{Failed: true, Exit: &one})
	})
}

// endClosing lets drivers end the tasks of closing slots, and of jobs that were stopped.
func (m machine) endClosing() {
	one := 1
	for node, table := range m.load().Tables {
		for _, slot := range table.Doc.Slots {
			at := placedSlot{node, slot}
			a := m.holder(at)
			if a == nil || m.jobs[a.Job] != nil && !*m.jobs[a.Job].Stop && slot.State == ledger.SlotOpen {
				continue
			}
			m.endOn(at, structs.AllocClientStatusFailed, nomad.Task{Failed: true, Exit: &one})
		}
	}
}

// order lets an operator preempt some gang, set something for it, or vouch for its closing slots.
func (m machine) order(rt *rapid.T) {
	o := ledger.Order{Gang: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "gang"), By: "operator"}
	o.Kind = rapid.SampledFrom([]ledger.OrderKind{ledger.OrderPreempt, ledger.OrderRelease, ledger.OrderSet}).Draw(rt, "kind")
	if r := m.load().Gangs[o.Gang].Doc.Reservation; r != nil {
		o.Reservation = r.ID
	}
	o.HoldS = rapid.Int64Range(0, 100).Draw(rt, "hold")
	o.Values = map[string]string{"priority": fmt.Sprint(rapid.IntRange(1, 99).Draw(rt, "priority"))}
	_, err := m.ledger.PutOrder(m.t.Context(), o)
	if pending := (*ledger.OrderPendingError)(nil); !errors.As(err, &pending) {
		must.NoError(rt, err)
	}
}

func (m machine) drain(rt *rapid.T) {
	node := m.nodes[rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(rt, "node")]
	node.DrainStrategy, node.ModifyIndex = nil, m.next()
	if rapid.Bool().Draw(rt, "drain") {
		node.DrainStrategy = &structs.DrainStrategy{}
	}
}

// migrate lets Nomad end one member for its own reasons, and count it as complete.
func (m machine) migrate(rt *rapid.T) {
	m.withSlot(rt, func(gang string, rank int) {
		if at := m.slotsOf(gang)[rank]; m.holder(at) != nil {
			m.holder(at).Desired = structs.AllocDesiredStatusStop
			m.end(gang, rank, structs.AllocClientStatusComplete, nomad.Task{Killed: true})
		}
	})
}

func (m machine) withNode(rt *rapid.T, do func(node string)) {
	do(rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(rt, "node"))
}

// goSilent makes a node silent.
func (m machine) goSilent(node string) {
	if m.load().NodeSessions[node] != "" {
		event{w: m.world, name: node}.away()
	}
}

// comeBack lets a node that was silent be heard again, and its driver end what stands on slots that were left behind.
func (m machine) comeBack(node string) {
	if s := m.load(); s.NodeSessions[node] == "" && s.Nodes[node].Index != 0 { // after a loss its plugin writes all anew
		event{w: m.world, name: node}.back()
		for _, slot := range s.Orphans()[node] {
			if claim, some := s.Claims[node][slot.ID()]; some {
				must.NoError(m.t, m.ledger.Unclaim(m.t.Context(), node, slot.ID(), claim.Doc.Allocation))
			}
			if a := m.living(slot.ID()); a != nil {
				a.Client = structs.AllocClientStatusComplete
			}
		}
	}
}

// faults lets the next transactions of the leader go wrong.
func (m machine) faults(rt *rapid.T) {
	faults := rapid.SliceOfN(rapid.SampledFrom([]ledger.Fault{ledger.None, ledger.Refuse, ledger.Lose, ledger.Drop, ledger.Late}), 1, 6).Draw(rt, "faults")
	m.store.Inject(func(call ledger.Call) ledger.Fault {
		if call.Method != "Txn" || len(faults) == 0 {
			return ledger.None
		}
		next := faults[0]
		faults = faults[1:]
		return next
	})
	m.settle()
	m.store.Inject(nil)
}

// check holds the ledger to its invariants.
func (m machine) check(rt *rapid.T) {
	m.checkNow(rt)
	m.checkKept(rt)
}

// checkKept looks at what was granted since the last check: nothing that was earmarked for another gang then, and still is.
func (m machine) checkKept(rt *rapid.T) {
	s := m.load()
	kept := map[string]string{}
	for name, g := range s.Gangs {
		for _, e := range g.Doc.Earmarks {
			set, err := gpu.ParseSet(e.GPUs)
			must.NoError(rt, err)
			for _, uuid := range s.Nodes[e.Node].Doc.Machine.UUIDs(set) {
				other, twice := kept[uuid]
				must.False(rt, twice, must.Sprintf("GPU %s is earmarked for %s and %s", uuid, name, other))
				kept[uuid] = name
			}
		}
	}
	for _, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			for _, uuid := range slot.GPUs {
				stolen := !m.granted[slot.Reservation] && kept[uuid] != "" && kept[uuid] == m.kept[uuid] && kept[uuid] != slot.Owner.Gang
				must.False(rt, stolen, must.Sprintf("GPU %s was granted to %s and is earmarked for %s", uuid, slot.Owner.Gang, kept[uuid]))
			}
		}
	}
	for _, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			m.granted[slot.Reservation] = true
		}
	}
	clear(m.kept)
	maps.Copy(m.kept, kept)
}

func (m machine) checkNow(rt tester) {
	s := m.load()
	slots := map[string][]placedSlot{} // by reservation
	for node, table := range s.Tables {
		used := map[string]ledger.SlotID{}
		for _, slot := range table.Doc.Slots {
			slots[slot.Reservation] = append(slots[slot.Reservation], placedSlot{node, slot})
			for _, uuid := range slot.GPUs {
				other, twice := used[uuid]
				must.False(rt, twice, must.Sprintf("GPU %s is in slots %s and %s", uuid, other, slot.ID()))
				used[uuid] = slot.ID()
			}
		}
		for id := range s.Claims[node] {
			_, known := table.Doc.Find(id)
			must.True(rt, known, must.Sprintf("claim on slot %s, which is gone", id))
		}
	}
	for name, g := range s.Gangs {
		holds := g.Doc.State == ledger.GangReserved || g.Doc.State == ledger.GangRunning || g.Doc.State == ledger.GangClosing
		must.Eq(rt, holds, g.Doc.Reservation != nil, must.Sprintf("gang %s is %s", name, g.Doc.State))
		if !holds {
			continue
		}
		members := 0
		for _, p := range g.Doc.Reservation.Placements {
			members += p.Members
		}
		have := slots[g.Doc.Reservation.ID]
		must.Len(rt, members, have, must.Sprintf("gang %s", name))
		for _, at := range have {
			must.Eq(rt, g.Doc.State == ledger.GangClosing, at.slot.State == ledger.SlotClosing)
		}
		delete(slots, g.Doc.Reservation.ID)
	}
	for _, orphans := range slots { // left over when the ledger was set back, or left behind on silent nodes
		for _, at := range orphans {
			must.Eq(rt, ledger.SlotClosing, at.slot.State, must.Sprintf("slot %s is of no gang", at.slot.ID()))
		}
	}
}

// wrapUp stops everything and waits until nothing is left.
func (m machine) wrapUp(rt *rapid.T) {
	m.store.Deliver()
	m.stale = ""
	for _, node := range []string{"n1", "n2", "n3"} {
		m.comeBack(node)
	}
	for id := range m.jobs {
		m.purge(id)
	}
	for range 4 {
		m.settle()
		m.endClosing()
		m.ack()
		m.now = m.now.Add(time.Minute)
	}
	s := m.load()
	must.MapEmpty(rt, s.Gangs)
	must.MapEmpty(rt, s.Runs)
	must.MapEmpty(rt, s.Refusals)
	must.MapEmpty(rt, s.Orphans())
	must.MapEmpty(rt, s.Orders)
	m.check(rt)
}
