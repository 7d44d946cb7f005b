// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// maxFaults is how many faults are kept in words.
const maxFaults = 20

// audit keeps books of its own about who holds what, and notes every decision that no cluster could carry out or that
// breaks a promise: a GPU held twice, a gang that runs with less than all of its members, a queue above its limit, GPUs
// given to another than they were freed for, a gang that waits without a reason or for ever.
type audit struct {
	nodes  map[string]*books
	queues map[string]model.Queue
	used   map[string]int // GPUs by queue, those inside included
	jobs   map[string]*trace.Job
	holds  map[string]*holding
	micros int64 // GPU-microseconds of all holdings that have ended
	faults []string
	count  int
	partly int // gangs that were let run with less than all members
	seen   map[string]int
	round  int
}

// books are one node's.
type books struct{ usable, used gpu.Set }

// holding is what one gang holds.
type holding struct {
	members []model.Member
	since   time.Time
	closing bool
}

func newAudit(s model.Snapshot) *audit {
	a := &audit{
		nodes: make(map[string]*books, len(s.Nodes)), queues: make(map[string]model.Queue, len(s.Queues)), used: make(map[string]int),
		jobs: make(map[string]*trace.Job), holds: make(map[string]*holding), seen: make(map[string]int),
	}
	for _, n := range s.Nodes {
		a.nodes[n.Name] = &books{usable: n.Usable, used: n.Usable &^ n.Free}
	}
	for _, q := range s.Queues {
		a.queues[q.Name] = q
	}
	return a
}

func (a *audit) fault(now time.Time, format string, args ...any) {
	a.count++
	if len(a.faults) < maxFaults {
		a.faults = append(a.faults, now.Format(time.RFC3339)+": "+fmt.Sprintf(format, args...))
	}
}

func (a *audit) arrive(j *trace.Job) { a.jobs[j.Name] = j }

// decision checks what was decided, and writes the grants into the books.
func (a *audit) decision(s model.Snapshot, d model.Decision, now time.Time) {
	a.round++
	for _, e := range d.Evictions {
		a.eviction(e, now)
	}
	marks := marksKept(s, d)
	for _, g := range d.Grants {
		a.answered(g.Gang, now)
		a.grant(g, marks, now)
	}
	for i := range d.Waits {
		a.wait(&d.Waits[i], now)
	}
	for i := range s.Gangs {
		if a.seen[s.Gangs[i].Name] != a.round {
			a.fault(now, "gang %s has no answer", s.Gangs[i].Name)
		}
	}
}

// marksKept are the GPUs that were freed for gangs which still wait for them after the decision, by node and gang. A gang
// that starts, wherever that is, or is told that it has none any more, leaves them to others.
func marksKept(s model.Snapshot, d model.Decision) map[string]map[string]gpu.Set {
	var had map[string][]model.Earmark
	for i := range s.Gangs {
		if g := &s.Gangs[i]; len(g.Earmarks) > 0 {
			if had == nil {
				had = make(map[string][]model.Earmark)
			}
			had[g.Name] = g.Earmarks
		}
	}
	if had == nil {
		return nil
	}
	marks := make(map[string]map[string]gpu.Set)
	for i := range d.Waits {
		w := &d.Waits[i]
		for _, mark := range had[w.Gang] {
			at := slices.IndexFunc(w.Earmarks, func(m model.Earmark) bool { return m.Node == mark.Node })
			if at < 0 {
				continue
			}
			if marks[mark.Node] == nil {
				marks[mark.Node] = make(map[string]gpu.Set)
			}
			marks[mark.Node][w.Gang] |= mark.GPUs & w.Earmarks[at].GPUs
		}
	}
	return marks
}

func (a *audit) eviction(e model.Eviction, now time.Time) {
	h := a.holds[e.Gang]
	switch {
	case h == nil:
		a.fault(now, "gang %s is to be evicted and does not run", e.Gang)
		return
	case h.closing:
		a.fault(now, "gang %s is to be evicted twice", e.Gang)
	case e.For == "" || e.Reason.Code == "" || e.Reason.Text == "":
		a.fault(now, "gang %s is to be evicted and nobody says why", e.Gang)
	}
	h.closing = true
}

