// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/locality"
	"github.com/nomad-muster/muster/placer/replay/baseline"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// phase is where a gang is in its life.
type phase int

const (
	coming phase = iota
	waiting
	running
	closing
	finished
)

// life is one job of the trace and what has become of it.
type life struct {
	job    *trace.Job
	order  int // in the trace
	scored bool
	phase  phase

	done     time.Duration // of its work, as of its last checkpoint
	restarts time.Duration // of the present run: without progress
	speed    float64       // of the present run
	started  time.Time     // the present run
	ends     *ending       // of the present run
	spot     int           // in snapshot.Running

	first    time.Time // start
	finish   time.Time
	held     time.Duration // its GPUs, all runs
	lost     time.Duration // work that was done and lost
	slow     time.Duration // more than at full speed
	overhead time.Duration // restarts and closing
	evicted  int
	servers  int // of its last run
	level    string

	waited   [causes]time.Duration
	cause    cause
	labelled time.Time // until when its waiting time is accounted for
}

// ending is a moment at which a gang gives its GPUs back.
type ending struct {
	at   time.Time
	gang *life
	spot int // in the heap
}

// world is the simulated cluster with all jobs.
type world struct {
	o         Options
	jobs      []*life // in the order in which they come
	arrived   int
	byName    map[string]*life
	snapshot  model.Snapshot
	nodeAt    map[string]int // in snapshot.Nodes
	largest   int            // GPUs of the largest node
	ends      endings
	usage     *usage
	audit     *audit
	tally     *tally
	knowledge baseline.Knowledge
	estimates estimates

	now       time.Time
	decided   time.Time // the last decision
	decisions int
	evictions int
	lastEvent time.Time
	relax     time.Time // when a locality widens next, by the last decision; zero: none does
	scored    int
	left      int // scored, and not finished
}

