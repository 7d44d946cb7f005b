// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// gangJob asks for GPUs of a gang.
func gangJob(name string, count int) *api.Job {
	task := api.NewTask("main", "raw_exec")
	gpus := uint64(8)
	task.Require(&api.Resources{Devices: []*api.RequestedDevice{{
		Name: "muster/gang", Count: &gpus, Constraints: []*api.Constraint{{LTarget: "${device.attr.gang}", RTarget: name, Operand: "="}},
	}}})
	job := api.NewBatchJob(name, name, "global", 50).AddTaskGroup(api.NewTaskGroup("worker", count).AddTask(task))
	job.Datacenters = []string{"dc1"}
	return job
}

func plainJob(name string) *api.Job {
	return api.NewBatchJob(name, name, "global", 50).AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(api.NewTask("t", "raw_exec")))
}

func asks(job *api.Job) bool {
	for _, group := range job.TaskGroups {
		for _, task := range group.Tasks {
			if task.Resources != nil && len(task.Resources.Devices) > 0 {
				return true
			}
		}
	}
	return false
}

// following starts a follower of a fake Nomad.
func following(t *testing.T, f *fake) *Follower {
	t.Helper()
	follower := newFollower(f, FollowerOptions{
		Asks: asks, RelistInterval: time.Hour, Settle: time.Millisecond, Retry: time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); follower.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	awaitState(t, follower, func(s State) bool { return s.Stale == "" })
	return follower
}

// awaitState waits for a state that passes a check, by the follower's own notices.
func awaitState(t *testing.T, f *Follower, check func(State) bool) State {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		s := f.State()
		if check(s) {
			return s
		}
		select {
		case <-f.Changed():
		case <-deadline:
			t.Fatalf("the state never came: %+v", s)
		}
	}
}

func TestFollowerKeepsJobsThatAskForGangs(t *testing.T) {
	f := newFake()
	f.put(gangJob("train", 2))
	f.put(plainJob("web"))
	follower := following(t, f)
	train := JobID{Namespace: "default", ID: "train"}

	s := follower.State()
	must.MapLen(t, 1, s.Jobs)
	must.Eq(t, 2, s.Jobs[train].Spec.TaskGroups[0].Count)
	must.Eq(t, uint64(0), s.Jobs[train].Version)

	f.change(jobs, func() { f.put(gangJob("train", 3)) })
	s = awaitState(t, follower, func(s State) bool { return s.Jobs[train].Version == 1 })
	must.Eq(t, 3, s.Jobs[train].Spec.TaskGroups[0].Count)

	reads := f.reads
	f.change(jobs, func() { *f.jobs[train].Status = "running" })
	awaitState(t, follower, func(s State) bool { return s.Jobs[train].Status == "running" })
	must.Eq(t, reads, f.reads, must.Sprint("a change of status needs no read of the job"))
}

func TestFollowerTellsAPurgeFromAListThatHides(t *testing.T) {
	f := newFake()
	f.put(gangJob("train", 1))
	follower := following(t, f)
	train := JobID{Namespace: "default", ID: "train"}
	follower.Track([]JobID{train})

	f.change(jobs, func() { f.hidden[train] = true })
	s := awaitState(t, follower, func(s State) bool { return s.Index == 11 })
	must.MapLen(t, 1, s.Jobs, must.Sprint("it is still there when read by itself"))

	f.change(jobs, func() { delete(f.jobs, train) })
	s = awaitState(t, follower, func(s State) bool { return s.Jobs[train] == nil })
	must.Eq(t, "job train is gone from Nomad", s.Gone[train])

	f.change(jobs, func() { f.hidden = map[JobID]bool{}; f.put(plainJob("train")) })
	s = awaitState(t, follower, func(s State) bool { return s.Index == 13 })
	must.Eq(t, "job train does not ask for GPUs of a gang any more", s.Gone[train])
}

func TestFollowerKeepsTheLastStateThroughAnOutage(t *testing.T) {
	f := newFake()
	f.put(gangJob("train", 1))
	follower := following(t, f)

	f.change(jobs, func() { f.down = errDown })
	s := awaitState(t, follower, func(s State) bool { return s.Stale != "" })
	must.Eq(t, errDown.Error(), s.Stale)
	must.MapLen(t, 1, s.Jobs)

	f.change(0, func() { f.down = nil; f.put(gangJob("other", 1)) })
	awaitState(t, follower, func(s State) bool { return s.Stale == "" && len(s.Jobs) == 2 })
}

func TestFollowerListsAgainAfterTheStreamBreaks(t *testing.T) {
	f := newFake()
	follower := following(t, f)
	f.change(0, func() { f.put(gangJob("train", 1)) }) // no event tells of it
	f.hangUp()
	awaitState(t, follower, func(s State) bool { return len(s.Jobs) == 1 })
}

func TestFollowerForgetsWhenTheIndexGoesBack(t *testing.T) {
	f := newFake()
	f.put(gangJob("train", 1))
	f.nodes["n1"] = &structs.Node{ID: "n1", Name: "old", ModifyIndex: 5}
	follower := following(t, f)

	f.change(jobs, func() {
		f.index = 3 // a snapshot was restored: the same indexes stand for other content
		f.jobs = map[JobID]*api.Job{}
		f.nodes["n1"] = &structs.Node{ID: "n1", Name: "new", ModifyIndex: 5}
	})
	s := awaitState(t, follower, func(s State) bool { return s.Index == 3 })
	must.MapEmpty(t, s.Jobs)
	must.Eq(t, "new", s.Nodes["n1"].Name)
}

func TestFollowerReadsOnlyNodesThatChanged(t *testing.T) {
	f := newFake()
	f.nodes["n1"] = &structs.Node{ID: "n1", ModifyIndex: 5}
	f.nodes["n2"] = &structs.Node{ID: "n2", ModifyIndex: 5}
	follower := following(t, f)
	reads := f.reads
	f.change(nodes, func() { f.nodes["n2"] = &structs.Node{ID: "n2", ModifyIndex: 11, Status: "down"} })
	awaitState(t, follower, func(s State) bool { return s.Nodes["n2"].Status == "down" })
	must.Eq(t, reads+1, f.reads)
}

func TestFollowerFindsTheSlotsOfAllocations(t *testing.T) {
	f := newFake()
	device := &structs.AllocatedDeviceResource{Vendor: "muster", Type: "gang", Name: "a.b.3", DeviceIDs: []string{"GPU-1@abc"}}
	other := &structs.AllocatedDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: []string{"GPU-2"}}
	f.allocs = []*structs.AllocListStub{{
		ID: "x", Namespace: "default", JobID: "train", NodeID: "n1", ClientStatus: "running", DesiredStatus: "run", CreateIndex: 7,
		AllocatedResources: &structs.AllocatedResources{Tasks: map[string]*structs.AllocatedTaskResources{
			"main": {Devices: []*structs.AllocatedDeviceResource{device, other}},
		}},
	}}
	s := following(t, f).State()
	slot := ledger.SlotID{Reservation: "abc", Rank: 3}
	must.Len(t, 1, s.Slots[slot])
	must.Eq(t, "x", s.Slots[slot][0].ID)
	must.Eq(t, []ledger.SlotID{slot}, s.Allocs["n1"][0].Slots)
}
