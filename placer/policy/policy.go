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
// tried, and one whose grant the snapshot objects to takes nothing from those behind it. Every gang ends up in exactly
// one of the grants or waits, both in the order in which they were tried; the reasons speak of what is free after all
// grants. The snapshot is not changed, and the order of its lists does not matter.
func Decide(s model.Snapshot, now time.Time) model.Decision {
	cluster := fit.New(s)
	var decision model.Decision
	var waiting []model.Gang
	objections := map[string]model.Reason{}
	for _, gang := range order.FirstInFirstOut(s.Gangs) {
		if !gang.NotBefore.After(now) {
			if grant, found := cluster.Fit(gang, now); found {
				why, objects := objection(s, grant)
				if !objects {
					cluster.Take(gang, grant)
					decision.Grants = append(decision.Grants, grant)
					continue
				}
				objections[gang.Name] = why
			}
		}
		waiting = append(waiting, gang)
	}
	for i, gang := range waiting {
		wait := model.Wait{Gang: gang.Name, Position: i + 1}
		if why, some := objections[gang.Name]; some {
			wait.Reason = why
		} else {
			wait.Reason, wait.RelaxAt = cluster.Explain(gang, now)
		}
		decision.Waits = append(decision.Waits, wait)
	}
	return decision
}

func objection(s model.Snapshot, grant model.Grant) (model.Reason, bool) {
	if s.Object == nil {
		return model.Reason{}, false
	}
	return s.Object(grant)
}
