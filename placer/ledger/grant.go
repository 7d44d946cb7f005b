// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/driver/gpu"
)

// BuildGrant gives a gang all of its slots. The gang given is its new document: reserved, with the reservation. It
// refuses whatever would break the ledger, however sure the caller is: a gang that is not whole or holds a reservation
// already, a GPU that is in a slot, not in the inventory, unhealthy, in MIG mode or unmanaged, a node that is silent, has
// not acknowledged its table since it started, remembers a later table than the ledger has, or has claims that belong to
// no slot; and, as a *TooLargeError, what might not fit into one transaction later, when it closes.
func BuildGrant(s Snapshot, gang Gang, slots map[string][]Slot) (Change, error) {
	refuse := refusing("granting", gang.Name)
	if s.EpochID == "" {
		return Change{}, refuse("the ledger has no epoch: it is new or was lost")
	}
	before := s.Gangs[gang.Name]
	if before.Doc.Reservation != nil {
		return Change{}, refuse("it holds reservation %s", before.Doc.Reservation.ID)
	}
	if err := checkWhole(gang, slots); err != nil {
		return Change{}, refuse("%w", err)
	}
	change := Change{Gang: &Versioned[Gang]{Doc: gang, Index: before.Index}, Tables: map[string]Versioned[SlotTable]{}}
	for _, node := range slices.Sorted(maps.Keys(slots)) {
		table, err := s.grantOn(node, slots[node])
		if err != nil {
			return Change{}, refuse("%w", err)
		}
		change.Tables[node] = table
	}
	if err := checkGrantSize(s, change); err != nil {
		return Change{}, err
	}
	return change, nil
}

// place is where a rank is.
type place struct{ node, group string }

// checkWhole says why slots are not exactly the members of a gang as its document places them.
func checkWhole(gang Gang, slots map[string][]Slot) error {
	if gang.State != GangReserved || gang.Reservation == nil || gang.Reservation.ID == "" {
		return errors.New("its new document must be reserved, with a reservation")
	}
	if strings.ContainsAny(gang.Reservation.ID, "./@") {
		return fmt.Errorf("reservation %q: an ID must not hold a dot, a slash or an @", gang.Reservation.ID)
	}
	size := gang.Spec.Size()
	places := map[int]place{} // by rank
	for _, p := range gang.Reservation.Placements {
		for i := range p.Members {
			places[p.Rank+i] = place{node: p.Node, group: p.Group}
		}
	}
	members := map[string]int{}
	seen := map[int]bool{}
	for node, list := range slots {
		for _, slot := range list {
			switch {
			case seen[slot.Rank]:
				return fmt.Errorf("rank %d has two slots", slot.Rank)
			case places[slot.Rank] != place{node: node, group: slot.Owner.Group}:
				return fmt.Errorf("rank %d is in group %s on node %s, but its document places it elsewhere", slot.Rank, slot.Owner.Group, node)
			}
			if err := checkSlot(gang, size, slot); err != nil {
				return err
			}
			seen[slot.Rank] = true
			members[slot.Owner.Group]++
		}
	}
	for _, group := range gang.Spec.Groups {
		if members[group.Group] != group.Count {
			return fmt.Errorf("group %s has %d of %d members", group.Group, members[group.Group], group.Count)
		}
	}
	if len(seen) != size || len(places) != size {
		return fmt.Errorf("%d slots and %d places for %d members", len(seen), len(places), size)
	}
	return nil
}

// checkSlot says why a slot is not one of its gang.
func checkSlot(gang Gang, size int, slot Slot) error {
	at := slices.IndexFunc(gang.Spec.Groups, func(g GroupSpec) bool { return g.Group == slot.Owner.Group })
	if at < 0 {
		return fmt.Errorf("rank %d: the gang has no group %q", slot.Rank, slot.Owner.Group)
	}
	group := gang.Spec.Groups[at]
	owner := Owner{Gang: gang.Name, Value: group.Value, Namespace: gang.Namespace, Job: gang.Job, CreateIndex: gang.CreateIndex, Group: group.Group, Task: group.Task}
	switch {
	case slot.Owner != owner:
		return fmt.Errorf("rank %d: owner %+v, want %+v", slot.Rank, slot.Owner, owner)
	case slot.Reservation != gang.Reservation.ID || slot.Size != size || slot.Rank < 0 || slot.Rank >= size:
		return fmt.Errorf("rank %d of %d in reservation %s is not of reservation %s of size %d", slot.Rank, slot.Size, slot.Reservation, gang.Reservation.ID, size)
	case slot.State != SlotOpen || slot.Closing != 0 || slot.Why != "":
		return fmt.Errorf("rank %d: a new slot must be open", slot.Rank)
	case slot.Driver != group.Driver:
		return fmt.Errorf("rank %d: driver %q, want %q", slot.Rank, slot.Driver, group.Driver)
	case len(slot.GPUs) != group.GPUs:
		return fmt.Errorf("rank %d has %d GPUs, want %d", slot.Rank, len(slot.GPUs), group.GPUs)
	}
	return nil
}

