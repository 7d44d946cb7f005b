// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"slices"

	"github.com/nomad-muster/muster/placer/ledger"
)

// asked reports on a request to the ledger that was surely made, so that it tells whether Consul is away.
func (e *engine) asked(ctx context.Context, request string, err error) {
	e.ledgerAnswered(ctx, request, err)
	if ctx.Err() == nil {
		e.world.update(func(w *world) { w.outage = err != nil && isOutage(err) })
	}
}

// watchUnattended finds, while Consul is away, the slots on which nothing lives and nothing can be started. Were they
// offered, Nomad would place the same member again and again, each time in vain.
func (e *engine) watchUnattended(ctx context.Context) {
	for {
		w, changed := e.world.get()
		pause := e.pace.watch
		if w.outage && len(w.claimedHere()) > 0 {
			e.lookForUnattended(ctx, w)
			changed, pause = nil, e.pace.unattended
		}
		if !wait(ctx, changed, pause) {
			return
		}
	}
}

// claimedHere are the open slots that this plugin would have to claim for whoever starts on them. The muster driver claims
// by itself, and waits for Consul with its task open.
func (w *world) claimedHere() []ledger.Slot {
	return slices.DeleteFunc(slices.Clone(w.table.Slots), func(s ledger.Slot) bool {
		return s.State != ledger.SlotOpen || s.Driver == musterDriver
	})
}

// lookForUnattended asks the local agent, without whose word every slot counts as attended.
func (e *engine) lookForUnattended(ctx context.Context, w world) {
	ctx, cancel := context.WithTimeout(ctx, e.pace.reserve)
	defer cancel()
	allocs, err := e.agent.Allocations(ctx, w.self.nodeID)
	if err != nil {
		e.log.Debug("the Nomad agent does not say what runs on slots", "error", err)
		return
	}
	e.world.update(func(w *world) { w.unattended = w.withoutAllocation(allocs) })
}

// withoutAllocation are the slots that no living allocation names.
func (w *world) withoutAllocation(allocs []allocation) map[ledger.SlotID]bool {
	ids := map[ledger.SlotID]bool{}
	for _, s := range w.claimedHere() {
		lives := slices.ContainsFunc(allocs, func(a allocation) bool { return !a.ended && a.uses(w.instanceOf(s)) })
		if !lives {
			ids[s.ID()] = true
		}
	}
	return ids
}
