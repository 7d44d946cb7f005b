// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// stranger is who uses a GPU that no task has: a child that a task left behind, or somebody's shell. The GPU is granted to
// nobody meanwhile.
type stranger struct {
	PID   int       `json:"pid"` // the lowest, to see whether it is still there
	Users string    `json:"users"`
	Since time.Time `json:"since"` // first seen
}

func (s stranger) health() gpu.Health {
	return gpu.Health{State: gpu.Busy, Reason: "no task has it, but it is used by " + s.Users, Since: s.Since}
}

// freeGPUs are the managed GPUs that may be granted as far as slots and hardware go: in no slot, or only in one that is
// clear, and well. In MIG mode GPUs are for nobody.
func (w *world) freeGPUs() []string {
	taken := map[string]bool{}
	for _, s := range w.table.Slots {
		for _, uuid := range s.GPUs {
			taken[uuid] = taken[uuid] || !w.cleared[s.ID()]
		}
	}
	var uuids []string
	for _, g := range w.machine.GPUs {
		if !taken[g.UUID] && !g.MIG && !slices.Contains(w.unmanaged, g.UUID) && w.health[g.UUID].State == gpu.Healthy {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// glance is what was seen at one moment on GPUs that should have no users. A GPU that could not be asked is not in it.
type glance struct {
	at        time.Time
	processes map[string][]gpu.Process
	names     map[int]string
}

// usersOf describes the users of a GPU, of which there are some.
func (g glance) usersOf(uuid string, since time.Time) stranger {
	users := g.processes[uuid]
	return stranger{PID: users[0].PID, Users: describeProcesses(users, g.names), Since: since}
}

// some says whether any of the GPUs has users.
func (g glance) some() bool {
	for _, users := range g.processes {
		if len(users) > 0 {
			return true
		}
	}
	return false
}

// still lists the users of a GPU that two glances saw: whoever only looks at a GPU for a moment, as monitoring does, is
// none.
func (g glance) still(before glance, uuid string) []gpu.Process {
	return slices.DeleteFunc(slices.Clone(g.processes[uuid]), func(p gpu.Process) bool {
		return !slices.ContainsFunc(before.processes[uuid], func(q gpu.Process) bool { return p.PID == q.PID })
	})
}

// takeStrangers notes who uses free GPUs at two glances in a row, and gives a GPU free again as soon as it has no users.
func (w *world) takeStrangers(before, now glance) {
	all := map[string]stranger{}
	for _, uuid := range w.freeGPUs() {
		known, some := w.strangers[uuid]
		users, asked := now.processes[uuid]
		there := slices.ContainsFunc(users, func(p gpu.Process) bool { return p.PID == known.PID })
		switch {
		case some && (there || !asked):
			all[uuid] = known
		case some && len(users) > 0:
			all[uuid] = now.usersOf(uuid, known.Since)
		case !some && len(now.still(before, uuid)) > 0:
			all[uuid] = now.usersOf(uuid, before.at)
		}
	}
	w.strangers = all
}

// watchStrangers looks every so often whether anybody uses GPUs that no task has, and looks closer while somebody does.
func (e *engine) watchStrangers(ctx context.Context) {
	var before glance
	for {
		w, changed := e.world.get()
		pause := e.pace.watch
		if w.discovered && w.trouble == "" {
			now := e.glanceAt(w.freeGPUs())
			e.world.update(func(w *world) { w.takeStrangers(before, now) })
			before, changed, pause = now, nil, spread(e.pace.strangers)
			if now.some() {
				pause = e.pace.again
			}
		}
		if !wait(ctx, changed, pause) {
			return
		}
	}
}

func (e *engine) glanceAt(uuids []string) glance {
	g := glance{at: e.now(), processes: e.processesOn(uuids)}
	g.names = processNames(e.set.ProcRoot, g.processes)
	return g
}

// now is the time for people: nothing is decided by it.
func (e *engine) now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// checkUnused refuses a slot that nobody has started on and whose GPUs somebody uses all the same. Such a member would only
// fail later, for want of memory, and its gang with it. Where NVML takes its time there is none to wait for it: the slot
// was granted because its GPUs were seen unused.
func (e *engine) checkUnused(ctx context.Context, w world, s ledger.Slot) error {
	if w.claimed(s.ID()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.pace.reserve*2/3)
	defer cancel()
	first := e.glanceWithin(ctx, s.GPUs)
	suspects := slices.DeleteFunc(slices.Clone(s.GPUs), func(uuid string) bool { return len(first.processes[uuid]) == 0 })
	if len(suspects) == 0 || !wait(ctx, nil, e.pace.glance) {
		return nil
	}
	second := e.glanceWithin(ctx, suspects)
	for _, uuid := range suspects {
		if users := second.still(first, uuid); len(users) > 0 {
			return fmt.Errorf("slot %s: GPU %s is used by %s, which no task of a gang has started", slotName(s), uuid, describeProcesses(users, second.names))
		}
	}
	return nil
}

// glanceWithin gives up when ctx ends: NVIDIA's driver may hang.
func (e *engine) glanceWithin(ctx context.Context, uuids []string) glance {
	seen := make(chan glance, 1)
	go func() { seen <- e.glanceAt(uuids) }()
	select {
	case <-ctx.Done():
		e.log.Debug("NVML does not say in time who uses GPUs", "gpus", uuids)
		return glance{}
	case g := <-seen:
		return g
	}
}

// leave makes strangers of the processes on the GPUs of a slot on which no task was ever started: the slot is clear, and
// its GPUs stay with those who use them.
func (w *world) leave(s ledger.Slot, g glance) {
	all := map[string]stranger{}
	maps.Copy(all, w.strangers)
	for _, uuid := range s.GPUs {
		if len(g.processes[uuid]) > 0 {
			all[uuid] = g.usersOf(uuid, g.at)
		}
	}
	w.strangers = all
}
