// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

func TestSlotFor(t *testing.T) {
	open := slot("r1", 1, 0, 1)
	cases := map[string]struct {
		world world
		ids   []string
		want  string // error; empty: the slot is served
	}{
		"all GPUs of an open slot, in any order": {
			world: settledWorld(4, open), ids: []string{"GPU-1@r1", "GPU-0@r1"},
		},
		"a claimed slot is served again, as Reserve may be called again": {
			world: func() world {
				w := settledWorld(4, open)
				w.claims = claims(claimOn(open, "driver", "a1"))
				return w
			}(), ids: instanceIDs(open),
		},
		"a closing slot says why": {
			world: settledWorld(4, closing(open, "preempted by big")), ids: instanceIDs(open),
			want: "slot train.1 is closing: preempted by big",
		},
		"some of a slot's GPUs": {
			world: settledWorld(4, open), ids: []string{"GPU-0@r1"},
			want: "the GPUs asked for (1) are not those of one slot (slot train.1 has 2): a member must use the whole of its slot",
		},
		"GPUs of two slots": {
			world: settledWorld(4, slot("r1", 0, 0), slot("r1", 1, 1)), ids: []string{"GPU-0@r1", "GPU-1@r1"},
			want: "the GPUs asked for (2) are not those of one slot (slot train.0 has 1, slot train.1 has 1): a member must use the whole of its slot",
		},
		"the same GPU twice": {
			world: settledWorld(4, open), ids: []string{"GPU-0@r1", "GPU-0@r1"},
			want: "the GPUs asked for (2) are not those of one slot (slot train.1 has 2): a member must use the whole of its slot",
		},
		"an earlier reservation of the same GPUs": {
			world: settledWorld(4, open), ids: []string{"GPU-0@r0", "GPU-1@r0"},
			want: "reservation r0 has no slot with these GPUs on this node any more (slot table 7)",
		},
		"two reservations": {
			world: settledWorld(4, open), ids: []string{"GPU-0@r1", "GPU-1@r0"},
			want: "GPUs of two reservations, r1 and r0, can't be used as one slot",
		},
		"an unmanaged GPU among them": {
			world: settledWorld(4, open), ids: []string{"GPU-0@r1", "GPU-1"},
			want: `"GPU-1" is a GPU that Muster does not manage, among others of a slot: ask for them in device blocks of their own`,
		},
		"an unhealthy GPU": {
			world: func() world {
				w := settledWorld(4, open)
				w.health[uuid(1)] = gpu.Health{State: gpu.Unhealthy, Reason: "XID 79"}
				return w
			}(), ids: instanceIDs(open),
			want: "slot train.1: GPU GPU-1 is unhealthy: XID 79",
		},
		"another boot": {
			world: func() world {
				w := settledWorld(4, open)
				w.self.bootID = "boot-2"
				return w
			}(), ids: instanceIDs(open),
			want: "slot train.1 was granted before this machine started anew",
		},
		"another machine of the same name": {
			world: func() world {
				w := settledWorld(4, open)
				w.name = takenName
				return w
			}(), ids: instanceIDs(open),
			want: "slot train.1 is not offered: another machine has this node's name",
		},
		"hosts that are not known yet": {
			world: func() world {
				w := settledWorld(4, open)
				w.gangs = nil
				return w
			}(), ids: instanceIDs(open),
			want: "slot train.1 is not ready: the hosts of its gang have not been read from the ledger yet",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.world.slotFor(c.ids)
			if c.want != "" {
				must.EqError(t, err, c.want)
				return
			}
			must.NoError(t, err)
			must.Eq(t, open.ID(), got.ID())
		})
	}
}

func TestCheckPlain(t *testing.T) {
	w := settledWorld(4, slot("r1", 0, 2))
	w.unmanaged = uuids(1, 2)
	must.NoError(t, w.checkPlain(uuids(1)))
	must.EqError(t, w.checkPlain(uuids(0)), "GPU GPU-0 is not one that the plugin's option `unmanaged` leaves to ordinary jobs")
	must.EqError(t, w.checkPlain(uuids(2)), "GPU GPU-2 is not one that the plugin's option `unmanaged` leaves to ordinary jobs",
		must.Sprint("it is still in a slot"))
}

