// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// TestAudit lets time pass in random small clusters with queues, and audits every decision: what is granted, evicted
// and kept, and why the others wait.
func TestAudit(t *testing.T) {
	topology := gpu.NewTopology(machine(4, "switch"))
	var grants, evictions, earmarks, moves, planned int
	codes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		l := newLife(t, topology)
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			l.pass(t)
			d := l.decide(t)
			grants += len(d.Grants)
			evictions += len(d.Evictions)
			moves += len(d.Moves)
			for _, w := range d.Waits {
				codes[w.Reason.Code]++
				earmarks += min(1, len(w.Earmarks))
				if w.Planned != nil {
					planned++
				}
			}
		}
	})
	t.Logf("%d grants, %d evictions, %d moves, %d waits with earmarks, %d with a plan; reasons: %v", grants, evictions, moves, earmarks, planned, codes)
}

// life is a cluster that lives: gangs come, run, save and end, and what was decided is carried out.
type life struct {
	world
	decider   policy.Decider // kept all along
	now       time.Time
	submitted int
}

func newLife(t *rapid.T, topology *gpu.Topology) *life {
	l := &life{now: epoch}
	s := &l.snapshot
	s.Levels = []string{"rack"}
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		s.Nodes = append(s.Nodes, model.Node{
			Name: fmt.Sprintf("n%d", i), Path: []string{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "rack")}, Topology: topology,
			Usable: gpu.FirstN(4), Free: gpu.FirstN(4), MemoryMB: rapid.Int64Range(3, 9).Draw(t, "memory"),
		})
	}
	for _, name := range []string{"a", "a.x", "a.y", "b", "c"} {
		if rapid.Bool().Draw(t, name) {
			s.Queues = append(s.Queues, model.Queue{
				Name: name, Quota: rapid.IntRange(-1, 8).Draw(t, "quota"), Max: rapid.SampledFrom([]int{0, 0, 0, 4, 8, 12}).Draw(t, "max"),
				Preempt: rapid.Bool().Draw(t, "preempt"), GPUSeconds: float64(rapid.IntRange(0, 100000).Draw(t, "used")),
				Weight: float64(rapid.IntRange(-1, 3).Draw(t, "weight")),
			})
		}
	}
	s.Settings = model.Settings{
		MinRuntime: time.Minute, ReclaimAbove: rapid.SampledFrom([]float64{0, 0.01, 0.5}).Draw(t, "above"),
		Evictions: rapid.IntRange(0, 3).Draw(t, "budget"), AgeBound: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "bound"),
		Defragment: rapid.Bool().Draw(t, "defragment"),
	}
	return l
}

// pass lets some minutes pass in which gangs come and go.
func (l *life) pass(t *rapid.T) {
	l.now = l.now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "minutes")) * time.Minute)
	for _, r := range slices.Clone(l.snapshot.Running) {
		switch what := rapid.SampledFrom([]string{"goes on", "goes on", "goes on", "saves", "ends"}).Draw(t, r.Name); {
		case r.Closing && what != "goes on":
			l.happened("gone", r.Name, l.now)
		case r.Closing:
		case what == "saves":
			l.happened("saved", r.Name, l.now)
		case what == "ends":
			l.free(r.Name)
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "come") {
		l.submitted++
		g := model.Gang{
			Name: fmt.Sprintf("g%02d", l.submitted), Queue: rapid.SampledFrom([]string{"a", "a.x", "a.y", "b", "c", ""}).Draw(t, "queue"),
			Priority: rapid.IntRange(1, 3).Draw(t, "priority"), Submitted: l.now, WaitingSince: l.now,
			Locality:   rapid.SampledFrom([]string{"node", "rack", "any", "any"}).Draw(t, "locality"),
			RelaxAfter: 10 * time.Minute, RelaxNever: rapid.Bool().Draw(t, "never"),
			MaxRuntime: time.Duration(rapid.SampledFrom([]int{0, 0, 5, 60}).Draw(t, "max run")) * time.Minute,
			Expected:   time.Duration(rapid.SampledFrom([]int{0, 20}).Draw(t, "expected")) * time.Minute,
			Groups: []model.Group{{
				Name: "w", Count: rapid.IntRange(1, 3).Draw(t, "count"), GPUs: rapid.IntRange(1, 4).Draw(t, "gpus"),
				MemoryMB: rapid.Int64Range(0, 3).Draw(t, "asked memory"),
			}},
		}
		if rapid.IntRange(0, 9).Draw(t, "second group") == 0 {
			g.Groups = append(g.Groups, model.Group{Name: "v", Count: 1, GPUs: 1})
		}
		if rapid.IntRange(0, 9).Draw(t, "held") == 0 {
			g.NotBefore, g.Held = l.now.Add(15*time.Minute), true
		}
		l.snapshot.Gangs = append(l.snapshot.Gangs, g)
	}
}