// grantOn adds slots to a node's table, if the node may give their GPUs.
func (s Snapshot) grantOn(node string, slots []Slot) (Versioned[SlotTable], error) {
	table, err := s.settled(node)
	if err != nil {
		return table, err
	}
	if why := s.Withheld(node); why != "" {
		return table, fmt.Errorf("node %s: %s", node, why)
	}
	inventory := s.Nodes[node].Doc
	usable := s.usableGPUs(node)
	for _, slot := range slots {
		if slot.MachineID != inventory.MachineID || slot.BootID != inventory.BootID {
			return table, fmt.Errorf("slot %s is for another machine or boot of node %s", slot.ID(), node)
		}
		for _, uuid := range slot.GPUs {
			if why, ok := usable[uuid]; !ok || why != "" {
				return table, fmt.Errorf("GPU %s of node %s: %s", uuid, node, cmp.Or(why, "not in the inventory"))
			}
			usable[uuid] = "in slot " + slot.ID().String()
		}
	}
	doc := table.Doc.next()
	doc.Slots = append(doc.Slots, slots...)
	return Versioned[SlotTable]{Doc: doc, Index: table.Index}, nil
}

// usableGPUs says of each GPU of a node why it may not be granted; empty: it may.
func (s Snapshot) usableGPUs(node string) map[string]string {
	inventory := s.Nodes[node].Doc
	reasons := make(map[string]string, len(inventory.Machine.GPUs))
	for _, g := range inventory.Machine.GPUs {
		health, listed := s.Health[node].Doc.GPUs[g.UUID]
		switch {
		case g.MIG:
			reasons[g.UUID] = "in MIG mode"
		case slices.Contains(inventory.Unmanaged, g.UUID):
			reasons[g.UUID] = "unmanaged"
		case listed && health.State != gpu.Healthy:
			reasons[g.UUID] = strings.TrimSuffix(string(health.State)+": "+health.Reason, ": ")
		default:
			reasons[g.UUID] = ""
		}
	}
	for _, slot := range s.Tables[node].Doc.Slots {
		for _, uuid := range slot.GPUs {
			reasons[uuid] = "in slot " + slot.ID().String()
		}
	}
	return reasons
}

// FreeGPUs are the GPUs of a node that may be granted now, in NVML index order; none while the node is Withheld.
func (s Snapshot) FreeGPUs(node string) []string {
	if s.Withheld(node) != "" {
		return nil
	}
	usable := s.usableGPUs(node)
	var free []string
	for _, g := range s.Nodes[node].Doc.Machine.GPUs {
		if usable[g.UUID] == "" {
			free = append(free, g.UUID)
		}
	}
	return free
}

// Withheld says why nothing may be granted on a node, in words; empty: something may.
func (s Snapshot) Withheld(node string) string {
	inventory, known := s.Nodes[node]
	table, tableErr := s.settled(node)
	ack, acked := s.Acks[node]
	switch {
	case s.unreadable(s.keys.Node(node)), s.unreadable(s.keys.Health(node)), s.unreadable(s.keys.Ack(node)):
		return "some of its documents are of a newer version of Muster"
	case !known:
		return "not in the inventory"
	case s.NodeSessions[node] == "":
		return "silent: its device plugin has lost its session"
	case inventory.Doc.Problem != "":
		return inventory.Doc.Problem
	case tableErr != nil && (acked || !errors.Is(tableErr, errUnheard)):
		return tableErr.Error()
	case !acked || ack.Doc.BootID != inventory.Doc.BootID || ack.Doc.Epoch != s.EpochID:
		return "it has not acknowledged its slot table since it started"
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.Claims[node]), compareSlots) {
		claim := s.Claims[node][id].Doc
		if _, ok := table.Doc.Find(id); !ok && (claim.BootID == inventory.Doc.BootID || claim.BootID == "") {
			return fmt.Sprintf("allocation %s has a claim on slot %s, which the ledger does not have", claim.Allocation, id)
		}
	}
	return ""
}

func compareSlots(a, b SlotID) int { return strings.Compare(a.String(), b.String()) }

// CheckGangSize says, as a *TooLargeError, why a gang's document is too large to be granted anything: it would leave no
// room for what closing it adds.
func CheckGangSize(gang Gang) error {
	if n := len(encode(gang)); n > MaxGangBytes-gangHeadroomBytes {
		return &TooLargeError{What: fmt.Sprintf("gang %s: its document has %d bytes; the limit is %d", gang.Name, n, MaxGangBytes-gangHeadroomBytes)}
	}
	return nil
}

// checkGrantSize says why a grant, or the closing of it, would not fit.
func checkGrantSize(s Snapshot, change Change) error {
	gang := change.Gang.Doc
	large := func(format string, args ...any) error {
		return &TooLargeError{Nodes: len(change.Tables), What: "gang " + gang.Name + ": " + fmt.Sprintf(format, args...)}
	}
	if len(change.Tables) > MaxNodes {
		return large("it spans %d nodes; the limit is %d", len(change.Tables), MaxNodes)
	}
	if err := CheckGangSize(gang); err != nil {
		return err
	}
	shares := 0
	for _, node := range slices.Sorted(maps.Keys(change.Tables)) {
		share := max(1, (len(s.Nodes[node].Doc.Machine.GPUs)+7)/8)
		shares += share
		if n := closedBytes(change.Tables[node].Doc); n > share*MaxSlotTableBytes {
			return large("the slot table of node %s would have up to %d bytes; the limit is %d", node, n, share*MaxSlotTableBytes)
		}
	}
	if shares > MaxNodes {
		return large("its nodes count as %d nodes of 8 GPUs; the limit is %d", shares, MaxNodes)
	}
	return nil
}

// closedBytes is the size of a table when all of its slots are closing with the longest reason.
func closedBytes(table SlotTable) int {
	table.Slots = slices.Clone(table.Slots)
	for i := range table.Slots {
		slot := &table.Slots[i]
		slot.State, slot.Why, slot.Closing = SlotClosing, strings.Repeat("y", MaxSlotWhyBytes), table.Sequence+1
	}
	return len(encode(table))
}
