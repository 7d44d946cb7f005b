// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// noon is when the glances of these tests begin.
var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// glanceAfter is what was seen a time after noon; a GPU without a list could not be asked.
func glanceAfter(d time.Duration, processes map[string][]gpu.Process) glance {
	return glance{at: noon.Add(d), processes: processes, names: map[int]string{7: "python3", 8: "bash"}}
}

func users(pids ...int) []gpu.Process {
	all := []gpu.Process{}
	for _, pid := range pids {
		all = append(all, gpu.Process{PID: pid})
	}
	return all
}

func TestStrangers(t *testing.T) {
	const busyNow = "no task has it, but it is used by "
	on := func(pids ...int) map[string][]gpu.Process { return map[string][]gpu.Process{uuid(3): users(pids...)} }
	cases := map[string]struct {
		glances []map[string][]gpu.Process // 5 s apart
		change  func(*world)
		want    gpu.Health // of GPU 3
	}{
		"nobody":                         {glances: []map[string][]gpu.Process{on(), on()}, want: gpu.Health{State: gpu.Healthy}},
		"one look is not enough":         {glances: []map[string][]gpu.Process{on(), on(7)}, want: gpu.Health{State: gpu.Healthy}},
		"two looks in a row are":         {glances: []map[string][]gpu.Process{on(7), on(7)}, want: gpu.Health{State: gpu.Busy, Reason: busyNow + "process 7 (python3)", Since: noon}},
		"monitoring that comes and goes": {glances: []map[string][]gpu.Process{on(7), on(), on(7), on(8)}, want: gpu.Health{State: gpu.Healthy}},
		"others that join are not told of": {
			glances: []map[string][]gpu.Process{on(7), on(7), on(7, 8), on(7, 9)},
			want:    gpu.Health{State: gpu.Busy, Reason: busyNow + "process 7 (python3)", Since: noon},
		},
		"one follows another": {
			glances: []map[string][]gpu.Process{on(7), on(7, 8), on(8)},
			want:    gpu.Health{State: gpu.Busy, Reason: busyNow + "process 8 (bash)", Since: noon},
		},
		"it has gone":                       {glances: []map[string][]gpu.Process{on(7), on(7), on()}, want: gpu.Health{State: gpu.Healthy}},
		"no answer proves nothing":          {glances: []map[string][]gpu.Process{on(7), on(7), {}}, want: gpu.Health{State: gpu.Busy, Reason: busyNow + "process 7 (python3)", Since: noon}},
		"no answer is not a first look":     {glances: []map[string][]gpu.Process{on(7), {}, on(7)}, want: gpu.Health{State: gpu.Healthy}},
		"an unmanaged GPU is for everybody": {glances: []map[string][]gpu.Process{on(7), on(7)}, change: func(w *world) { w.unmanaged = uuids(3) }, want: gpu.Health{State: gpu.Healthy}},
		"a GPU in MIG mode is for nobody":   {glances: []map[string][]gpu.Process{on(7), on(7)}, change: func(w *world) { w.machine.GPUs[3].MIG = true }, want: gpu.Health{State: gpu.Healthy}},
		"a GPU in a slot is its owner's":    {glances: []map[string][]gpu.Process{on(7), on(7)}, change: func(w *world) { w.table.Slots = []ledger.Slot{slot("r1", 1, 3)} }, want: gpu.Health{State: gpu.Healthy}},
		"trouble of the hardware comes first": {
			glances: []map[string][]gpu.Process{on(7), on(7)}, change: func(w *world) { w.health[uuid(3)] = gpu.Health{State: gpu.Unhealthy, Reason: "XID 79"} },
			want: gpu.Health{State: gpu.Unhealthy, Reason: "XID 79"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(4, slot("r0", 0, 0))
			if c.change != nil {
				c.change(&w)
			}
			var before glance
			for i, processes := range c.glances {
				now := glanceAfter(time.Duration(i)*5*time.Second, processes)
				w.takeStrangers(before, now)
				w.settle()
				before = now
			}
			must.Eq(t, c.want, w.healthOf(uuid(3)))
			must.Eq(t, c.want, w.gpuHealth().GPUs[uuid(3)])
		})
	}
}

