// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"maps"
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

// watchUnattended finds, while Consul is away, the slots on which no member lives and none can be started. Were they
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

// lookForUnattended asks whether Consul is still away, and the local agent how the allocations fare that have claims. Without
// its word they live.
func (e *engine) lookForUnattended(ctx context.Context, w world) {
	ctx, cancel := context.WithTimeout(ctx, e.pace.reserve)
	defer cancel()
	_, err := e.books.WatchTable(ctx, w.self.node, 0, 0)
	if e.asked(ctx, "slots", err); err == nil {
		return
	}
	allocs, err := e.agent.Allocations(ctx, w.self.nodeID)
	if err != nil {
		e.log.Debug("the Nomad agent does not say what runs on slots", "error", err)
	}
	e.world.update(func(w *world) { w.unattended = w.withoutMember(allocs) })
}

// withoutMember are the slots that no living member has claimed. An allocation that waits to start on one will not get
// there.
func (w *world) withoutMember(allocs []allocation) map[ledger.SlotID]bool {
	ids := map[ledger.SlotID]bool{}
	for _, s := range w.claimedHere() {
		holder := w.claims[s.ID()].Allocation
		ended := slices.ContainsFunc(allocs, func(a allocation) bool { return a.id == holder && a.ended })
		if ended || !w.claimed(s.ID()) {
			ids[s.ID()] = true
		}
	}
	return ids
}

// takeClaim notes a claim that this plugin has just made: the watch may be late, or never come.
func (w *world) takeClaim(claim ledger.Claim) {
	claims := map[ledger.SlotID]ledger.Claim{}
	maps.Copy(claims, w.claims)
	claims[ledger.SlotID{Reservation: claim.Reservation, Rank: claim.Rank}] = claim
	w.claims = claims
}
