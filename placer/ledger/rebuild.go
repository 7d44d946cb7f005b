// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// next is the table to follow this one, with its slots to begin with.
func (t SlotTable) next() SlotTable {
	t.Version, t.Sequence, t.Slots = Version, t.Sequence+1, slices.Clone(t.Slots)
	return t
}

// Unheard says that a node has not answered yet in this epoch, so that its slots are not known for sure.
func (s Snapshot) Unheard(node string) bool {
	_, err := s.settled(node)
	return errors.Is(err, errUnheard) || errors.Is(err, ErrNotFound)
}

// BuildAsk is the table by which a node is asked what it remembers, when the ledger has a new epoch or has no table for
// the node: with all slots that the ledger has. due is false when the node is asked already, or has answered.
func BuildAsk(s Snapshot, node string) (asking Versioned[SlotTable], due bool) {
	table, err := s.table(node)
	switch {
	case s.EpochID == "" || errors.Is(err, ErrNewerVersion):
		return Versioned[SlotTable]{}, false
	case errors.Is(err, ErrNotFound):
		return Versioned[SlotTable]{Doc: SlotTable{Version: Version, Epoch: s.EpochID, Sequence: 1, Rebuild: true}}, true
	case table.Doc.Epoch == s.EpochID:
		return Versioned[SlotTable]{}, false
	}
	doc := table.Doc.next()
	if !doc.Rebuild { // else an earlier epoch's question was never answered
		doc.Former = &Lineage{Epoch: doc.Epoch, Sequence: table.Doc.Sequence}
	}
	doc.Epoch, doc.Rebuild = s.EpochID, true
	return Versioned[SlotTable]{Doc: doc, Index: table.Index}, true
}

// answer is what a node has answered in this epoch while it is asked.
func (s Snapshot) answer(node string) (Remembered, bool) {
	table, err := s.current(node)
	ack := s.Acks[node].Doc
	if err != nil || !table.Doc.Rebuild || ack.Epoch != s.EpochID || ack.Remembered == nil {
		return Remembered{}, false
	}
	return *ack.Remembered, true
}

// follows says whether a table that is asked about is the one that a node remembers or a later one of the same ledger;
// else the ledger was lost or set back. A node that remembers nothing contradicts nothing.
func (t SlotTable) follows(remembered SlotTable) bool {
	return remembered.Sequence == 0 ||
		t.Former != nil && t.Former.Epoch == remembered.Epoch && t.Former.Sequence >= remembered.Sequence
}

// Contradicted says whether a node has answered that it remembers something else than the ledger holds or a later state
// of it: the ledger was lost or set back.
func (s Snapshot) Contradicted(node string) bool {
	remembered, answered := s.answer(node)
	return answered && !s.Tables[node].Doc.follows(remembered.Table)
}

// BuildRestore is a node's table after it has answered: what may be in use on the node comes first. What the node
// remembers stays, closing if either side has it closing or a person has vouched for it, except slots that only the node
// has and that it says are clear or are of an earlier boot. Slots that only the ledger has stay if the ledger is ahead of
// the node, or the node remembers nothing, and their GPUs are in no slot that the node remembers: it has never offered
// them, so that nothing runs there. due is false while the node has not answered.
func BuildRestore(s Snapshot, node string) (restored Versioned[SlotTable], due bool) {
	remembered, answered := s.answer(node)
	if !answered {
		return Versioned[SlotTable]{}, false
	}
	table, ack := s.Tables[node], s.Acks[node].Doc
	doc := SlotTable{Version: Version, Epoch: s.EpochID, Sequence: max(table.Doc.Sequence, remembered.Table.Sequence) + 1}
	taken := map[string]bool{}
	add := func(slot Slot, closing bool, why string) {
		if closing {
			slot.State, slot.Why, slot.Closing = SlotClosing, why, doc.Sequence
		}
		for _, uuid := range slot.GPUs {
			taken[uuid] = true
		}
		doc.Slots = append(doc.Slots, slot)
	}
	for _, slot := range remembered.Table.Slots {
		known, both := table.Doc.Find(slot.ID())
		gone := slot.BootID != ack.BootID || slices.Contains(ack.Clear, slot.ID().String())
		if both || !gone {
			vouched := slices.Contains(table.Doc.Vouched, slot.Reservation)
			add(slot, slot.State == SlotClosing || known.State == SlotClosing || vouched, cmp.Or(slot.Why, known.Why))
		}
	}
	if table.Doc.follows(remembered.Table) {
		for _, slot := range table.Doc.Slots {
			_, both := remembered.Table.Find(slot.ID())
			if !both && !slices.ContainsFunc(slot.GPUs, func(uuid string) bool { return taken[uuid] }) {
				add(slot, slot.State == SlotClosing, slot.Why)
			}
		}
	}
	return Versioned[SlotTable]{Doc: doc, Index: table.Index}, true
}

