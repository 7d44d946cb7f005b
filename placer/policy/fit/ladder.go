// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// rungOf finds the rung of a locality, or -1 if the cluster has no such level.
func (c *Cluster) rungOf(locality string) int {
	return slices.IndexFunc(c.rungs, func(r rung) bool { return r.name == locality })
}

// permitted returns the widest rung that the gang may use now: the one that it asks for, and one wider for each
// RelaxAfter that it has waited. relaxAt is when the next wider one comes; zero if there is none or the gang never
// relaxes by time. The rung is -1 if the cluster does not know the gang's locality.
func (c *Cluster) permitted(g *model.Gang, now time.Time) (widest int, relaxAt time.Time) {
	last := len(c.rungs) - 1
	wanted := c.rungOf(g.Locality)
	if wanted >= 0 && g.RelaxAuto {
		return last, time.Time{} // it weighs what it finds: see trade
	}
	if wanted < 0 || wanted == last || g.RelaxNever {
		return wanted, time.Time{}
	}
	if g.RelaxAfter <= 0 {
		return last, time.Time{}
	}
	steps := max(0, now.Sub(g.WaitingSince)/g.RelaxAfter)
	if steps >= time.Duration(last-wanted) {
		return last, time.Time{}
	}
	return wanted + int(steps), g.WaitingSince.Add((steps + 1) * g.RelaxAfter)
}