// answered notes that a decision speaks of a gang: it must wait, and be spoken of once.
func (a *audit) answered(gang string, now time.Time) {
	if a.jobs[gang] == nil || a.holds[gang] != nil && a.seen[gang] != a.round {
		a.fault(now, "gang %s does not wait, and has an answer", gang)
	}
	if a.seen[gang] == a.round {
		a.fault(now, "gang %s has two answers", gang)
	}
	a.seen[gang] = a.round
}

func (a *audit) grant(g model.Grant, marks map[string]map[string]gpu.Set, now time.Time) {
	job := a.jobs[g.Gang]
	if job == nil || a.holds[g.Gang] != nil {
		return
	}
	if len(g.Members)*job.MemberGPUs != job.GPUs {
		a.partly++
		a.fault(now, "gang %s runs with %d of %d members", g.Gang, len(g.Members), job.GPUs/job.MemberGPUs)
	}
	for _, m := range g.Members {
		n := a.nodes[m.Node]
		switch {
		case n == nil:
			a.fault(now, "gang %s is on node %s, which does not exist", g.Gang, m.Node)
			continue
		case m.GPUs.Len() != job.MemberGPUs:
			a.fault(now, "a member of gang %s has %d GPUs instead of %d", g.Gang, m.GPUs.Len(), job.MemberGPUs)
		case !n.usable.Contains(m.GPUs):
			a.fault(now, "gang %s has GPUs that node %s does not have", g.Gang, m.Node)
		case n.used&m.GPUs != 0:
			a.fault(now, "gang %s has GPUs of node %s that another holds", g.Gang, m.Node)
		}
		n.used |= m.GPUs
		for owner, set := range marks[m.Node] {
			if owner != g.Gang && set&m.GPUs != 0 {
				a.fault(now, "gang %s has GPUs of node %s that were freed for gang %s", g.Gang, m.Node, owner)
			}
		}
	}
	a.holds[g.Gang] = &holding{members: g.Members, since: now}
	a.charge(job.Queue, job.GPUs)
	for queue := job.Queue; queue != ""; queue = parent(queue) {
		if q := a.queues[queue]; q.Max > 0 && a.used[queue] > q.Max {
			a.fault(now, "gang %s takes queue %s to %d GPUs, above its limit of %d", g.Gang, queue, a.used[queue], q.Max)
		}
	}
}

// charge adds GPUs to a queue and to all that it is inside.
func (a *audit) charge(queue string, gpus int) {
	for ; queue != ""; queue = parent(queue) {
		a.used[queue] += gpus
	}
}

// parent is the name of the queue that a queue is inside; empty: none.
func parent(queue string) string {
	if dot := strings.LastIndexByte(queue, '.'); dot >= 0 {
		return queue[:dot]
	}
	return ""
}

func (a *audit) wait(w *model.Wait, now time.Time) {
	a.answered(w.Gang, now)
	if w.Reason.Code == "" || w.Reason.Text == "" {
		a.fault(now, "gang %s waits and nobody says why", w.Gang)
	}
	if w.Cause != model.CauseFairShare && w.Cause != model.CauseFragmentation && w.Cause != model.CauseOwn {
		a.fault(now, "gang %s waits because of %q, which is no cause", w.Gang, w.Cause)
	}
}

// standstill notes the gangs that wait for ever: nothing runs, nothing comes, and the free cluster could hold them.
func (a *audit) standstill(s model.Snapshot, now time.Time) {
	cluster := fit.New(s)
	for _, g := range s.Gangs {
		g.Locality, g.RelaxAuto = model.LocalityAny, false
		if _, fits := cluster.Fit(g, now); fits && !a.tooLarge(g.Queue, g.GPUs()) {
			a.fault(now, "gang %s waits for ever: nothing runs, and it would fit", g.Name)
		}
	}
}

// tooLarge says whether a gang of so many GPUs is above the limit of its queue, or of one that this is inside.
func (a *audit) tooLarge(queue string, gpus int) bool {
	for ; queue != ""; queue = parent(queue) {
		if q := a.queues[queue]; q.Max > 0 && gpus > q.Max {
			return true
		}
	}
	return false
}

// end takes back what a gang held.
func (a *audit) end(gang string, now time.Time) {
	h := a.holds[gang]
	if h == nil {
		return
	}
	job := a.jobs[gang]
	for _, m := range h.members {
		if n := a.nodes[m.Node]; n != nil {
			n.used &^= m.GPUs
		}
	}
	a.micros += now.Sub(h.since).Microseconds() * int64(job.GPUs)
	a.charge(job.Queue, -job.GPUs)
	delete(a.holds, gang)
}