func newWorld(jobs []trace.Job, nodes []model.Node, o Options) *world {
	w := &world{o: o, byName: make(map[string]*life, len(jobs)), nodeAt: make(map[string]int, len(nodes)), estimates: make(estimates)}
	sorted := slices.Clone(jobs)
	slices.SortFunc(sorted, func(a, b trace.Job) int {
		return cmp.Or(a.Submitted.Compare(b.Submitted), cmp.Compare(a.Name, b.Name))
	})
	for i := range sorted {
		l := &life{job: &sorted[i], order: i, scored: o.scores(sorted[i])}
		if l.scored {
			w.scored++
		}
		w.jobs = append(w.jobs, l)
		w.byName[l.job.Name] = l
	}
	w.left = w.scored
	w.snapshot = model.Snapshot{Levels: o.Levels, Nodes: slices.Clone(nodes), Queues: slices.Clone(o.Queues), Settings: o.Settings}
	slices.SortFunc(w.snapshot.Nodes, func(a, b model.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(w.snapshot.Queues, func(a, b model.Queue) int { return cmp.Compare(a.Name, b.Name) })
	for i := range w.snapshot.Nodes {
		w.nodeAt[w.snapshot.Nodes[i].Name] = i
		w.largest = max(w.largest, w.snapshot.Nodes[i].Usable.Len())
	}
	w.usage = newUsage(w.snapshot.Queues, o.Settings)
	w.audit = newAudit(w.snapshot)
	w.tally = newTally(w.snapshot.Nodes, o)
	w.knowledge = baseline.Knowledge{Remaining: w.remaining, Served: w.served}
	return w
}

func (o Options) scores(j trace.Job) bool {
	return !j.Submitted.Before(o.From) && (o.To.IsZero() || j.Submitted.Before(o.To))
}

// pass lets time pass in which nothing changes.
func (w *world) pass(to time.Time) {
	w.tally.pass(w.now, to)
	w.now = to
}

func (w *world) arrive(l *life) {
	l.phase, l.labelled, l.cause = waiting, l.job.Submitted, causeRound
	w.insert(w.gang(l, l.job.Submitted))
	w.audit.arrive(l.job)
}

// gang is the job as the policy sees it. What it asks of locality is left to the policy.
func (w *world) gang(l *life, since time.Time) model.Gang {
	return model.Gang{
		Name: l.job.Name, Queue: l.job.Queue, Priority: l.job.Priority, Submitted: l.job.Submitted, WaitingSince: since,
		Locality: model.LocalityNode, RelaxAuto: true, Comm: l.job.Comm, MaxRuntime: l.job.MaxRuntime,
		Expected: w.estimates.of(l.job),
		Groups:   []model.Group{{Name: "member", Count: l.job.GPUs / l.job.MemberGPUs, GPUs: l.job.MemberGPUs}},
	}
}

// start lets a gang run that waits.
func (w *world) start(g model.Grant, now time.Time) {
	l := w.byName[g.Gang]
	if l == nil || l.phase != waiting {
		return // the audit has noted it
	}
	at := slices.IndexFunc(w.snapshot.Gangs, func(waits model.Gang) bool { return waits.Name == g.Gang })
	gang := w.snapshot.Gangs[at]
	w.account(l, now)
	w.use(g.Members, true)
	l.phase, l.started, l.level = running, now, g.Level
	l.servers = servers(g.Members)
	if l.first.IsZero() {
		l.first = now
	}
	l.speed = w.speed(gang, g)
	l.restarts = 0
	if l.evicted > 0 {
		l.restarts = w.o.Physics.Restart
	}
	run := l.restarts + atSpeed(l.job.Duration-l.done, l.speed)
	l.ends = &ending{at: now.Add(run), gang: l}
	heap.Push(&w.ends, l.ends)
	gang.Earmarks = nil
	l.spot = len(w.snapshot.Running)
	w.snapshot.Running = append(w.snapshot.Running, model.Running{Gang: gang, Members: g.Members, Level: g.Level, Granted: now, Started: now})
	w.usage.change(l.job.Queue, l.job.GPUs, now)
	w.tally.start(w, l)
}

// evict begins to end a gang that runs.
func (w *world) evict(e model.Eviction, now time.Time) {
	l := w.byName[e.Gang]
	if l == nil || l.phase != running {
		return // the audit has noted it
	}
	made := w.progress(l, now)
	kept := made
	if every := w.o.Physics.Checkpoint; every > 0 {
		kept = made / every * every
	}
	l.lost += made - kept
	l.slow += max(0, now.Sub(l.started)-l.restarts) - made
	l.overhead += min(now.Sub(l.started), l.restarts) + w.o.Physics.Close
	l.done += kept
	l.evicted++
	l.phase = closing
	r := &w.snapshot.Running[l.spot]
	r.Closing, r.FreedFor = true, e.For
	r.Evicted = append(slices.Clone(r.Evicted), now)
	heap.Remove(&w.ends, l.ends.spot)
	l.ends = &ending{at: now.Add(w.o.Physics.Close), gang: l}
	heap.Push(&w.ends, l.ends)
}

// progress is how much of its work a gang has done in its present run, in whole ticks.
func (w *world) progress(l *life, now time.Time) time.Duration {
	worked := max(0, now.Sub(l.started)-l.restarts)
	return min(l.job.Duration-l.done, time.Duration(float64(worked)*l.speed).Truncate(tick))
}

// end takes back what a gang holds: it has finished, or it was evicted and is closed now.
func (w *world) end(l *life, at time.Time) {
	r := w.snapshot.Running[l.spot]
	w.use(r.Members, false)
	l.held += at.Sub(l.started)
	w.usage.change(l.job.Queue, -l.job.GPUs, at)
	w.dropRunning(l.spot)
	w.audit.end(l.job.Name, at)
	if l.phase == closing {
		l.phase, l.labelled, l.cause = waiting, at, causeRound
		gang := w.gang(l, at)
		gang.Evicted = recent(r.Evicted, at)
		w.insert(gang)
		return
	}
	l.overhead += l.restarts
	l.slow += at.Sub(l.started) - l.restarts - (l.job.Duration - l.done)
	l.done, l.phase, l.finish = l.job.Duration, finished, at
	if l.evicted == 0 { // one that had to start again has done the rest only
		w.estimates.add(l.job, at.Sub(l.started), at)
	}
	if l.scored {
		w.left--
	}
}

func recent(evicted []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(evicted, func(at time.Time) bool { return now.Sub(at) > model.EvictionWindow })
}

func (w *world) dropRunning(spot int) {
	last := len(w.snapshot.Running) - 1
	w.snapshot.Running[spot] = w.snapshot.Running[last]
	w.byName[w.snapshot.Running[spot].Name].spot = spot
	w.snapshot.Running[last] = model.Running{}
	w.snapshot.Running = w.snapshot.Running[:last]
}

// use takes the GPUs of members, or gives them back.
func (w *world) use(members []model.Member, take bool) {
	for _, m := range members {
		n := &w.snapshot.Nodes[w.nodeAt[m.Node]]
		before := n.Free.Len()
		if take {
			n.Free &^= m.GPUs
		} else {
			n.Free |= m.GPUs
		}
		w.tally.node(before, n)
	}
}

// atSpeed is how long work takes, in whole ticks.
func atSpeed(work time.Duration, speed float64) time.Duration {
	if speed == 1 {
		return work
	}
	return time.Duration(math.Ceil(float64(work)/speed/float64(tick))) * tick
}

// speed is how fast a gang runs at a placement, as a part of its best.
func (w *world) speed(gang model.Gang, grant model.Grant) float64 {
	if !w.o.Physics.Slowdown {
		return 1
	}
	return locality.Speed(gang.Comm, locality.Of(gang, grant, w.o.Levels, w.largest))
}

func servers(members []model.Member) int {
	nodes := make(map[string]gpu.Set, len(members))
	for _, m := range members {
		nodes[m.Node] |= m.GPUs
	}
	return len(nodes)
}

// remaining is how long a gang would still run at full speed.
func (w *world) remaining(gang string) time.Duration {
	l := w.byName[gang]
	left := l.job.Duration - l.done
	if l.phase == running {
		left -= w.progress(l, w.now)
	}
	return left
}

// served is how many GPU-seconds a gang has had.
func (w *world) served(gang string) float64 {
	l := w.byName[gang]
	held := l.held
	if l.phase == running || l.phase == closing {
		held += w.now.Sub(l.started)
	}
	return held.Seconds() * float64(l.job.GPUs)
}
