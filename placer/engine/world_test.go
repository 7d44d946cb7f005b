// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/nomad"
	"github.com/nomad-muster/muster/placer/policy"
)

// tester is what a test and a property test have in common.
type tester interface {
	must.T
	Context() context.Context
	Fatalf(format string, args ...any)
}

// world is a small cluster in memory: a ledger, a Nomad that does what it is told, nodes whose plugins and drivers answer
// through the ledger, and one leading placer whose decisions are taken one by one.
type world struct {
	t      tester
	now    time.Time
	store  *ledger.Memory
	ledger *ledger.Ledger
	leader *leader
	log    bytes.Buffer
	ids    int // reservations so far

	index  uint64 // of Nomad
	jobs   map[nomad.JobID]*api.Job
	gone   map[nomad.JobID]string
	nodes  map[string]*structs.Node // by name
	allocs []*nomad.Alloc
	stale  string
	said   []string // announcements

	rights  string                 // why Nomad takes no change of a job; empty: it does
	allowed int                    // changes that Nomad takes all the same
	denied  map[nomad.JobID]string // what the placer has heard of that

	decide  func(model.Snapshot, time.Time) model.Decision // the policy; nil: the real one
	plugins map[string]*devicePlugin                       // by node
	saved   ledger.Saved
}

func newWorld(t tester) *world {
	w := &world{
		t: t, now: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), store: ledger.NewMemory(),
		jobs: map[nomad.JobID]*api.Job{}, gone: map[nomad.JobID]string{}, nodes: map[string]*structs.Node{}, index: 10,
		denied: map[nomad.JobID]string{}, plugins: map[string]*devicePlugin{},
	}
	w.ledger = ledger.New(w.store, "global")
	w.elect()
	return w
}

// elect starts a new term of leadership.
func (w *world) elect() {
	ctx := w.t.Context()
	var last ledger.Snapshot
	if w.leader != nil {
		last = w.leader.snapshot
		must.NoError(w.t, w.store.DestroySession(ctx, w.leader.lease.Session))
	}
	// A ledger that was set back has an old session hold the key again, until its check fails.
	if held, err := w.store.Get(ctx, w.ledger.Keys().Leader()); err == nil && held.Session != "" {
		must.NoError(w.t, w.store.DestroySession(ctx, held.Session))
	}
	session, err := w.store.CreateSession(ctx, ledger.SessionSpec{Name: "placer"})
	must.NoError(w.t, err)
	lease := ledger.Lease{Session: session, Key: w.ledger.Keys().Leader()}
	lock := ledger.Op{Verb: ledger.Lock, Key: lease.Key, Value: []byte(`{"name":"placer"}`), Session: session}
	until(w.t, func() error { _, err := w.store.Txn(ctx, []ledger.Op{lock}); return err })

	reader := NewReader(jobspecsOptions())
	checker := nomad.NewChecker()
	w.leader = newLeader(Options{
		Name: "placer", Ledger: w.ledger, Nomad: w, Tick: time.Second,
		Announce: func(_ nomad.JobID, _, text string) { w.said = append(w.said, text) },
		Signal:   func(context.Context, *nomad.Alloc, string, string) {},
		WriteJob: func(_ context.Context, job *nomad.Job, write nomad.JobWrite) { w.writeJob(job, write) },
		Denied:   func() map[nomad.JobID]string { return w.denied },
		Turn:     func() { reader.Turn(); checker.Turn() },
		Now:      func() time.Time { return w.now },
		Logger:   slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{ReplaceAttr: plainLog})),
		Rules: Rules{
			Keys: w.ledger.Keys(), Levels: []string{"rack"}, PortBase: 20000,
			PlacementDeadline: time.Minute, StartTimeout: 15 * time.Minute, FenceTime: 2 * time.Minute,
			Read: reader.Read, Decide: w.policy, Refusal: checker.Refusal,
			NewID: func() string { w.ids++; return fmt.Sprintf("res%d", w.ids) },
		},
	}, lease, last)
	must.NoError(w.t, w.leader.begin(ctx))
}

func (w *world) policy(s model.Snapshot, now time.Time) model.Decision {
	if w.decide != nil {
		return w.decide(s, now)
	}
	return policy.Decide(s, now)
}

