// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"maps"
	"reflect"

	"github.com/nomad-muster/muster/placer/ledger"
)

// takeTable takes a table that was read from the ledger, unless it is from before the one known: a ledger that was set
// back or replaced may hand out GPUs that are in use. Then the known table stays, only its claimed slots are offered, and
// the acknowledgement goes on telling the placer the last sequence. It ends with a table of a higher sequence, or when
// nothing on this node is in use any more (agree).
func (w *world) takeTable(next ledger.SlotTable) {
	w.read = true
	if next.Sequence < w.table.Sequence || next.Sequence == w.table.Sequence && !sameSlots(next, w.table) {
		w.setBack = fmt.Sprintf("the ledger was set back (its table is at %d, this node's at %d)", next.Sequence, w.table.Sequence)
		w.behind = &next
		return
	}
	w.table, w.setBack, w.behind = next, "", nil
}

// agree gives up what is known beyond a ledger that was set back, as far as nothing uses it any more: claims that the
// ledger does not have, and with the last of them the table.
func (w *world) agree(seen evidence) {
	if w.setBack == "" {
		return
	}
	used := map[ledger.SlotID]bool{}
	for _, s := range w.table.Slots {
		used[s.ID()] = w.inUse(s, seen) != busy{}
	}
	w.claims = keep(w.claims, func(id ledger.SlotID) bool {
		_, there := seen.claims[id]
		return there || used[id]
	})
	for _, s := range w.table.Slots {
		if used[s.ID()] || w.claimed(s.ID()) {
			return
		}
	}
	if w.behind != nil {
		w.table, w.setBack, w.behind = *w.behind, "", nil
	}
}

func sameSlots(a, b ledger.SlotTable) bool {
	return len(a.Slots) == len(b.Slots) && (len(a.Slots) == 0 || reflect.DeepEqual(a.Slots, b.Slots))
}

// loseTable notes that the ledger answered without a table. That is never a revocation: the ledger may be new, lost, or
// forbidden.
func (w *world) loseTable() {
	w.read = true
	if w.table.Sequence > 0 {
		w.setBack, w.behind = "the ledger has no slot table for this node any more", nil
	}
}

// takeClaims takes the claims that were read from the ledger. From one that was set back (its table is not taken, or its
// index went back) they can't be complete, so that none known is given up.
func (w *world) takeClaims(next map[ledger.SlotID]ledger.Claim, wentBack bool) {
	if w.setBack == "" && !wentBack {
		w.claims = next
		return
	}
	all := maps.Clone(next)
	for id, claim := range w.claims {
		if _, there := next[id]; !there {
			all[id] = claim
		}
	}
	w.claims = all
}

// loses says whether a claim in force is missing among others.
func (w *world) loses(next map[ledger.SlotID]ledger.Claim) bool {
	for id := range w.claims {
		if _, there := next[id]; !there && w.claimed(id) {
			return true
		}
	}
	return false
}

// gangFactsOf picks what Reserve needs out of a gang's document; false if the document is about another reservation.
func gangFactsOf(gang ledger.Gang, reservation string) (gangFacts, bool) {
	grant := gang.Reservation
	if grant == nil || grant.ID != reservation {
		return gangFacts{}, false
	}
	facts := gangFacts{Gang: gang.Name, Reservation: reservation, MasterPort: grant.MasterPort}
	for _, p := range grant.Placements {
		for i := range p.Members {
			facts.Hosts = append(facts.Hosts, host{Address: p.Address, Node: p.Node, Rank: p.Rank + i, Group: p.Group, GPUs: p.GPUs})
		}
	}
	return facts.inRankOrder(), true
}
