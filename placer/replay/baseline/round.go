// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

// round is one decision in the making.
type round struct {
	s        model.Snapshot
	k        Knowledge
	now      time.Time
	cluster  *fit.Cluster
	free     int                        // GPUs that are free for anybody
	marked   int                        // GPUs that are free for the gang that they were freed for
	withheld map[string][]model.Earmark // those, by gang
	decision model.Decision
	// failed are the shapes that did not fit: what is free only shrinks while gangs start that nothing was freed for.
	failed map[shape]bool
}

// shape is what decides whether a gang of a trace fits.
type shape struct {
	count, gpus int
	locality    string
	steps       time.Duration // how far its locality has widened
}

func newRound(c *fit.Cluster, s model.Snapshot, k Knowledge, now time.Time) *round {
	r := &round{s: s, k: k, now: now, cluster: c, failed: make(map[shape]bool), withheld: make(map[string][]model.Earmark)}
	c.Renew(s)
	for i := range s.Nodes {
		r.free += s.Nodes[i].Free.Len()
	}
	for i := range s.Gangs {
		if len(s.Gangs[i].Earmarks) == 0 {
			continue
		}
		marked := r.cluster.Withhold(s.Gangs[i].Earmarks)
		r.withheld[s.Gangs[i].Name] = marked
		for _, mark := range marked {
			r.free -= mark.GPUs.Len()
			r.marked += mark.GPUs.Len()
		}
	}
	return r
}

// inOrder returns the waiting gangs, those submitted earlier first.
func inOrder(gangs []model.Gang) []model.Gang {
	return sorted(gangs, func(a, b *model.Gang) int { return 0 })
}

// sorted returns gangs by a comparison, then those submitted earlier first, then by name.
func sorted(gangs []model.Gang, compare func(a, b *model.Gang) int) []model.Gang {
	full := func(a, b model.Gang) int {
		return cmp.Or(compare(&a, &b), a.Submitted.Compare(b.Submitted), cmp.Compare(a.Name, b.Name))
	}
	if slices.IsSortedFunc(gangs, full) {
		return gangs
	}
	gangs = slices.Clone(gangs)
	slices.SortFunc(gangs, full)
	return gangs
}

// start grants the gang its place if it fits, or says that it does not.
func (r *round) start(g model.Gang) bool {
	if len(g.Earmarks) > 0 {
		return r.startMarked(g)
	}
	if g.GPUs() > r.free {
		return false
	}
	key := shape{count: g.Groups[0].Count, gpus: g.Groups[0].GPUs, locality: g.Locality}
	if g.RelaxAfter > 0 {
		key.steps = r.now.Sub(g.WaitingSince) / g.RelaxAfter
	}
	if r.failed[key] {
		return false
	}
	grant, fits := r.cluster.Fit(g, r.now)
	if !fits {
		r.failed[key] = true
		return false
	}
	r.take(g, grant)
	return true
}

// startMarked starts a gang for which GPUs were freed, and leaves them marked for it if that does not work yet.
func (r *round) startMarked(g model.Gang) bool {
	marked := r.withheld[g.Name]
	r.cluster.Restore(marked)
	grant, fits := r.cluster.Fit(g, r.now)
	if !fits {
		r.cluster.Withhold(marked)
		return false
	}
	r.unmark(marked)
	r.take(g, grant)
	clear(r.failed) // it may have left what was freed for it
	return true
}

// giveUp leaves to everybody what was freed for a gang.
func (r *round) giveUp(g *model.Gang) {
	r.cluster.Restore(r.withheld[g.Name])
	r.unmark(r.withheld[g.Name])
	g.Earmarks = nil
}

// unmark counts GPUs that were freed for a gang as free for anybody.
func (r *round) unmark(marked []model.Earmark) {
	for _, mark := range marked {
		r.free += mark.GPUs.Len()
		r.marked -= mark.GPUs.Len()
	}
}

func (r *round) take(g model.Gang, grant model.Grant) {
	r.cluster.Take(g, grant)
	r.free -= g.GPUs()
	r.decision.Grants = append(r.decision.Grants, grant)
}

// wait says that the gang waits because it does not fit.
func (r *round) wait(g model.Gang) {
	if gpus := g.GPUs(); gpus > r.free {
		r.because(g, model.CauseFairShare, model.WaitCapacity, fmt.Sprintf("needs %d GPUs, %d are free", gpus, r.free))
		return
	}
	r.because(g, model.CauseFragmentation, model.WaitFragmented, "enough GPUs are free, but not where the gang can use them")
}

func (r *round) because(g model.Gang, cause model.Cause, code, text string) {
	r.decision.Waits = append(r.decision.Waits, model.Wait{
		Gang: g.Name, Reason: model.Reason{Code: code, Text: text}, Position: len(r.decision.Waits) + 1, Cause: cause, Earmarks: g.Earmarks,
	})
}

// anywhere is the gang without wishes about its locality.
func anywhere(g model.Gang) model.Gang {
	g.Locality, g.RelaxAuto, g.RelaxAfter, g.RelaxNever = model.LocalityAny, false, 0, false
	return g
}