func jobspecsOptions() jobspecs.Options {
	return jobspecs.Options{FenceTime: 2 * time.Minute, Levels: []string{"rack"}}
}

// until tries for a while.
func until(t tester, try func() error) {
	deadline := time.Now().Add(time.Minute)
	err := try()
	for ; err != nil && time.Now().Before(deadline); err = try() {
		time.Sleep(time.Millisecond) // between two polls
	}
	must.NoError(t, err)
}

// plainLog leaves time and level out of the log.
func plainLog(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}

// settle lets the leader decide until it has nothing more to do, and returns what it logged.
func (w *world) settle() string {
	w.leader.doubtful = true
	for range 50 {
		again, err := w.leader.decide(w.t.Context())
		if errors.Is(err, errSetBack) {
			w.elect()
			continue
		}
		must.NoError(w.t, err)
		if !again {
			out := strings.ReplaceAll(w.log.String(), "msg=", "")
			w.log.Reset()
			return out
		}
	}
	w.t.Fatalf("the leader never comes to rest:\n%s", w.log.String())
	return ""
}

// State, Changed and Track make the world the engine's Follower.
func (w *world) State() nomad.State {
	s := nomad.State{
		Jobs: map[nomad.JobID]*nomad.Job{}, Gone: maps.Clone(w.gone), Nodes: map[string]*structs.Node{},
		Allocs: map[string][]*nomad.Alloc{}, Slots: map[ledger.SlotID][]*nomad.Alloc{}, Index: w.index, FreshAt: w.now, Stale: w.stale,
	}
	for id, job := range w.jobs {
		text, err := json.Marshal(job)
		must.NoError(w.t, err)
		read, err := nomad.ReadJob(text)
		must.NoError(w.t, err)
		must.Eq(w.t, "", read.Problem)
		s.Jobs[id] = read
	}
	for _, node := range w.nodes {
		s.Nodes[node.ID] = node
	}
	for _, a := range w.allocs {
		s.Allocs[a.NodeID] = append(s.Allocs[a.NodeID], a)
		for _, slot := range a.Slots {
			s.Slots[slot] = append(s.Slots[slot], a)
		}
	}
	return s
}

func (w *world) Changed() <-chan struct{} { return nil }
func (w *world) Track([]nomad.JobID)      {}

func (w *world) next() uint64 {
	w.index++
	return w.index
}

// addNode makes a node that is known to Nomad and to the ledger, with its GPUs joined by NVLink.
func (w *world) addNode(name, rack string, gpus int) {
	ctx := w.t.Context()
	w.plugins[name] = &devicePlugin{}
	w.nodes[name] = &structs.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: structs.NodeStatusReady,
		SchedulingEligibility: structs.NodeSchedulingEligible, ModifyIndex: w.next(),
		Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &structs.NodeResources{
			Cpu: structs.NodeCpuResources{CpuShares: 100000, TotalCpuCores: 64}, Memory: structs.NodeMemoryResources{MemoryMB: 1 << 20},
			Disk:     structs.NodeDiskResources{DiskMB: 1 << 20},
			Networks: structs.Networks{{Mode: "host", Device: "eth0", IP: "10.0.0.1"}},
			NodeNetworks: []*structs.NodeNetworkResource{{
				Mode: "host", Device: "eth0", Addresses: []structs.NodeNetworkAddress{{Alias: "default", Address: "10.0.0.1"}},
			}},
		},
		Drivers: map[string]*structs.DriverInfo{
			"muster": {Detected: true, Healthy: true}, "docker": {Detected: true, Healthy: true},
		},
	}
	n := ledger.Node{
		Version: ledger.Version, Node: name, NodeID: "id-" + name, Address: "10.0.0." + strings.TrimPrefix(name, "n"),
		MachineID: "machine-" + name, BootID: "boot-" + name, Topology: map[string]string{"rack": rack},
	}
	for i := range gpus {
		n.Machine.GPUs = append(n.Machine.GPUs, gpu.GPU{UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, Minor: i, Model: "H100", MemoryMiB: 81920})
		n.Machine.Links = append(n.Machine.Links, make([]gpu.Link, gpus))
		for j := range gpus {
			if i != j {
				n.Machine.Links[i][j] = gpu.Link{NVLinks: 18, NVLinkMBps: 450000}
			}
		}
	}
	session, err := w.store.CreateSession(ctx, ledger.NodeSession(name))
	must.NoError(w.t, err)
	must.NoError(w.t, w.ledger.PublishNode(ctx, session, n))
	w.plugins[name].inventory = n
}