func TestInUse(t *testing.T) {
	s := closing(slot("r1", 1, 0, 1), "stopped")
	idle := map[string][]gpu.Process{uuid(0): nil, uuid(1): nil}
	holding := allocation{id: "a1", instanceIDs: map[string][]string{"train": instanceIDs(s)}}
	ended, forgotten := holding, holding
	ended.ended, forgotten.forgotten = true, true
	old := claimOn(s, "driver", "a1")
	old.BootID = "boot-0"
	cases := map[string]struct {
		seen   evidence
		change func(*world)
		want   string
	}{
		"nothing holds it": {seen: evidence{processes: idle}},
		"a process": {
			seen: evidence{processes: map[string][]gpu.Process{uuid(0): nil, uuid(1): {{PID: 7}, {PID: 8}}}, names: map[int]string{7: "python3"}},
			want: "GPU GPU-1 is used by process 7 (python3), process 8",
		},
		"many processes": {
			seen: evidence{processes: map[string][]gpu.Process{uuid(0): {{PID: 1}, {PID: 2}, {PID: 3}, {PID: 4}, {PID: 5}, {PID: 6}}}},
			want: "GPU GPU-0 is used by process 1, process 2, process 3, process 4, 2 more",
		},
		"a GPU that NVML does not answer for": {
			seen: evidence{processes: map[string][]gpu.Process{uuid(0): nil}},
			want: "NVML does not say who uses GPU GPU-1",
		},
		"a GPU that has fallen off the bus has no users": {
			seen:   evidence{processes: map[string][]gpu.Process{uuid(0): nil}},
			change: func(w *world) { w.health[uuid(1)] = gpu.Health{State: gpu.Lost} },
		},
		"without NVML nobody knows": {
			seen:   evidence{processes: map[string][]gpu.Process{}},
			change: func(w *world) { w.loseAll("NVML missing"); w.trouble = "NVML missing" },
			want:   "NVML does not say who uses GPU GPU-0",
		},
		"a claim":                     {seen: evidence{processes: idle, claims: claims(claimOn(s, "driver", "a1"))}, want: "task train of allocation a1 still has its claim"},
		"a claim of another boot":     {seen: evidence{processes: idle, claims: claims(old)}},
		"claims that can't be read":   {seen: evidence{processes: idle, claimsErr: errors.New("no leader")}, want: "the claims can't be read: no leader"},
		"a Nomad agent that is down":  {seen: evidence{processes: idle, allocsErr: errors.New("the agent is down")}, want: "the agent is down"},
		"an allocation that runs":     {seen: evidence{processes: idle, allocs: []allocation{holding}}, want: "allocation a1 has not ended"},
		"an allocation that ended":    {seen: evidence{processes: idle, allocs: []allocation{ended}}},
		"an allocation that was lost": {seen: evidence{processes: idle, allocs: []allocation{forgotten}}},
		"an allocation of an earlier reservation": {
			seen: evidence{processes: idle, allocs: []allocation{{id: "a0", instanceIDs: map[string][]string{"train": {"GPU-0@r0"}}}}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(4, s)
			if c.change != nil {
				c.change(&w)
			}
			must.Eq(t, c.want, w.inUse(s, c.seen).text)
		})
	}
}

func TestOwns(t *testing.T) {
	s := foreign(slot("r1", 1, 0, 1))
	right := allocation{id: "a1", namespace: "default", job: "train", group: "worker", jobCreated: 10}
	cases := map[string]struct {
		change func(*allocation)
		want   string
	}{
		"the owner":          {change: func(*allocation) {}},
		"a dispatched child": {change: func(a *allocation) { a.job, a.parent, a.jobCreated = "train/dispatch-1", "train", 99 }},
		"another namespace": {
			change: func(a *allocation) { a.namespace = "other" },
			want:   "slot train.1 belongs to job train in namespace default, not to job train in namespace other",
		},
		"another job with the same gang": {
			change: func(a *allocation) { a.job = "thief" },
			want:   "slot train.1 belongs to job train in namespace default, not to job thief in namespace default",
		},
		"another group": {
			change: func(a *allocation) { a.group = "launcher" },
			want:   "slot train.1 belongs to group worker of job train, not to group launcher",
		},
		"the job registered anew after a purge": {
			change: func(a *allocation) { a.jobCreated = 77 },
			want:   "slot train.1 belongs to an earlier registration of job train (create index 10, not 77)",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a := right
			c.change(&a)
			err := owns(a, s)
			if c.want == "" {
				must.NoError(t, err)
			} else {
				must.EqError(t, err, c.want)
			}
		})
	}
}

