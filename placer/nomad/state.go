// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/placer/ledger"
)

// JobID names a job. The same ID may exist in two namespaces.
type JobID struct{ Namespace, ID string }

// String is "<namespace>/<ID>".
func (id JobID) String() string { return id.Namespace + "/" + id.ID }

// Compare orders jobs by namespace, then ID.
func (id JobID) Compare(other JobID) int {
	return cmp.Or(cmp.Compare(id.Namespace, other.Namespace), cmp.Compare(id.ID, other.ID))
}

// State is what Nomad said last. It is never changed once it is handed out; a newer one takes its place.
type State struct {
	// Jobs are those that ask for gangs, stopped and dead ones included.
	Jobs map[JobID]*Job
	// Gone are the jobs that were tracked and are no gang's any more, each confirmed by a read of its own, with the
	// reason in words. A job that is in neither map is unknown: nothing follows from its absence.
	Gone map[JobID]string
	// Nodes are all nodes by Nomad node ID.
	Nodes map[string]*structs.Node
	// Allocs are all allocations that Nomad remembers, by node ID and by creation.
	Allocs map[string][]*Alloc
	// Slots are the allocations that name a slot by their devices, oldest first.
	Slots map[ledger.SlotID][]*Alloc
	// Index is the highest index that any list bore.
	Index uint64
	// FreshAt is when the lists were last known to be current.
	FreshAt time.Time
	// Stale says why the lists can't be brought up to date now; empty: they can. Nothing may be decided on a stale state.
	Stale string
}

// Job is a job that asks for a gang.
type Job struct {
	ID             JobID
	API            *api.Job     // for package jobspecs
	Spec           *structs.Job // for Nomad's own checkers; nil if Problem is set
	Problem        string       // why Spec can't be read
	Status         string       // pending, running or dead
	Stopped        bool
	Parent         bool // periodic or parameterized: never has allocations of its own
	CreateIndex    uint64
	Version        uint64
	JobModifyIndex uint64 // changes with every version of the spec
	SubmittedAt    time.Time
}

// Dead says whether Nomad counts the job as over: nothing of it will run again unless somebody submits it anew.
func (j *Job) Dead() bool { return j.Status == structs.JobStatusDead }

// Alloc is one allocation.
type Alloc struct {
	ID         string
	Job        JobID
	JobVersion uint64
	Group      string
	NodeID     string
	Client     string // client status: pending, running, complete, failed, lost, unknown
	Desired    string // desired status: run, stop, evict
	Message    string // the client's or the server's words about the status
	Created    uint64 // index
	Tasks      map[string]Task
	Resources  *structs.AllocatedResources
	Slots      []ledger.SlotID // those that its devices are of
}

// Terminal says whether the client reports that nothing of the allocation runs any more.
func (a *Alloc) Terminal() bool {
	switch a.Client {
	case structs.AllocClientStatusComplete, structs.AllocClientStatusFailed, structs.AllocClientStatusLost:
		return true
	}
	return false
}

// Stopping says whether Nomad wants a living allocation to end.
func (a *Alloc) Stopping() bool {
	return !a.Terminal() && a.Desired != structs.AllocDesiredStatusRun
}

// Task is how one task of an allocation stands.
type Task struct {
	Dead     bool
	Failed   bool
	Killed   bool   // somebody asked for its end: its exit code says nothing about success
	Exit     *int   // nil: it did not exit by itself, or has not yet
	Restarts int    // how often Nomad has restarted it in place, and it runs again or has ended
	Message  string // of the event that says most
}

// Succeeded says whether the task came to its own end with exit code 0.
func (t Task) Succeeded() bool {
	return t.Dead && !t.Failed && !t.Killed && t.Exit != nil && *t.Exit == 0
}

// indexAllocs sorts allocations into the two maps of a State.
func indexAllocs(allocs []*Alloc) (byNode map[string][]*Alloc, bySlot map[ledger.SlotID][]*Alloc) {
	byNode, bySlot = map[string][]*Alloc{}, map[ledger.SlotID][]*Alloc{}
	slices.SortFunc(allocs, func(a, b *Alloc) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID, b.ID))
	})
	for _, a := range allocs {
		byNode[a.NodeID] = append(byNode[a.NodeID], a)
		for _, slot := range a.Slots {
			bySlot[slot] = append(bySlot[slot], a)
		}
	}
	return byNode, bySlot
}