// TestAStrangerOnAnIdleGPU: the node says so, and takes it back when the stranger has gone.
func TestAStrangerOnAnIdleGPU(t *testing.T) {
	n := newNode(t, 2).start()
	published := func() gpu.Health { return read[ledger.Health](n, n.books.Keys().Health(thisNode)).GPUs[uuid(1)] }
	eventually(t, "its health is published", func() bool { return published().State == gpu.Healthy })
	n.gpus.set(func(f *fakeGPUs) { f.users[uuid(1)] = users(7, 8) })
	eventually(t, "it is busy", func() bool { return published().State == gpu.Busy })
	must.Eq(t, "no task has it, but it is used by process 7, process 8", published().Reason)
	since := published().Since
	must.False(t, since.IsZero())
	n.onDisk(`"strangers":{"GPU-1"`)

	n.restart()
	n.gpus.set(func(f *fakeGPUs) { f.users[uuid(1)] = users(8) })
	eventually(t, "the other is named", func() bool { return published().Reason == "no task has it, but it is used by process 8" })
	must.Eq(t, since, published().Since)
	n.gpus.set(func(f *fakeGPUs) { f.users = nil })
	eventually(t, "it is free again", func() bool { return published() == gpu.Health{State: gpu.Healthy} })
}

// TestAStrangerOnANewSlot: the start is refused, and the gang does not wait for the stranger to end.
func TestAStrangerOnANewSlot(t *testing.T) {
	n := newNode(t, 4).start()
	s := slot("r1", 1, 0, 1)
	n.grant(1, s)
	n.offers.become("muster/gang/train.1")
	n.gpus.set(func(f *fakeGPUs) { f.users[uuid(1)] = users(7) })
	_, err := n.plugin.Reserve(instanceIDs(s))
	must.EqError(t, err, "slot train.1: GPU GPU-1 is used by process 7, which no task of a gang has started")

	n.grant(2, closing(s, "not started"))
	n.acknowledges(2, "r1.1")
	must.Eq(t, gpu.Busy, read[ledger.Health](n, n.books.Keys().Health(thisNode)).GPUs[uuid(1)].State,
		must.Sprint("it must be known to be busy before its slot is known to be clear"))
	n.grant(3)
	n.acknowledges(3)
	must.Eq(t, gpu.Busy, read[ledger.Health](n, n.books.Keys().Health(thisNode)).GPUs[uuid(1)].State)
	n.gpus.set(func(f *fakeGPUs) { f.users = nil })
	eventually(t, "it is free again", func() bool {
		return read[ledger.Health](n, n.books.Keys().Health(thisNode)).GPUs[uuid(1)].State == gpu.Healthy
	})
}

// TestProcessesOfAMember: those of a slot that was served keep it, and are no strangers to a second Reserve.
func TestProcessesOfAMember(t *testing.T) {
	n := newNode(t, 4).start()
	s := slot("r1", 1, 0, 1)
	n.grant(1, s)
	n.offers.become("muster/gang/train.1")
	_, err := n.plugin.Reserve(instanceIDs(s))
	must.NoError(t, err)
	_, err = n.books.Claim(t.Context(), thisNode, claimOn(s, "driver", "a1"), func(ledger.Slot) error { return nil })
	must.NoError(t, err)
	eventually(t, "the claim is known", func() bool { w, _ := n.plugin.engine.world.get(); return w.claimed(s.ID()) })
	n.gpus.set(func(f *fakeGPUs) { f.users[uuid(1)] = users(7) })
	_, err = n.plugin.Reserve(instanceIDs(s))
	must.NoError(t, err)
	must.NoError(t, n.books.Unclaim(t.Context(), thisNode, s.ID(), "a1"))
	n.onDisk(`"served":["r1.1"]`)
	n.restart()

	n.grant(2, closing(s, "stopped"))
	busy := func() string { return read[ledger.Ack](n, n.books.Keys().Ack(thisNode)).Busy["r1.1"] }
	eventually(t, "it says what keeps the slot", func() bool { return busy() == "GPU GPU-1 is used by process 7" })
	n.gpus.set(func(f *fakeGPUs) { f.users[uuid(1)] = users(8, 9) })
	eventually(t, "it says what keeps the slot now", func() bool { return busy() == "GPU GPU-1 is used by process 8, process 9" })
	n.gpus.set(func(f *fakeGPUs) { f.users = nil })
	n.acknowledges(2, "r1.1")
	must.Eq(t, "", busy())
}
