// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"fmt"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/defrag"
	"github.com/nomad-muster/muster/placer/policy/preempt"
)

// move proposes to move smaller gangs so that this one can start, or moves them if the operator allows it. It is tried for
// one gang in a round, the first with enough free GPUs. What the gang would else wait is told by its planned start; if
// that is not known, it is taken to be as long as it has waited so far. It returns whether gangs are moved.
func (r *round) move(g *model.Gang, planned *model.Planned) bool {
	inUse, usable := r.cluster.Load()
	if r.moved || usable-inUse < g.GPUs() {
		return false
	}
	r.moved = true
	r.loadVictims()
	wait := r.now.Sub(g.WaitingSince)
	if planned != nil && !planned.At.IsZero() {
		wait = planned.At.Sub(r.now)
	}
	request := preempt.Request{Gang: g, Cluster: r.cluster, Tree: r.tree, Kept: r.kept(), Victims: r.victims, Now: r.now}
	move, plan, found := defrag.Find(request, wait)
	if !found {
		return false
	}
	if !r.s.Defragment {
		r.decision.Moves = append(r.decision.Moves, move)
		return false
	}
	r.carryOut(g, plan, func(*preempt.Victim) model.Reason {
		return model.Reason{
			Code: model.EvictMove,
			Text: fmt.Sprintf("is to go on elsewhere, so that %s can start here, which would else wait longer than what is lost is worth", g.Name),
		}
	})
	return true
}