// decide audits the next decision and carries it out.
func (l *life) decide(t *rapid.T) model.Decision {
	s := l.snapshot
	before := snapshotText(s)
	d := policy.Decide(s, l.now)
	must.Eq(t, before, snapshotText(s), must.Sprint("the snapshot was changed"))
	mixed := shuffled(t, s)
	mixed.Running = rapid.Permutation(s.Running).Draw(t, "running in another order")
	mixed.Queues = rapid.Permutation(s.Queues).Draw(t, "queues in another order")
	must.Eq(t, d, policy.Decide(mixed, l.now), must.Sprint("the order of the input matters"))
	must.Eq(t, d, l.decider.Decide(s, l.now), must.Sprint("what was kept from the last decision shows"))

	l.auditGrants(t, d)
	l.auditEvictions(t, d)
	l.auditWaits(t, d)
	l.carryOut(d)
	l.auditLimits(t, s, d)
	return d
}

// carryOut does what was decided.
func (l *life) carryOut(d model.Decision) {
	for _, grant := range d.Grants {
		l.take(grant, l.now)
	}
	for _, e := range d.Evictions {
		victim := l.running(e.Gang)
		victim.Closing, victim.FreedFor = true, e.For
	}
	for _, w := range d.Waits {
		l.gangOf(w.Gang).Earmarks = w.Earmarks
	}
}

// auditGrants: whole, on free GPUs, not on those that are kept for others, and with what they need beside.
func (l *life) auditGrants(t *rapid.T, d model.Decision) {
	free, memory := map[string]gpu.Set{}, map[string]int64{}
	for _, n := range l.snapshot.Nodes {
		free[n.Name], memory[n.Name] = n.Free, n.MemoryMB
	}
	// Earmarks are kept from all others from the beginning, those that stay as well as those that are new.
	for _, w := range d.Waits {
		for _, mark := range w.Earmarks {
			for _, other := range d.Waits {
				for _, theirs := range other.Earmarks {
					overlap := w.Gang != other.Gang && theirs.Node == mark.Node && theirs.GPUs&mark.GPUs != 0
					must.False(t, overlap, must.Sprintf("%s and %s both have GPUs of %s earmarked", w.Gang, other.Gang, mark.Node))
				}
			}
			free[mark.Node] &^= mark.GPUs
		}
	}
	for _, grant := range d.Grants {
		g := *l.gangOf(grant.Gang)
		must.Len(t, g.Size(), grant.Members, must.Sprint("not whole"))
		must.False(t, g.NotBefore.After(l.now))
		for rank, m := range grant.Members {
			group := groupOf(g, rank)
			must.Eq(t, group.GPUs, m.GPUs.Len())
			must.True(t, free[m.Node].Contains(m.GPUs), must.Sprintf("%s gets GPUs %s of %s; %s are left", g.Name, m.GPUs, m.Node, free[m.Node]))
			free[m.Node] &^= m.GPUs
			memory[m.Node] -= group.MemoryMB
			must.True(t, memory[m.Node] >= 0)
		}
	}
}

