// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"maps"
	"reflect"

	"github.com/nomad-muster/muster/placer/ledger"
)

// takeTable takes a table that was read from the ledger, unless it does not follow the one known: a ledger that was set
// back or replaced may hand out GPUs that are in use. Then the known table stays, and only what is known of it is offered,
// until the placer has asked what this node remembers (a table with Rebuild) and has written down what follows. A node
// that remembers nothing takes any table.
func (w *world) takeTable(next ledger.SlotTable) {
	w.read = true
	switch {
	case next.Rebuild:
		w.asked = &ledger.Lineage{Epoch: next.Epoch, Sequence: next.Sequence}
		if w.setBack == "" && w.table.Sequence > 0 && !sameSlots(next, w.table) {
			w.setBack = "the ledger has other slots than this node, and the placer is putting it in order"
		}
	case w.heard(next):
		w.unlisted = w.unlistedToo() // the ledger may not have shown its claims yet since it was put in order
		w.table, w.asked, w.setBack = next, nil, ""
	case w.table.Sequence == 0, w.followedBy(next):
		w.table, w.asked, w.setBack = next, nil, ""
	case next.Epoch == w.table.Epoch:
		w.setBack = fmt.Sprintf("the ledger was set back (its table is at %d, this node's at %d)", next.Sequence, w.table.Sequence)
	default:
		w.setBack = "the ledger was set back (its table is of another time than this node's)"
	}
}

// heard says whether a table is what the placer made of this node's answer, or follows that.
func (w *world) heard(next ledger.SlotTable) bool {
	return w.asked != nil && next.Epoch == w.asked.Epoch && next.Sequence > w.asked.Sequence
}

// followedBy says whether a table is the known one or follows it in the same ledger.
func (w *world) followedBy(next ledger.SlotTable) bool {
	return next.Epoch == w.table.Epoch &&
		(next.Sequence > w.table.Sequence || next.Sequence == w.table.Sequence && sameSlots(next, w.table))
}

// remembered is what this node answers to the placer's question.
func (w *world) remembered() *ledger.Remembered {
	r := &ledger.Remembered{Asked: w.asked.Sequence, Table: w.table}
	claims := maps.Clone(w.claims)
	maps.Copy(claims, w.unlisted)
	for _, id := range sortedIDs(claims) {
		if w.holds(claims[id]) {
			r.Claims = append(r.Claims, claims[id])
		}
	}
	for reservation, facts := range w.gangs {
		if r.Ports == nil {
			r.Ports = map[string]int{}
		}
		r.Ports[reservation] = facts.MasterPort
	}
	return r
}

// standing names the ledger as this node sees it. When it changes, what was published may be lost.
func (w *world) standing() string {
	if w.asked != nil {
		return w.asked.Epoch
	}
	return w.table.Epoch + w.setBack
}

func sameSlots(a, b ledger.SlotTable) bool {
	return len(a.Slots) == len(b.Slots) && (len(a.Slots) == 0 || reflect.DeepEqual(a.Slots, b.Slots))
}

// loseTable notes that the ledger answered without a table. That is never a revocation: the ledger may be new, lost, or
// forbidden.
func (w *world) loseTable() {
	w.read = true
	if w.table.Sequence > 0 {
		w.setBack = "the ledger has no slot table for this node any more"
	}
}

// takeClaims takes the claims that were read from the ledger. One that was set back or lost may have lost claims, too, or
// have old ones again: those in force until then stay so, unlisted, until their tasks are over.
func (w *world) takeClaims(next map[ledger.SlotID]ledger.Claim, wentBack bool) {
	unlisted := w.unlisted
	if wentBack || w.setBack != "" || w.asked != nil {
		unlisted = w.unlistedToo()
	}
	w.claims = next
	w.unlisted = keep(unlisted, func(id ledger.SlotID) bool {
		now, there := next[id]
		return !there || now.Allocation != unlisted[id].Allocation
	})
}

// unlistedToo are the unlisted claims and all others that are in force.
func (w *world) unlistedToo() map[ledger.SlotID]ledger.Claim {
	unlisted := maps.Clone(w.unlisted)
	for id, claim := range w.claims {
		if _, some := unlisted[id]; !some && w.holds(claim) {
			if unlisted == nil {
				unlisted = map[ledger.SlotID]ledger.Claim{}
			}
			unlisted[id] = claim
		}
	}
	return unlisted
}

// endUnlisted gives up the unlisted claims that the ledger has again, and those whose tasks are over.
func (w *world) endUnlisted(seen evidence) {
	w.unlisted = keep(w.unlisted, func(id ledger.SlotID) bool {
		if listed, some := seen.claims[id]; some && seen.claimsErr == nil && listed.Allocation == w.unlisted[id].Allocation {
			return false
		}
		slot, _ := w.table.Find(id)
		return seen.allocsErr != nil || !seen.over(w.unlisted[id].Allocation) || w.processOn(slot.GPUs, seen) != busy{}
	})
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