func TestHolderOf(t *testing.T) {
	ids := []string{"GPU-0@r1", "GPU-1@r1"}
	of := func(id string, created uint64, change func(*allocation), has ...string) allocation {
		a := allocation{id: id, created: created, instanceIDs: map[string][]string{"side": nil, "train": has}}
		if change != nil {
			change(&a)
		}
		return a
	}
	allocs := []allocation{
		of("older", 1, nil, ids...),
		of("newest", 5, nil, "GPU-1@r1", "GPU-0@r1"),
		of("middle", 3, nil, ids...),
		of("ended", 9, func(a *allocation) { a.ended = true }, ids...),
		of("stopping", 9, func(a *allocation) { a.stopping = true }, ids...),
		of("lost", 9, func(a *allocation) { a.forgotten = true }, ids...),
		of("partly", 9, nil, "GPU-0@r1"),
	}
	holder, task, found := holderOf(ids, allocs)
	must.True(t, found)
	must.Eq(t, "newest", holder.id)
	must.Eq(t, "train", task)
	_, _, found = holderOf([]string{"GPU-2@r1"}, allocs)
	must.False(t, found)
}

// TestFinishedClaims says when a claim that no driver looks after ends.
func TestFinishedClaims(t *testing.T) {
	closes := closing(foreign(slot("r1", 1, 0, 1)), "preempted")
	open := foreign(slot("r1", 1, 0, 1))
	claim := claimOn(open, claimedByPlugin, "a1")
	byDriver := claimOn(open, "driver", "a1")
	earlierBoot := byDriver
	earlierBoot.BootID = "boot-0"
	busy := map[string][]gpu.Process{uuid(0): {{PID: 7}}, uuid(1): nil}
	idle := map[string][]gpu.Process{uuid(0): nil, uuid(1): nil}
	running := []allocation{{id: "a1", instanceIDs: map[string][]string{"train": instanceIDs(open)}}}
	ended := []allocation{{id: "a1", ended: true}}
	away := errors.New("connection refused")
	for name, c := range map[string]struct {
		slot      ledger.Slot
		claim     ledger.Claim
		processes map[string][]gpu.Process
		allocs    []allocation
		allocsErr error
		want      bool
	}{
		"it may run":                              {slot: open, claim: claim, processes: busy, allocs: running},
		"its slot closes, the placer ends it":     {slot: closes, claim: claim, processes: busy, allocs: running},
		"ended, but a process is left":            {slot: closes, claim: claim, processes: busy, allocs: ended},
		"ended":                                   {slot: closes, claim: claim, processes: idle, allocs: ended, want: true},
		"ended by itself":                         {slot: open, claim: claim, processes: idle, allocs: ended, want: true},
		"forgotten by Nomad, and nothing runs":    {slot: open, claim: claim, processes: idle, want: true},
		"forgotten by Nomad, but it runs":         {slot: open, claim: claim, processes: busy},
		"the agent does not answer":               {slot: open, claim: claim, processes: idle, allocsErr: away},
		"Muster's driver looks after its own":     {slot: closes, claim: byDriver, processes: idle},
		"a claim of an earlier boot is void":      {slot: closes, claim: earlierBoot, processes: idle, allocs: running, want: true},
		"void, but something still uses the GPUs": {slot: closes, claim: earlierBoot, processes: busy},
	} {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(4, c.slot)
			got := w.finished(evidence{processes: c.processes, claims: claims(c.claim), allocs: c.allocs, allocsErr: c.allocsErr})
			must.Eq(t, c.want, len(got) == 1)
		})
	}
}

func TestAckSaysWhatKeepsSlots(t *testing.T) {
	a, b, c := closing(slot("r1", 0, 0), "stopped"), closing(slot("r1", 1, 1), "stopped"), closing(slot("r2", 0, 2), "stopped")
	w := settledWorld(4, a, b, c)
	w.cleared = map[ledger.SlotID]bool{b.ID(): true}
	long := "GPU GPU-0f0f0f0f-0000-0000-0000-00000000000f is used by process 4711 (trainer-ÄÖÜ), process 4712 (trainer-ÄÖÜ), process 4713 (trainer-ÄÖÜ)"
	w.kept = map[ledger.SlotID]busy{
		a.ID(): {by: "process 4711", text: long},
		b.ID(): {by: "claim a1", text: "task train of allocation a1 still has its claim"},
		c.ID(): {by: "claim a2", text: "task train of allocation a2 still has its claim"},
	}
	w.settle()
	ack := w.ack()
	must.Eq(t, []string{"r1.1"}, ack.Clear)
	must.Eq(t, map[string]string{
		"r1.0": "GPU GPU-0f0f0f0f-0000-0000-0000-00000000000f is used by process 4711 (trainer-ÄÖÜ), process 4712 (trainer-ÄÖÜ),…",
		"r2.0": "task train of allocation a2 still has its claim",
	}, ack.Busy)
	must.LessEq(t, maxBusyBytes, len(ack.Busy["r1.0"]))
}
