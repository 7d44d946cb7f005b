// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package replay runs traces of jobs through the placer's policy, or another one, on a virtual clock, audits every
// decision, and adds up what came of it. It reads no clock, starts no goroutine and keeps no state between runs: the same
// jobs, nodes and options give the same result on any machine and in any order of the input. Package report shows
// results; the CLI imports both.
package replay

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/replay/baseline"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// Options say how to replay.
type Options struct {
	Decide   baseline.Decider
	Levels   []string // of the nodes, outermost first
	Queues   []model.Queue
	Settings model.Settings
	Physics  Physics
	From, To time.Time     // jobs submitted from From until before To are scored; zero: no bound
	Every    time.Duration // between two decisions, at least
	Progress func(Progress)
}

// Progress is how far a replay has come.
type Progress struct {
	Now           time.Time // virtual
	Done, Jobs    int       // of those to be scored
	Waiting       int       // gangs
	DecisionsMade int
}

// lookAgain is how long a waiting gang goes without a decision when nothing happens: time alone may widen its locality,
// or change whose turn it is. A cluster's placer looks every second.
const lookAgain = 5 * time.Minute

// tick is the step of the virtual clock. Jobs come, run and end at whole ticks, so that the books of GPU time are exact.
const tick = time.Millisecond

// giveUp is how long a replay goes on while nothing runs and nothing comes, but gangs wait: longer than any rule of a
// policy waits.
const giveUp = 7 * 24 * time.Hour

// mostEvictions is how often a gang may be evicted, on average over all jobs: a policy that evicts more has gangs take turns
// for ever, and the audit says so.
const mostEvictions = 100

// Run replays the jobs on the nodes, which are all free at first, until every job that is scored has finished or can
// never start.
func Run(jobs []trace.Job, nodes []model.Node, o Options) *Result {
	w := newWorld(jobs, nodes, o)
	for w.left > 0 {
		at, some := w.next()
		if !some {
			w.audit.standstill(w.snapshot, w.now)
			break
		}
		w.advance(at)
		w.decide(at)
		if w.evictions > mostEvictions*len(w.jobs) {
			w.audit.fault(at, "gangs evict one another for ever: %d evictions, and %d jobs in all", w.evictions, len(w.jobs))
			break
		}
	}
	return w.result()
}

// next returns the instant of the next decision: when something happens, but not too soon after the last.
func (w *world) next() (time.Time, bool) {
	at, some := w.nextEvent()
	if len(w.snapshot.Gangs) > 0 {
		if !some && w.now.Sub(w.lastEvent) > giveUp {
			return at, false
		}
		if again := w.wake(); !some || again.Before(at) {
			at, some = again, true
		}
	}
	if soonest := w.decided.Add(w.o.Every); w.decisions > 0 && at.Before(soonest) {
		at = soonest
	}
	if part := at.Sub(at.Truncate(tick)); part > 0 {
		at = at.Add(tick - part) // a locality may widen between two ticks
	}
	return at, some
}

func (w *world) nextEvent() (time.Time, bool) {
	var at time.Time
	some := false
	if w.arrived < len(w.jobs) {
		at, some = w.jobs[w.arrived].job.Submitted, true
	}
	if len(w.ends) > 0 && (!some || w.ends[0].at.Before(at)) {
		at, some = w.ends[0].at, true
	}
	return at, some
}

// wake returns when to look again though nothing has happened.
func (w *world) wake() time.Time {
	at := w.decided.Add(lookAgain)
	if w.relax.After(w.decided) && w.relax.Before(at) {
		return w.relax
	}
	return at
}

// advance makes everything happen that happens until the instant, in the order of time; at one instant gangs end before
// others come, both in the order of the trace.
func (w *world) advance(to time.Time) {
	for {
		at, some := w.nextEvent()
		if !some || at.After(to) {
			break
		}
		w.pass(at)
		w.lastEvent = at
		if len(w.ends) > 0 && !w.ends[0].at.After(at) {
			w.end(w.ends.pop().gang, at)
			continue
		}
		w.arrive(w.jobs[w.arrived])
		w.arrived++
	}
	w.pass(to)
}

// decide asks the policy and does what it says.
func (w *world) decide(now time.Time) {
	w.bill(now)
	w.save(now)
	d := w.o.Decide(w.snapshot, w.knowledge, now)
	w.audit.decision(w.snapshot, d, now)
	w.decided = now
	w.decisions++
	w.explain(d.Waits, now)
	for _, e := range d.Evictions {
		w.evict(e, now)
		w.evictions++
	}
	for _, g := range d.Grants {
		w.start(g, now)
	}
	if len(d.Grants) > 0 {
		w.forgetStarted()
	}
	if w.o.Progress != nil && w.decisions%1000 == 0 {
		w.o.Progress(Progress{Now: now, Done: w.scored - w.left, Jobs: w.scored, Waiting: len(w.snapshot.Gangs), DecisionsMade: w.decisions})
	}
}

// save notes when the running gangs have finished their last checkpoints.
func (w *world) save(now time.Time) {
	every := w.o.Physics.Checkpoint
	if every <= 0 {
		return
	}
	for i := range w.snapshot.Running {
		r := &w.snapshot.Running[i]
		began := r.Started
		if len(r.Evicted) > 0 {
			began = began.Add(w.o.Physics.Restart)
		}
		if n := now.Sub(began) / every; n > 0 {
			r.Saved = began.Add(n * every)
		}
	}
}

// forgetStarted removes the gangs that have started from those that wait.
func (w *world) forgetStarted() {
	w.snapshot.Gangs = slices.DeleteFunc(w.snapshot.Gangs, func(g model.Gang) bool { return w.byName[g.Name].phase != waiting })
}

// insert puts a gang among those that wait, in the order of submission, then name.
func (w *world) insert(g model.Gang) {
	at, _ := slices.BinarySearchFunc(w.snapshot.Gangs, g, func(a, b model.Gang) int {
		return cmp.Or(a.Submitted.Compare(b.Submitted), cmp.Compare(a.Name, b.Name))
	})
	w.snapshot.Gangs = slices.Insert(w.snapshot.Gangs, at, g)
}