func (w *world) load() ledger.Snapshot {
	s, err := w.ledger.Load(w.t.Context())
	must.NoError(w.t, err)
	return s
}

// living is the allocation that stands on a slot; nil: none.
func (w *world) living(slot ledger.SlotID) *nomad.Alloc {
	for _, a := range w.allocs {
		if slices.Contains(a.Slots, slot) && !a.Terminal() {
			return a
		}
	}
	return nil
}

// complete says whether Nomad counts the member on a slot as done.
func (w *world) complete(slot ledger.SlotID) bool {
	return slices.ContainsFunc(w.allocs, func(a *nomad.Alloc) bool {
		return slices.Contains(a.Slots, slot) && a.Client == structs.AllocClientStatusComplete
	})
}

// place lets Nomad put an allocation on every open slot whose job is alive.
func (w *world) place() {
	s := w.load()
	for _, node := range slices.Sorted(maps.Keys(s.Tables)) {
		for _, slot := range s.Tables[node].Doc.Slots {
			id := nomad.JobID{Namespace: slot.Owner.Namespace, ID: slot.Owner.Job}
			job := w.jobs[id]
			if slot.State != ledger.SlotOpen || w.living(slot.ID()) != nil || w.complete(slot.ID()) || job == nil || *job.Stop || *job.Status == "dead" {
				continue
			}
			*job.Status = "running"
			w.allocs = append(w.allocs, &nomad.Alloc{
				ID: fmt.Sprintf("alloc-%s-%d", slot.ID(), w.next()), Job: id, JobVersion: *job.Version, Group: slot.Owner.Group,
				NodeID: w.nodes[node].ID, Client: structs.AllocClientStatusPending, Desired: structs.AllocDesiredStatusRun, Created: w.index,
				Slots: []ledger.SlotID{slot.ID()}, Tasks: map[string]nomad.Task{},
			})
		}
	}
}

// slotsOf are the slots that a gang holds, with their nodes; of one whose document was lost, those that name it.
func (w *world) slotsOf(gang string) map[int]placedSlot {
	out, s := map[int]placedSlot{}, w.load()
	held := s.Gangs[gang].Doc.Reservation
	for node, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			_, other := out[slot.Rank]
			if slot.Owner.Gang == gang && (held == nil || held.ID == slot.Reservation) && (!other || slot.State == ledger.SlotOpen) {
				out[slot.Rank] = placedSlot{node, slot}
			}
		}
	}
	return out
}

type placedSlot struct {
	node string
	slot ledger.Slot
}

// claim lets the living allocations of a gang claim their slots and their drivers write that they have arrived.
func (w *world) claim(gang string, ranks ...int) {
	ctx := w.t.Context()
	slots := w.slotsOf(gang)
	for _, rank := range slices.Sorted(maps.Keys(slots)) {
		at := slots[rank]
		a := w.living(at.slot.ID())
		if len(ranks) > 0 && !slices.Contains(ranks, rank) || a == nil {
			continue
		}
		_, err := w.ledger.Claim(ctx, at.node, ledger.Claim{
			Version: ledger.Version, Reservation: at.slot.Reservation, Rank: rank, Allocation: a.ID, Task: at.slot.Owner.Task,
			Namespace: a.Job.Namespace, Job: a.Job.ID, BootID: w.load().Nodes[at.node].Doc.BootID,
		}, func(ledger.Slot) error { return nil })
		if refused := (*ledger.SlotError)(nil); errors.As(err, &refused) {
			continue // closing: its driver ends it soon
		}
		must.NoError(w.t, err)
		a.Client = structs.AllocClientStatusRunning
		if at.slot.Driver == driverMuster {
			w.member(at, ledger.Member{State: ledger.MemberArrived})
		}
	}
}

func (w *world) member(at placedSlot, m ledger.Member) {
	m.Version, m.Rank, m.Node, m.Generation = ledger.Version, at.slot.Rank, at.node, max(m.Generation, 1)
	must.NoError(w.t, w.ledger.PutMember(w.t.Context(), at.slot.Owner.Gang, at.slot.Reservation, m))
}

