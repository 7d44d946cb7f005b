// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package defrag finds smaller gangs that could go on elsewhere, so that a gang starts for which enough GPUs are free, but
// not where it can use them. Only gangs with a finished checkpoint are moved, only if all of them fit elsewhere once the
// gang has started, and only if what they lose is less than what the gang would lose by waiting. Package policy imports
// it.
package defrag

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/preempt"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// Find returns the move that lets the gang of the request start, which would else wait for so long. Who may be moved is
// decided here, so May of the request means nothing.
func Find(r preempt.Request, wait time.Duration) (model.Move, preempt.Plan, bool) {
	g := r.Gang
	r.May = func(_ *queue.Tree, v *preempt.Victim) bool { return !v.Saved.IsZero() && v.GPUs() < g.GPUs() }
	plan, found := r.Find()
	if !found || len(plan.Victims) == 0 {
		return model.Move{}, preempt.Plan{}, false
	}
	move := model.Move{
		For: g.Name, LostGPUSeconds: plan.Lost(), SavedGPUSeconds: float64(g.GPUs()) * max(0, wait).Seconds(),
	}
	for _, v := range plan.Victims {
		move.Gangs = append(move.Gangs, v.Name)
	}
	if move.LostGPUSeconds >= move.SavedGPUSeconds || !elsewhere(r, plan) {
		return model.Move{}, preempt.Plan{}, false
	}
	return move, plan, true
}

// elsewhere says whether all victims fit somewhere once the gang has started, the largest placed first.
func elsewhere(r preempt.Request, plan preempt.Plan) bool {
	c := r.Cluster.Clone()
	for _, v := range plan.Victims {
		c.Give(v.Gang, v.Members)
	}
	c.Withhold(r.Kept)
	c.Take(*r.Gang, plan.Grant)
	largest := slices.Clone(plan.Victims)
	slices.SortStableFunc(largest, func(a, b *preempt.Victim) int { return cmp.Compare(b.GPUs(), a.GPUs()) })
	for _, v := range largest {
		gang := v.Gang
		gang.WaitingSince = r.Now // it would start to wait now, so its locality is as narrow as at first
		grant, fits := c.Fit(gang, r.Now)
		if !fits {
			return false
		}
		c.Take(gang, grant)
	}
	return true
}
