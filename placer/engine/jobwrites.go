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

const (
	endAfter   = 2 * time.Second  // Nomad may see by itself that a job is over
	tellFirst  = 3 * time.Second  // how long before a job is stopped its user is told why
	writeEvery = 20 * time.Second // how often the same change of a job is tried
)

// jobWrites are the changes of jobs that Nomad needs: at most one of each job, and each again and again until the job is
// seen to have changed, as the right to do it may be missing for a while.
func (s step) jobWrites() []Action {
	var actions []Action
	add := func(a Action, some bool) {
		tried := s.Memory.Written[a.jobID()]
		if some && (tried.Index != a.Job.JobModifyIndex || s.now.Sub(tried.At) >= writeEvery) {
			actions = append(actions, a)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ledger.Gangs)) {
		add(s.ownersWrite(s.Ledger.Gangs[name].Doc))
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.wants), nomad.JobID.Compare) {
		add(s.halfReset(s.wants[id].job))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Ledger.Refusals)) {
		refusal := s.Ledger.Refusals[key].Doc
		stop, due := s.taker(refusal)
		if due && !refusal.Ended { // first, so that the reason outlives the job
			refusal.Ended = true
			actions = append(actions, Action{Kind: Refuse, Refusal: refusal})
			continue
		}
		add(stop, due)
	}
	return actions
}

// halfReset is the other half of a reset of which the ledger knows nothing any more, since it was lost or set back: the
// job itself says what it was stopped for.
func (s step) halfReset(job *nomad.Job) (Action, bool) {
	if job.Version == 0 || !job.StoppedForReset(job.Version-1) {
		return Action{}, false
	}
	for _, g := range s.Ledger.Gangs {
		if jobOf(g.Doc) == job.ID && g.Doc.Reset != nil {
			return Action{}, false
		}
	}
	return Action{Kind: WriteJob, What: endReset, Job: job, Write: nomad.RegisterStopped}, true
}

func (a Action) jobID() nomad.JobID {
	if a.Job == nil {
		return nomad.JobID{}
	}
	return a.Job.ID
}

// stillWritten are the changes of jobs that have not shown yet.
func (v View) stillWritten(before map[nomad.JobID]Written) map[nomad.JobID]Written {
	after := map[nomad.JobID]Written{}
	for id, written := range before {
		if job := v.Nomad.Jobs[id]; job != nil && job.JobModifyIndex == written.Index {
			after[id] = written
		}
	}
	return after
}

// ownersWrite is the change that a gang's own job needs.
func (s step) ownersWrite(g ledger.Gang) (Action, bool) {
	w, how, _ := s.owner(g)
	if how != owns {
		return Action{}, false
	}
	change := func(what string, write nomad.JobWrite) (Action, bool) {
		return Action{Kind: WriteJob, What: what, Gang: g, Job: w.job, Write: write}, true
	}
	switch over := s.now.Sub(g.Since) >= endAfter; {
	case g.Reset != nil && w.job.Stopped:
		return change(endReset, nomad.RegisterStopped)
	case g.Reset != nil && w.job.Version == g.Reset.FromVersion && s.livingOf(w.job.ID) == nil:
		return change(endReset, nomad.StopForReset)
	case g.State == ledger.GangFinished && over && s.wantsMore(g, w.job):
		return change(endFinished, nomad.StopJob)
	case g.State == ledger.GangFailed && over && g.Why != nil && g.Why.Code == WhyGivenUp &&
		!w.job.Dead() && w.job.Version == g.JobVersion && s.livingBeside(w) == nil:
		return change(endFailed, nomad.StopJob)
	}
	return Action{}, false
}

// wantsMore says whether Nomad would run the job of a finished gang again, although all that it has is the gang and
// nothing of it is alive. Nomad (1.6) forgets that a batch allocation is complete when its group has
// max_client_disconnect, which gangs must have: the next evaluation of any cause asks for all members again, and the job
// would stay pending for ever.
func (s step) wantsMore(g ledger.Gang, job *nomad.Job) bool {
	if job.Dead() || job.Version != g.JobVersion || len(job.API.TaskGroups) != len(g.Spec.Groups) {
		return false
	}
	return s.livingOf(job.ID) == nil
}

