// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package policy decides which of the waiting gangs start now, where every member of them goes, and why each of the
// others waits. Decide is a function of its arguments: it reads no clock, network or file, writes no log, and gives the
// same answer to the same question on any machine, so that a replay of a trace decides as the placer did. It never
// changes or ends a gang that runs. The engine and the replay import it.
package policy

import (
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
	"github.com/nomad-muster/muster/placer/policy/order"
)

// Decide tries the waiting gangs one after another: those of higher priority first, then those submitted earlier. Each
// gets its place whole or not at all, and the next is tried whether it did or not. Gangs in their back-off are not
// tried. Every gang ends up in exactly one of the grants or waits, both in the order in which they were tried; the
// reasons speak of what is free after all grants. The snapshot is not changed, and the order of its lists does not
// matter.
func Decide(s model.Snapshot, now time.Time) model.Decision {
	cluster := fit.New(s)
	var decision model.Decision
	var waiting []model.Gang
	for _, gang := range order.FirstInFirstOut(s.Gangs) {
		if !gang.NotBefore.After(now) {
			if grant, found := cluster.Fit(gang, now); found {
				cluster.Take(gang, grant)
				decision.Grants = append(decision.Grants, grant)
				continue
			}
		}
		waiting = append(waiting, gang)
	}
	for i, gang := range waiting {
		reason, relaxAt := cluster.Explain(gang, now)
		decision.Waits = append(decision.Waits, model.Wait{Gang: gang.Name, Reason: reason, Position: i + 1, RelaxAt: relaxAt})
	}
	return decision
}
