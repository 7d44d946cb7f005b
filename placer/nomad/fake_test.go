// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
)

// fake is a Nomad in memory, as far as the follower reads it.
type fake struct {
	mu     sync.Mutex
	index  uint64
	jobs   map[JobID]*api.Job
	hidden map[JobID]bool // in no list, as if the token's rights filtered it
	nodes  map[string]*structs.Node
	allocs []*structs.AllocListStub
	down   error
	reads  int // of single jobs and nodes
	hints  chan kind
	opened chan struct{} // holds something once a stream was opened
}

func newFake() *fake {
	return &fake{index: 10, jobs: map[JobID]*api.Job{}, hidden: map[JobID]bool{}, nodes: map[string]*structs.Node{}, opened: make(chan struct{}, 1)}
}

// change does something to the fake and hints at it, as soon as somebody listens: a stream that is opened later starts
// from the index that was listed.
func (f *fake) change(hint kind, do func()) {
	f.mu.Lock()
	for deadline := time.Now().Add(time.Minute); hint != 0 && f.hints == nil && time.Now().Before(deadline); f.mu.Lock() {
		f.mu.Unlock()
		time.Sleep(time.Millisecond) // between two polls
	}
	f.index++
	do()
	hints := f.hints
	f.mu.Unlock()
	if hints != nil && hint != 0 {
		hints <- hint
	}
}

// put adds a job, or a new version of it.
func (f *fake) put(job *api.Job) {
	job.Canonicalize()
	index, create, version := f.index, f.index, uint64(0)
	if old := f.jobs[idOf(job)]; old != nil {
		create, version = *old.CreateIndex, *old.Version+1
	}
	job.CreateIndex, job.ModifyIndex, job.JobModifyIndex, job.Version = &create, &index, &index, &version
	f.jobs[idOf(job)] = job
}

func idOf(job *api.Job) JobID { return JobID{Namespace: *job.Namespace, ID: *job.ID} }

func (f *fake) Jobs(context.Context) ([]*structs.JobListStub, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*structs.JobListStub
	for _, id := range slices.SortedFunc(maps.Keys(f.jobs), JobID.Compare) {
		job := f.jobs[id]
		if f.hidden[id] {
			continue
		}
		out = append(out, &structs.JobListStub{
			ID: id.ID, Namespace: id.Namespace, Status: *job.Status, Stop: *job.Stop,
			CreateIndex: *job.CreateIndex, ModifyIndex: *job.ModifyIndex, JobModifyIndex: *job.JobModifyIndex,
		})
	}
	return out, f.index, f.down
}

func (f *fake) Job(_ context.Context, id JobID) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.down != nil {
		return nil, f.down
	}
	job, found := f.jobs[id]
	if !found {
		return nil, errNotFound
	}
	return json.Marshal(job)
}

func (f *fake) Nodes(context.Context) ([]nodeStub, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []nodeStub
	for _, id := range slices.Sorted(maps.Keys(f.nodes)) {
		out = append(out, nodeStub{ID: id, ModifyIndex: f.nodes[id].ModifyIndex})
	}
	return out, f.index, f.down
}

func (f *fake) Node(_ context.Context, id string) (*structs.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	node, found := f.nodes[id]
	if !found {
		return nil, errNotFound
	}
	return node, f.down
}

func (f *fake) Allocs(context.Context) ([]*structs.AllocListStub, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.allocs, f.index, f.down
}

func (f *fake) Events(ctx context.Context, _ uint64) (<-chan kind, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return nil, f.down
	}
	hints := make(chan kind)
	f.hints = hints
	select {
	case f.opened <- struct{}{}:
	default:
	}
	out := make(chan kind)
	go func() {
		defer close(out)
		for {
			select {
			case hint, open := <-hints:
				if !open {
					return
				}
				select {
				case out <- hint:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// hangUp breaks the event stream, once there is one.
func (f *fake) hangUp() {
	<-f.opened
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.hints)
	f.hints = nil
}

var errDown = errors.New("no cluster leader")
