// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"

	"github.com/nomad-muster/muster/placer/ledger"
)

// watchTable follows this node's slot table.
func (e *engine) watchTable(ctx context.Context, node string) {
	var after uint64
	for ctx.Err() == nil {
		read, err := e.books.WatchTable(ctx, node, after, e.pace.watch)
		switch {
		case err == nil:
			e.asked(ctx, "slots", nil)
			e.takeTable(read.Doc)
		case errors.Is(err, ledger.ErrNotFound):
			e.asked(ctx, "slots", nil)
			e.reportSetBack(e.world.update((*world).loseTable))
		default:
			e.asked(ctx, "slots", err)
		}
		after = nextIndex(after, read.Index)
		if err != nil && !wait(ctx, nil, spread(e.pace.retry)) {
			return
		}
	}
}

// nextIndex is the index to watch from. A smaller one than before means that the store was set back: read at once.
func nextIndex(before, answered uint64) uint64 {
	if answered < before {
		return 0
	}
	return answered
}

func (e *engine) takeTable(table ledger.SlotTable) {
	before, _ := e.world.get()
	after := e.world.update(func(w *world) { w.takeTable(table) })
	e.reportSetBack(after)
	e.reportSlots(before, after)
}

func (e *engine) reportSetBack(w world) {
	if w.setBack == "" {
		e.once.clear("set back", "the ledger has this node's slot table again", "sequence", w.table.Sequence)
		return
	}
	e.once.warn("set back", "slots in use are kept, and no others are offered until the placer has put the ledger in order", "reason", w.setBack)
}

// reportSlots logs what became of slots.
func (e *engine) reportSlots(before, after world) {
	for _, s := range after.table.Slots {
		old, known := before.table.Find(s.ID())
		switch {
		case !known:
			e.log.Info("new slot", "slot", slotName(s), "reservation", s.Reservation, "gpus", s.GPUs, "state", s.State)
		case old.State != s.State:
			e.log.Info("slot changed", "slot", slotName(s), "reservation", s.Reservation, "state", s.State, "why", s.Why)
		}
		if why := after.void(s); !known && s.State == ledger.SlotOpen && why != "" {
			e.log.Warn("an open slot is not offered", "slot", slotName(s), "reservation", s.Reservation, "reason", why)
		}
	}
	for _, s := range before.table.Slots {
		if _, still := after.table.Find(s.ID()); !still {
			e.log.Info("slot released", "slot", slotName(s), "reservation", s.Reservation)
		}
	}
}

// watchClaims follows the claims on this node's slots.
func (e *engine) watchClaims(ctx context.Context, node string) {
	var after uint64
	for ctx.Err() == nil {
		index, err := e.readClaims(ctx, node, after)
		after = nextIndex(after, index)
		if err != nil && !wait(ctx, nil, spread(e.pace.retry)) {
			return
		}
	}
}

// readClaims waits for the claims to change after an index and takes them. Where one in force is missing it may have
// ended, or the ledger was set back or lost: the table tells.
func (e *engine) readClaims(ctx context.Context, node string, after uint64) (uint64, error) {
	read, index, err := e.books.WatchClaims(ctx, node, after, e.pace.watch)
	e.asked(ctx, "claims", err)
	if err != nil {
		return index, err
	}
	next, wentBack := claimsOf(read), index < after
	if w, _ := e.world.get(); w.loses(next) && !wentBack {
		if wentBack, err = e.tableWentBack(ctx, w); err != nil {
			return after, err
		}
	}
	e.world.update(func(w *world) { w.takeClaims(next, wentBack) })
	return index, nil
}

// tableWentBack says whether the ledger's table is missing, does not follow the one known, or is a question of the
// placer's. watchTable will find out as well.
func (e *engine) tableWentBack(ctx context.Context, w world) (bool, error) {
	read, err := e.books.WatchTable(ctx, w.self.node, 0, 0)
	if errors.Is(err, ledger.ErrNotFound) {
		return w.table.Sequence > 0, nil
	}
	return read.Doc.Rebuild || !w.followedBy(read.Doc), err
}

// claimsOf drops the indexes. A claim of a newer version says nothing but that it is there, which counts.
func claimsOf(read map[ledger.SlotID]ledger.Versioned[ledger.Claim]) map[ledger.SlotID]ledger.Claim {
	claims := make(map[ledger.SlotID]ledger.Claim, len(read))
	for id, claim := range read {
		claims[id] = claim.Doc
	}
	return claims
}

// fetchGangs reads, as soon as a slot appears, what its task will ask for.
func (e *engine) fetchGangs(ctx context.Context) {
	for {
		w, changed := e.world.get()
		complete := true
		for _, s := range w.table.Slots {
			if _, known := w.gangs[s.Reservation]; s.State == ledger.SlotOpen && !known {
				complete = e.fetchGang(ctx, s) && complete
			}
		}
		if complete {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		} else if !wait(ctx, nil, spread(e.pace.retry)) {
			return
		}
	}
}

// fetchGang reports whether the gang of a slot is known now.
func (e *engine) fetchGang(ctx context.Context, s ledger.Slot) bool {
	gang, err := e.books.GetGang(ctx, s.Owner.Gang)
	e.ledgerAnswered(ctx, "gang "+s.Owner.Gang, err)
	if err != nil {
		return false
	}
	facts, ok := gangFactsOf(gang.Doc, s.Reservation)
	if !ok {
		e.once.warn("gang "+s.Owner.Gang, "the gang's document is about another reservation than its slot here", "slot", slotName(s), "reservation", s.Reservation)
		return false
	}
	e.once.clear("gang "+s.Owner.Gang, "the gang's document is about its slot's reservation now", "slot", slotName(s))
	e.world.update(func(w *world) {
		if _, still := w.table.Find(s.ID()); still {
			gangs := map[string]gangFacts{s.Reservation: facts}
			for reservation, other := range w.gangs {
				gangs[reservation] = other
			}
			w.gangs = gangs
		}
	})
	return true
}
