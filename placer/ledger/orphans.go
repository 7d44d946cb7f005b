// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// whyOrphan is why an orphan is closing.
const whyOrphan = "no gang holds it"

// Orphans are, by node, the slots whose reservation no gang document holds: they were left behind by a release, or the
// ledger was set back. Their GPUs are taken like those of any slot. A document that can't be read counts as holding.
func (s Snapshot) Orphans() map[string][]Slot {
	orphans := map[string][]Slot{}
	for node, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			if !s.held(slot) {
				orphans[node] = append(orphans[node], slot)
			}
		}
	}
	return orphans
}

// held says whether the document of a slot's gang holds its reservation, or may.
func (s Snapshot) held(slot Slot) bool {
	if s.unreadable(s.keys.Gang(slot.Owner.Gang)) {
		return true
	}
	r := s.Gangs[slot.Owner.Gang].Doc.Reservation
	return r != nil && r.ID == slot.Reservation
}

// NodeSlot names a slot with its node.
type NodeSlot struct {
	Node string
	Slot SlotID
}

// ClaimsOn are the claims on a node's slots of one reservation, in order.
func (s Snapshot) ClaimsOn(node, reservation string) []NodeSlot {
	var claims []NodeSlot
	for _, id := range slices.SortedFunc(maps.Keys(s.Claims[node]), compareSlots) {
		if id.Reservation == reservation {
			claims = append(claims, NodeSlot{Node: node, Slot: id})
		}
	}
	return claims
}

func (l *Ledger) deleteClaims(claims []NodeSlot) []Op {
	ops := make([]Op, 0, len(claims))
	for _, c := range claims {
		ops = append(ops, Op{Verb: Delete, Key: l.keys.Claim(c.Node, c.Slot)})
	}
	return ops
}

// BuildSweep is a node's next table on the way to one without orphans: open ones turn to closing, so that what runs on
// them is ended as with any other slot, and closing ones leave that are clear or of the reservation that a person vouches
// for (empty: none). Those leave although the node has not answered yet in this epoch, see Release.Vouched. ok is false
// when there is nothing to do now.
func BuildSweep(s Snapshot, node, vouched string) (swept Versioned[SlotTable], ok bool, err error) {
	table, err := Release{Vouched: vouched != ""}.table(s, node)
	if err != nil {
		return table, false, fmt.Errorf("sweeping node %s: %w", node, err)
	}
	doc := table.Doc.next()
	doc.Slots = nil
	for _, slot := range table.Doc.Slots {
		switch {
		case s.held(slot):
		case slot.State == SlotClosing && slot.Reservation == vouched:
			doc, ok = doc.vouchedFor(vouched), true
			continue
		case doc.Rebuild: // the rest waits for the node's answer
		case slot.State == SlotOpen:
			slot.State, slot.Why, slot.Closing, ok = SlotClosing, whyOrphan, doc.Sequence, true
		case s.unclear(node, slot) == "":
			ok = true
			continue
		}
		doc.Slots = append(doc.Slots, slot)
	}
	return Versioned[SlotTable]{Doc: doc, Index: table.Index}, ok, nil
}

// CommitTable writes a node's table alone, for a decision that is about no gang, provided that the lease still holds and
// the table has not changed since it was read. The claims given go with it. It returns the table's new index. Errors:
// ErrNotLeader, ErrConflict, ErrUnknownOutcome.
func (l *Ledger) CommitTable(ctx context.Context, lease Lease, node string, table Versioned[SlotTable], claims ...NodeSlot) (uint64, error) {
	ops := []Op{lease.guard(), {Verb: CAS, Key: l.keys.Slots(node), Value: encode(table.Doc), Index: table.Index}}
	changed, err := l.store.Txn(ctx, append(ops, l.deleteClaims(claims)...))
	if err != nil {
		return 0, fmt.Errorf("committing the slot table of node %s: %w", node, leaseError(err, lease))
	}
	return changed[slices.IndexFunc(changed, func(e Entry) bool { return e.Key == l.keys.Slots(node) })].Index, nil
}