// auditEvictions: only those that may be evicted, for a gang that waits with earmarks and has a right to them.
func (l *life) auditEvictions(t *rapid.T, d model.Decision) {
	seen := map[string]bool{}
	for _, e := range d.Evictions {
		must.False(t, seen[e.Gang], must.Sprint("evicted twice"))
		seen[e.Gang] = true
		v, g := l.running(e.Gang), l.gangOf(e.For)
		must.False(t, v.Closing)
		must.GreaterEq(t, time.Minute, l.now.Sub(v.Started))
		budget := l.snapshot.Evictions
		if budget == 0 {
			budget = model.DefaultEvictions
		}
		must.Less(t, budget, len(v.Evicted))
		wait := d.Waits[slices.IndexFunc(d.Waits, func(w model.Wait) bool { return w.Gang == e.For })]
		must.Eq(t, model.WaitFreeing, wait.Reason.Code)
		marked := 0
		for _, mark := range wait.Earmarks {
			marked += mark.GPUs.Len()
		}
		must.Eq(t, g.GPUs(), marked)
		_, limited := queue.New(l.snapshot).Limit(g.Queue, g.GPUs())
		must.True(t, limited || g.Groups[0].MemoryMB > 0 || slices.ContainsFunc(v.Members, func(m model.Member) bool {
			return slices.ContainsFunc(wait.Earmarks, func(mark model.Earmark) bool { return mark.Node == m.Node && mark.GPUs&m.GPUs != 0 })
		}), must.Sprintf("%s is evicted, but nothing of what it holds is kept for %s", e.Gang, e.For))
		tree := queue.New(l.snapshot)
		switch e.Reason.Code {
		case model.EvictReclaim:
			// By what queues used at some moment of the round: grants before the eviction count, those after it don't.
			late := tree.Clone()
			for _, grant := range d.Grants {
				started := l.gangOf(grant.Gang)
				late.Take(started.Queue, started.GPUs())
			}
			may := tree.MayReclaim(g.Queue, g.GPUs(), v.Queue) || late.MayReclaim(g.Queue, g.GPUs(), v.Queue)
			must.True(t, may, must.Sprintf("%s takes from %s", g.Queue, v.Queue))
		case model.EvictPriority:
			same, preempt := tree.Same(g.Queue, v.Queue)
			must.True(t, same && preempt && v.Priority < g.Priority)
		case model.EvictMove:
			must.True(t, l.snapshot.Defragment && !v.Saved.IsZero())
		default:
			t.Fatalf("no such code: %s", e.Reason.Code)
		}
	}
}

// auditWaits: every gang that does not start waits once, at its place, with a code, a sentence and a cause.
func (l *life) auditWaits(t *rapid.T, d model.Decision) {
	auditWaits(t, l.snapshot, d)
	for _, w := range d.Waits {
		must.NotEq(t, "", string(w.Cause), must.Sprint(w.Reason.Code))
		must.True(t, (w.Reason.Code == model.WaitFreeing) == (len(w.Earmarks) > 0))
		must.False(t, strings.HasSuffix(w.Reason.Text, "."))
		if w.Planned != nil {
			must.False(t, w.Planned.At.Before(l.now) && !w.Planned.At.IsZero())
			must.True(t, slices.IsSorted(w.Planned.Nodes) && len(w.Planned.Nodes) > 0)
		}
	}
}

// auditLimits: after the decision no queue has more than its limit that had less before, and none got more than its quota
// while the next gang of another stays within its own, fits, and was given nothing.
func (l *life) auditLimits(t *rapid.T, before model.Snapshot, d model.Decision) {
	tree := queue.New(l.snapshot)
	for _, q := range l.snapshot.Queues {
		if use, over := tree.Limit(q.Name, 0); over {
			granted := slices.ContainsFunc(d.Grants, func(g model.Grant) bool { return tree.Holds(use.Name, l.running(g.Gang).Queue) })
			must.False(t, granted, must.Sprintf("%s has %d GPUs and may have %d", use.Name, use.Used, use.Max))
		}
	}
	borrows := slices.ContainsFunc(d.Grants, func(g model.Grant) bool { return !tree.Owed(l.running(g.Gang).Queue, 0) })
	if !borrows {
		return
	}
	old := queue.New(before)
	for _, w := range d.Waits {
		g := *l.gangOf(w.Gang)
		owed := tree.Owed(g.Queue, g.GPUs()) && old.Owed(g.Queue, g.GPUs())
		if owed && (w.Reason.Code == model.WaitCapacity || w.Reason.Code == model.WaitFragmented) && l.firstOf(g) {
			must.False(t, referenceOf(before, g).fits(l.now) && len(g.Groups) == 1 && l.undisturbed(before),
				must.Sprintf("%s is owed what it needs and waits, while others borrow", g.Name))
		}
	}
}

// firstOf says whether a gang is the first of all that wait in queues, so that nothing but borrowers can be in its way.
func (l *life) firstOf(g model.Gang) bool {
	return !slices.ContainsFunc(l.snapshot.Gangs, func(other model.Gang) bool { return other.Name != g.Name && other.Queue == g.Queue })
}

// undisturbed says whether nothing was kept for anyone.
func (l *life) undisturbed(s model.Snapshot) bool {
	return !slices.ContainsFunc(s.Gangs, func(g model.Gang) bool { return len(g.Earmarks) > 0 })
}
