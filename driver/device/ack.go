// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// acknowledger tells the placer what this node has acted on, and looks after the claims that no driver looks after.
type acknowledger struct {
	*engine
	said    ledger.Ack
	session string // at that time; with another session everything is said again
	setBack bool   // at that time
}

// acknowledge runs an acknowledger until ctx ends: at each change, and at short intervals while something closes.
func (e *engine) acknowledge(ctx context.Context) {
	a := &acknowledger{engine: e}
	for {
		w, changed := e.world.get()
		pause := e.pace.watch
		if w.name == ownName && w.read {
			pause = a.look(ctx, w)
			w, _ = e.world.get() // what has changed since the look is to be looked at
			err := a.say(ctx, w)
			e.ledgerAnswered(ctx, "acknowledgement", err)
			if err != nil {
				pause, changed = spread(e.pace.retry), nil
			}
		}
		if !wait(ctx, changed, pause) {
			return
		}
	}
}

// look gathers evidence if anything needs it, acts on it, and returns when to look again.
func (a *acknowledger) look(ctx context.Context, w world) time.Duration {
	closing := w.closing()
	orphans := len(w.unlisted) > 0
	for id, claim := range w.claims {
		_, known := w.table.Find(id)
		orphans = orphans || claim.By == claimedByPlugin || !w.holds(claim) || !known
	}
	if len(closing) == 0 && !orphans && w.setBack == "" {
		return a.pace.watch
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	seen := a.gather(ctx, w)
	a.endClaims(ctx, w, seen)
	a.claimAgain(ctx, w, seen)
	if w.setBack != "" { // nothing can be acknowledged about slots that the ledger knows otherwise
		return spread(a.pace.foreign)
	}
	for _, s := range closing {
		a.judge(ctx, s, w.inUse(s, seen), seen)
	}
	if len(closing)+len(w.unlisted) > 0 {
		return a.pace.closing
	}
	return spread(a.pace.foreign)
}

// gather asks the ledger, Nomad and NVML, in this order: first for those who may still start processes, then for the
// processes. Claims are read anew: one that was made just before the slot closed may not have arrived with the watch yet.
func (a *acknowledger) gather(ctx context.Context, w world) evidence {
	var uuids []string
	for _, s := range w.table.Slots {
		if s.State == ledger.SlotClosing || w.claims[s.ID()].Allocation != "" || w.unlisted[s.ID()].Allocation != "" || w.setBack != "" {
			uuids = append(uuids, s.GPUs...)
		}
	}
	var seen evidence
	claims, _, err := a.books.WatchClaims(ctx, w.self.node, 0, 0)
	a.ledgerAnswered(ctx, "claims of closing slots", err)
	seen.claims, seen.claimsErr = claimsOf(claims), err
	if err != nil {
		seen.claims = w.claims // good enough to look after claims by, not to free GPUs
	}
	seen.allocs, seen.allocsErr = a.allocations(ctx, w.self.nodeID)
	if seen.allocsErr != nil {
		a.once.warn("allocations", "closing slots can't be acknowledged until the Nomad agent answers", "error", seen.allocsErr)
	} else {
		a.once.clear("allocations", "the Nomad agent answers for this node's allocations again")
	}
	seen.processes = a.processesOn(uuids)
	seen.names = processNames(a.set.ProcRoot, seen.processes)
	return seen
}

// allocations asks the agent, and leaves time for the rest where it hangs.
func (a *acknowledger) allocations(ctx context.Context, nodeID string) ([]allocation, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return a.agent.Allocations(ctx, nodeID)
}

// endClaims ends the claims that are over, and drops them from the evidence.
func (a *acknowledger) endClaims(ctx context.Context, w world, seen evidence) {
	for _, id := range w.finished(seen) {
		claim := seen.claims[id]
		if err := a.books.Unclaim(ctx, w.self.node, id, claim.Allocation); err != nil {
			a.once.warn("slot "+id.String(), "a claim can't be ended; trying again", "error", err)
			continue
		}
		a.log.Info("claim ended", "slot", id.String(), "alloc_id", claim.Allocation, "task", claim.Task)
		delete(seen.claims, id)
	}
}

// claimAgain makes the claims again that the ledger has lost, of tasks that no driver of ours looks after. Those of Muster's
// driver it makes itself; those whose tasks are over are given up.
func (a *acknowledger) claimAgain(ctx context.Context, w world, seen evidence) {
	if len(w.unlisted) == 0 {
		return
	}
	w = a.world.update(func(w *world) { w.endUnlisted(seen) })
	for _, id := range sortedIDs(w.unlisted) {
		claim := w.unlisted[id]
		if claim.By != claimedByPlugin || seen.allocsErr != nil || seen.over(claim.Allocation) {
			continue
		}
		_, err := a.books.Claim(ctx, w.self.node, claim, func(ledger.Slot) error { return nil })
		if err != nil {
			a.once.info("claim "+id.String(), "the ledger has lost a claim, which can't be made again yet", "slot", id.String(), "error", err)
			continue
		}
		a.once.clear("claim "+id.String(), "the ledger has the claim again", "slot", id.String())
	}
}

// judge notes a closing slot as clear, or what keeps it.
func (a *acknowledger) judge(ctx context.Context, s ledger.Slot, b busy, seen evidence) {
	if b != (busy{}) {
		if ctx.Err() == nil { // else it may only say that there was no time to look
			a.keeps(s, b)
		}
		return
	}
	a.log.Info("closing slot is clear", "slot", slotName(s), "reservation", s.Reservation)
	a.world.update(func(w *world) {
		if now, _ := w.table.Find(s.ID()); now.State != ledger.SlotClosing {
			return
		}
		cleared := map[ledger.SlotID]bool{s.ID(): true}
		maps.Copy(cleared, w.cleared)
		w.cleared = cleared
		w.leave(s, glance{at: a.now(), processes: seen.processes, names: seen.names})
	})
}

// errNotKept says that the state file could not be written.
var errNotKept = errors.New("not acknowledged, as the slot table can't be kept on disk")

// say publishes the acknowledgement if it says something new, or the ledger may not have it any more. What it says is on
// disk before, so that a restart never takes it back.
func (a *acknowledger) say(ctx context.Context, w world) error {
	ack := w.ack()
	if reflect.DeepEqual(ack, a.said) && w.session == a.session && (w.setBack != "") == a.setBack {
		return nil
	}
	if !a.save(w) {
		return errNotKept
	}
	if err := a.publishHealth(ctx); err != nil { // the GPUs of a clear slot may be granted as soon as this is said
		return err
	}
	if err := a.books.PublishAck(ctx, w.self.node, ack); err != nil {
		return err
	}
	a.said, a.session, a.setBack = ack, w.session, w.setBack != ""
	return nil
}
