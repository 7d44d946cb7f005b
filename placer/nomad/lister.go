// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
)

// lister lists, and keeps what it has read in full for as long as Nomad's indexes say that it has not changed, so that a
// list that broke off goes on from there. One goroutine uses it.
type lister struct {
	from source
	asks func(*api.Job) bool
	took time.Duration // of the last list

	jobs        map[JobID]*Job // that ask for gangs
	plain       map[JobID]uint64
	gone        map[JobID]string
	jobIndex    uint64
	nodes       map[string]*structs.Node
	nodeIndex   uint64
	allocs      []*Alloc
	allocIndex  uint64
	readIndexes map[string]uint64 // node ID: ModifyIndex as listed when it was read
}

func newLister(from source, asks func(*api.Job) bool) *lister {
	l := &lister{from: from, asks: asks}
	l.forget()
	return l
}

// forget drops all that was kept: Nomad's indexes went backwards, so that equal ones prove nothing.
func (l *lister) forget() {
	l.jobs, l.plain, l.gone = map[JobID]*Job{}, map[JobID]uint64{}, map[JobID]string{}
	l.nodes, l.readIndexes = map[string]*structs.Node{}, map[string]uint64{}
	l.jobIndex, l.nodeIndex, l.allocIndex = 0, 0, 0
	l.allocs = nil
}

// errWentBack says that an index decreased: a restored snapshot, or another cluster at the same address.
var errWentBack = errors.New("nomad's index went backwards")

// list lists what is asked for and makes a state of it and of what is known of the rest. moved says whether any list
// has changed.
func (l *lister) list(ctx context.Context, what kind, tracked []JobID) (state State, moved bool, err error) {
	before := [3]uint64{l.jobIndex, l.nodeIndex, l.allocIndex}
	gone := len(l.gone)
	err = l.read(ctx, what, tracked)
	if errors.Is(err, errWentBack) {
		l.forget()
		err = l.read(ctx, everything, tracked)
	}
	if err != nil {
		return State{}, false, err
	}
	byNode, bySlot := indexAllocs(l.allocs)
	state = State{
		Jobs: maps.Clone(l.jobs), Gone: maps.Clone(l.gone), Nodes: maps.Clone(l.nodes), Allocs: byNode, Slots: bySlot,
		Index: max(l.jobIndex, l.nodeIndex, l.allocIndex),
	}
	return state, before != [3]uint64{l.jobIndex, l.nodeIndex, l.allocIndex} || gone != len(l.gone), nil
}

// read lists nodes and allocations before jobs: an allocation's job is then never newer than the jobs that were seen.
func (l *lister) read(ctx context.Context, what kind, tracked []JobID) error {
	if what&nodes != 0 {
		if err := l.readNodes(ctx); err != nil {
			return err
		}
	}
	if what&allocs != 0 {
		if err := l.readAllocs(ctx); err != nil {
			return err
		}
	}
	if what&jobs != 0 {
		return l.readJobs(ctx, tracked)
	}
	return nil
}

func (l *lister) readNodes(ctx context.Context) error {
	stubs, index, err := l.from.Nodes(ctx)
	if err != nil {
		return err
	}
	if index < l.nodeIndex {
		return errWentBack
	}
	next, indexes := make(map[string]*structs.Node, len(stubs)), make(map[string]uint64, len(stubs))
	for _, stub := range stubs {
		node := l.nodes[stub.ID]
		if node == nil || l.readIndexes[stub.ID] != stub.ModifyIndex {
			node, err = l.from.Node(ctx, stub.ID)
			if errors.Is(err, errNotFound) {
				continue // purged since it was listed
			}
			if err != nil {
				return err
			}
			l.nodes[stub.ID], l.readIndexes[stub.ID] = node, stub.ModifyIndex // kept if this list breaks off
		}
		next[stub.ID], indexes[stub.ID] = node, stub.ModifyIndex
	}
	l.nodes, l.readIndexes, l.nodeIndex = next, indexes, index
	return nil
}

func (l *lister) readAllocs(ctx context.Context) error {
	stubs, index, err := l.from.Allocs(ctx)
	if err != nil {
		return err
	}
	if index < l.allocIndex {
		return errWentBack
	}
	l.allocs = make([]*Alloc, 0, len(stubs))
	for _, stub := range stubs {
		l.allocs = append(l.allocs, readAlloc(stub))
	}
	l.allocIndex = index
	return nil
}

func (l *lister) readJobs(ctx context.Context, tracked []JobID) error {
	stubs, index, err := l.from.Jobs(ctx)
	if err != nil {
		return err
	}
	if index < l.jobIndex {
		return errWentBack
	}
	found, plain, gone := map[JobID]*Job{}, map[JobID]uint64{}, map[JobID]string{}
	for _, stub := range stubs {
		id := JobID{Namespace: stub.Namespace, ID: stub.ID}
		if known, is := l.plain[id]; is && known == stub.JobModifyIndex {
			plain[id] = known
			continue
		}
		job := l.jobs[id]
		if job == nil || job.JobModifyIndex != stub.JobModifyIndex {
			if job, err = l.readJob(ctx, id); errors.Is(err, errNotFound) {
				continue // purged since it was listed
			} else if err != nil {
				return err
			}
		} else {
			job = job.with(stub)
		}
		if l.asks(job.API) {
			found[id], l.jobs[id] = job, job // kept if this list breaks off
		} else {
			plain[id], l.plain[id] = job.JobModifyIndex, job.JobModifyIndex
		}
	}
	if err := l.confirm(ctx, tracked, found, plain, gone); err != nil {
		return err
	}
	l.jobs, l.plain, l.gone, l.jobIndex = found, plain, gone, index
	return nil
}

// confirm reads those tracked jobs by themselves that no list shows.
func (l *lister) confirm(ctx context.Context, tracked []JobID, found map[JobID]*Job, plain map[JobID]uint64, gone map[JobID]string) error {
	for _, id := range tracked {
		if found[id] != nil {
			continue
		}
		if _, is := plain[id]; is {
			gone[id] = "job " + id.ID + " does not ask for GPUs of a gang any more"
			continue
		}
		job, err := l.readJob(ctx, id)
		switch {
		case errors.Is(err, errNotFound):
			gone[id] = "job " + id.ID + " is gone from Nomad"
		case err != nil:
			return err
		case l.asks(job.API):
			found[id] = job
		default:
			gone[id] = "job " + id.ID + " does not ask for GPUs of a gang any more"
		}
	}
	return nil
}

func (l *lister) readJob(ctx context.Context, id JobID) (*Job, error) {
	text, err := l.from.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	return ReadJob(text)
}

// with is the job with what may change within one version of its spec.
func (j *Job) with(stub *structs.JobListStub) *Job {
	if j.Status == stub.Status && j.Stopped == stub.Stop {
		return j
	}
	next := *j
	next.Status, next.Stopped = stub.Status, stub.Stop
	return &next
}