// Found are the slots of a reservation in the tables of this ledger, by node.
func (s Snapshot) Found(reservation string) map[string][]Slot {
	found := map[string][]Slot{}
	for node, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			if slot.Reservation == reservation {
				found[node] = append(found[node], slot)
			}
		}
	}
	return found
}

// BuildAdopt gives a gang a reservation back that its nodes remember and the ledger has lost. The gang given is its new
// document, with the reservation: reserved if all of its slots are open, or closing, and then those that are open close,
// too. All slots must be there, and each of its nodes must have answered. The tables change in any case, so that a sweep
// that is under way can't land any more.
func BuildAdopt(s Snapshot, gang Gang) (Change, error) {
	refuse := refusing("adopting", gang.Name)
	before := s.Gangs[gang.Name]
	if before.Doc.Reservation != nil {
		return Change{}, refuse("it holds reservation %s", before.Doc.Reservation.ID)
	}
	if gang.Reservation == nil {
		return Change{}, refuse("its new document must be reserved, with the reservation")
	}
	slots := s.Found(gang.Reservation.ID)
	if err := checkAdoptable(gang, slots); err != nil {
		return Change{}, refuse("%w", err)
	}
	change := Change{Gang: &Versioned[Gang]{Doc: gang, Index: before.Index}, Tables: map[string]Versioned[SlotTable]{}}
	for _, node := range slices.Sorted(maps.Keys(slots)) {
		table, err := s.settled(node)
		if err != nil {
			return Change{}, refuse("%w", fmt.Errorf("node %s: %w", node, err))
		}
		doc := table.Doc.next()
		if gang.State == GangClosing {
			doc, _ = closeSlots(table.Doc, gang.Reservation.ID, gang.why())
		}
		change.Tables[node] = Versioned[SlotTable]{Doc: doc, Index: table.Index}
	}
	return change, nil
}

// checkAdoptable says why slots are not all those of a gang that is given them back. A closing gang takes them closing, too.
func checkAdoptable(gang Gang, slots map[string][]Slot) error {
	if gang.State != GangClosing {
		return checkWhole(gang, slots)
	}
	gang.State = GangReserved
	opened := make(map[string][]Slot, len(slots))
	for node, list := range slots {
		for _, slot := range list {
			slot.State, slot.Closing, slot.Why = SlotOpen, 0, ""
			opened[node] = append(opened[node], slot)
		}
	}
	return checkWhole(gang, opened)
}

// why is why a gang waits, closes or failed, in words; empty: nothing is said.
func (g Gang) why() string {
	if g.Why == nil {
		return ""
	}
	return g.Why.Text
}

// BuildForget takes a reservation out of a gang's document that its nodes do not have, or not whole any more: the ledger
// was set back. What is left of it is orphaned. The gang given is its new document, with no reservation; with remove it is
// deleted.
func BuildForget(s Snapshot, gang Gang, remove bool) (Change, error) {
	refuse := refusing("forgetting the reservation of", gang.Name)
	before, err := reserved(s, gang.Name)
	if err != nil {
		return Change{}, refuse("%w", err)
	}
	if !remove && gang.Reservation != nil {
		return Change{}, refuse("its new document must have no reservation")
	}
	whole, err := s.Whole(before.Doc)
	if err != nil {
		return Change{}, refuse("%w", err)
	}
	if whole {
		return Change{}, refuse("its reservation is whole")
	}
	return Change{Gang: &Versioned[Gang]{Doc: gang, Index: before.Index}, DeleteGang: remove}, nil
}

// Whole says whether the ledger has all slots of a gang's reservation. The error says which node has not answered yet in
// this epoch, so that nobody knows.
func (s Snapshot) Whole(gang Gang) (bool, error) {
	found := 0
	for _, node := range nodesOf(gang) {
		table, err := s.settled(node)
		if err != nil {
			return false, fmt.Errorf("node %s: %w", node, err)
		}
		for _, slot := range table.Doc.Slots {
			if slot.Reservation == gang.Reservation.ID {
				found++
			}
		}
	}
	return found == gang.Reservation.members(), nil
}