// taker ends a refused job that would take the slots of others: one that names no gang, or a gang that is another job's.
// Nomad would place it on every slot that is free, in vain and again at once, and the slot's owner might never get there. A
// child of another job that only asked too early is left alone, since it gets its turn, and so is a job of which something
// else runs.
func (s step) taker(r ledger.Refusal) (Action, bool) {
	w, asks := s.wants[nomad.JobID{Namespace: r.Namespace, ID: r.Job}]
	if !asks || !w.alive() || w.job.Version != r.JobVersion || w.job.CreateIndex != r.CreateIndex ||
		s.now.Sub(r.At) < tellFirst || s.livingBeside(w) != nil || s.mayHold(w.job) {
		return Action{}, false
	}
	stop := Action{Kind: WriteJob, What: endTaker, Job: w.job, Write: nomad.StopJob}
	if slices.ContainsFunc(w.spec.Groups, func(g ledger.GroupSpec) bool { return g.Value == "" }) {
		return stop, true
	}
	first, exists := s.Ledger.Gangs[w.name]
	if !exists || w.job.Child() || !keepsName(first.Doc) || jobOf(first.Doc) == w.job.ID {
		return Action{}, false
	}
	_, how, _ := s.owner(first.Doc)
	stop.What, stop.Gang = endSecond, first.Doc
	return stop, how == owns
}

// mayHold says whether a job has slots, whatever gang documents say, or may have some in a ledger that is still being put in
// order: it is nobody's to stop then.
func (s step) mayHold(job *nomad.Job) bool {
	if s.freeze != nil || s.Memory.SetBack && s.patient() {
		return true
	}
	for _, table := range s.Ledger.Tables {
		if slices.ContainsFunc(table.Doc.Slots, func(slot ledger.Slot) bool {
			return job.ID == nomad.JobID{Namespace: slot.Owner.Namespace, ID: slot.Owner.Job} && job.CreateIndex == slot.Owner.CreateIndex
		}) {
			return true
		}
	}
	return false
}

// keepsName says that a gang is not about to leave its name to another job.
func keepsName(g ledger.Gang) bool {
	switch g.State {
	case ledger.GangWaiting, ledger.GangReserved, ledger.GangRunning:
		return true
	case ledger.GangClosing:
		return g.After == ledger.GangWaiting
	case ledger.GangFinished, ledger.GangFailed:
	}
	return false
}

// livingOf is an allocation of a job that may still run something; nil: none. Those that are beyond reach do not count.
func (s step) livingOf(job nomad.JobID) *nomad.Alloc {
	return s.firstLiving(job, func(*nomad.Alloc) bool { return true })
}

// livingBeside is an allocation of a group that is no part of the gang; nil: none.
func (s step) livingBeside(w want) *nomad.Alloc {
	return s.firstLiving(w.job.ID, func(a *nomad.Alloc) bool {
		return !slices.ContainsFunc(w.spec.Groups, func(g ledger.GroupSpec) bool { return g.Group == a.Group })
	})
}

func (s step) firstLiving(job nomad.JobID, is func(*nomad.Alloc) bool) *nomad.Alloc {
	for _, a := range s.allocs[job] {
		if !a.Terminal() && is(a) && !s.beyond(a) {
			return a
		}
	}
	return nil
}

// allocsOf sorts Nomad's allocations by job, for those jobs that ask for gangs.
func allocsOf(state nomad.State, wants map[nomad.JobID]want) map[nomad.JobID][]*nomad.Alloc {
	out := map[nomad.JobID][]*nomad.Alloc{}
	for _, node := range slices.Sorted(maps.Keys(state.Allocs)) {
		for _, a := range state.Allocs[node] {
			if _, asks := wants[a.Job]; asks {
				out[a.Job] = append(out[a.Job], a)
			}
		}
	}
	return out
}