// run moves a gang's first run to a phase, as rank 0's driver does.
func (w *world) run(gang string, phase ledger.RunPhase, why string) { w.runAgain(gang, 1, phase, why) }

func (w *world) runAgain(gang string, generation int, phase ledger.RunPhase, why string) {
	w.t.Helper()
	ctx := w.t.Context()
	at := w.slotsOf(gang)[0]
	s := w.load()
	before := s.Runs[ledger.RunID{Gang: gang, Reservation: at.slot.Reservation}].Run
	doc := ledger.Run{Version: ledger.Version, Generation: generation, Phase: phase, Why: why}
	_, err := w.ledger.PutRun(ctx, gang, at.slot.Reservation, at.node, 0, ledger.Versioned[ledger.Run]{Doc: doc, Index: before.Index})
	must.NoError(w.t, err)
}

// end lets a member's allocation end and its claim go.
func (w *world) end(gang string, rank int, client string, task nomad.Task) {
	w.endOn(w.slotsOf(gang)[rank], client, task)
}

func (w *world) endOn(at placedSlot, client string, task nomad.Task) {
	a := w.holder(at)
	if a == nil {
		w.t.Fatalf("no allocation stands on rank %d of %s", at.slot.Rank, at.slot.Owner.Gang)
		return
	}
	a.Client, task.Dead = client, true
	a.Tasks = map[string]nomad.Task{at.slot.Owner.Task: task}
	must.NoError(w.t, w.ledger.Unclaim(w.t.Context(), at.node, at.slot.ID(), a.ID))
}

// holder is the allocation that has claimed a slot, or stands on it; nil: none.
func (w *world) holder(at placedSlot) *nomad.Alloc {
	claim, claimed := w.load().Claims[at.node][at.slot.ID()]
	for _, a := range w.allocs {
		if claimed && a.ID == claim.Doc.Allocation {
			return a
		}
	}
	return w.living(at.slot.ID())
}

// submit registers a job, or a new version of it.
func (w *world) submit(job *api.Job) {
	job.Canonicalize()
	id := nomad.JobID{Namespace: *job.Namespace, ID: *job.ID}
	index := w.next()
	create, version := index, uint64(0)
	if old := w.jobs[id]; old != nil {
		create, version = *old.CreateIndex, *old.Version+1
	}
	submitted := w.now.UnixNano()
	job.CreateIndex, job.JobModifyIndex, job.Version, job.SubmitTime = &create, &index, &version, &submitted
	job.Status, job.Stop = new(string), new(bool)
	*job.Status = "pending"
	w.jobs[id] = job
	delete(w.gone, id)
}

// writeJob is Nomad's answer to a change of a job by the placer.
func (w *world) writeJob(job *nomad.Job, write nomad.JobWrite) {
	if w.allowed--; w.rights != "" && w.allowed < 0 {
		w.denied[job.ID] = w.rights
		return
	}
	delete(w.denied, job.ID)
	now := w.jobs[job.ID]
	if now == nil || *now.JobModifyIndex != job.JobModifyIndex {
		return // somebody was faster
	}
	next := job.Written(write)
	version, index, status := *now.Version+1, w.next(), structs.JobStatusPending
	if *next.Stop {
		status = structs.JobStatusDead
	}
	next.CreateIndex, next.Version, next.JobModifyIndex, next.Status = now.CreateIndex, &version, &index, &status
	w.jobs[job.ID] = next
	for _, a := range w.allocs {
		if a.Job == job.ID && *next.Stop && !a.Terminal() {
			a.Desired = structs.AllocDesiredStatusStop
		}
	}
}

// purge takes a job out of Nomad.
func (w *world) purge(id nomad.JobID) {
	delete(w.jobs, id)
	w.gone[id] = "job " + id.ID + " is gone from Nomad"
}

// stop stops a job; its allocations end when their tasks do.
func (w *world) stop(id nomad.JobID) {
	stopped := *w.jobs[id]
	version, index, yes := *stopped.Version+1, w.next(), true
	stopped.Version, stopped.JobModifyIndex, stopped.Stop = &version, &index, &yes
	w.jobs[id] = &stopped
}
