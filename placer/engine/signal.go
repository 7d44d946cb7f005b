// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// sigkill ends a task so that Nomad counts it as failed.
const sigkill = "SIGKILL"

// signals ends the tasks without the muster driver that still run on closing slots: first the signal that asks for a
// checkpoint, if one is declared, and after its time SIGKILL. Those that Nomad is stopping already are left to it, and the
// muster driver sees to its own.
func (s step) signals() []Action {
	var actions []Action
	for _, name := range slices.Sorted(maps.Keys(s.Ledger.Gangs)) {
		g := s.Ledger.Gangs[name].Doc
		if g.State != ledger.GangClosing {
			continue
		}
		for _, m := range s.members(g) {
			a := m.alloc()
			if m.group.Driver == driverMuster || a == nil || a.Terminal() || a.Stopping() {
				continue
			}
			if signal := s.dueSignal(m); signal != "" {
				actions = append(actions, Action{Kind: Signal, Gang: g, Slot: m.slot, Alloc: a, Task: m.group.Task, Signal: signal})
			}
		}
	}
	orphans := s.Ledger.Orphans()
	for _, node := range slices.Sorted(maps.Keys(orphans)) {
		for _, slot := range orphans[node] {
			if a := s.lastOn(slot); a != nil {
				m := member{slot: slot.ID(), group: ledger.GroupSpec{Checkpoint: slot.Checkpoint}}
				if signal := s.dueSignal(m); signal != "" {
					gang := ledger.Gang{Name: slot.Owner.Gang}
					actions = append(actions, Action{Kind: Signal, Gang: gang, Slot: slot.ID(), Alloc: a, Task: slot.Owner.Task, Signal: signal})
				}
			}
		}
	}
	return actions
}

// lastOn is the allocation to end on a closing slot of no gang; nil: none, or it ends by itself.
func (s step) lastOn(slot ledger.Slot) *nomad.Alloc {
	if slot.State != ledger.SlotClosing || slot.Driver == driverMuster {
		return nil
	}
	owner := nomad.JobID{Namespace: slot.Owner.Namespace, ID: slot.Owner.Job}
	for _, a := range slices.Backward(s.Nomad.Slots[slot.ID()]) {
		if a.Job == owner && !a.Terminal() && !a.Stopping() {
			return a
		}
	}
	return nil
}

// dueSignal is what to send to a member's task now; empty: nothing.
func (s step) dueSignal(m member) string {
	sent, some := s.Memory.Signalled[m.slot]
	passed := func(d time.Duration) bool { return s.now.Sub(sent.At) >= d }
	switch {
	case !some && m.group.Checkpoint != "":
		return m.group.Checkpoint
	case !some, !sent.Kill && passed(checkpointGrace), sent.Kill && passed(killEvery):
		return sigkill
	}
	return ""
}
