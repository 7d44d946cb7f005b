// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxSlotWhyBytes is the size of the reason that a slot carries; the gang document has the whole of it.
const MaxSlotWhyBytes = 32

// gangHeadroomBytes is what a gang document may still grow by after its grant, for its reason and the same in the summary
// of its run, the nodes to avoid, whom it is evicted for, and times, so that it can always be closed.
const gangHeadroomBytes = 2*maxReasonBytes + maxAvoidBytes + 768

const (
	maxReasonBytes = 512  // of one reason's text, as it is written, when a gang closes
	maxAvoidBytes  = 1024 // of the names of nodes to avoid, as they are written
)

// withinHeadroom is a closing gang's document with no more in it than was kept room for.
func withinHeadroom(gang Gang) Gang {
	if gang.Why != nil {
		why := shortened(*gang.Why)
		gang.Why = &why
	}
	if gang.LastRun != nil {
		last := *gang.LastRun
		last.Reason = shortened(last.Reason)
		gang.LastRun = &last
	}
	bytes := 0
	for i, node := range gang.Avoid {
		if bytes += writtenBytes(node) + 1; bytes > maxAvoidBytes {
			gang.Avoid = gang.Avoid[:i]
			break
		}
	}
	return gang
}

func shortened(r Reason) Reason {
	if writtenBytes(r.Text) > maxReasonBytes {
		r.Text = cut(r.Text, maxReasonBytes-2)
	}
	return r
}

// writtenBytes is the size of a text in a document.
func writtenBytes(text string) int {
	written, _ := json.Marshal(text) // a string can't fail
	return len(written)
}

// BuildClose turns all slots of a gang's reservation to closing, with a reason of a few words. The gang given is its new
// document: closing, with the same reservation. What is too long in it for the room that the grant left is cut. A gang that
// is evicted for another is closed only once the other has its earmarks, so that what it frees is never anybody's.
func BuildClose(s Snapshot, gang Gang, why string) (Change, error) {
	refuse := refusing("closing", gang.Name)
	before, err := reserved(s, gang.Name)
	if err != nil {
		return Change{}, refuse("%w", err)
	}
	reservation := before.Doc.Reservation.ID
	if gang.State != GangClosing || gang.Reservation == nil || gang.Reservation.ID != reservation {
		return Change{}, refuse("its new document must be closing, with reservation %s", reservation)
	}
	if other := gang.FreedFor; other != before.Doc.FreedFor && other != "" && len(s.Gangs[other].Doc.Earmarks) == 0 {
		return Change{}, refuse("it would be evicted for gang %s, which has nothing earmarked", other)
	}
	change := Change{Gang: &Versioned[Gang]{Doc: withinHeadroom(gang), Index: before.Index}, Tables: map[string]Versioned[SlotTable]{}}
	for _, node := range nodesOf(before.Doc) {
		table, err := s.current(node) // one that has not answered yet closes as well: its answer opens nothing again
		if err != nil {
			return Change{}, refuse("%w", err)
		}
		if closed, ok := closeSlots(table.Doc, reservation, why); ok {
			change.Tables[node] = Versioned[SlotTable]{Doc: closed, Index: table.Index}
		}
	}
	return change, nil
}

// closeSlots is a table with the open slots of a reservation closing; ok is false when there are none.
func closeSlots(table SlotTable, reservation, why string) (closed SlotTable, ok bool) {
	closed = table.next()
	for i := range closed.Slots {
		slot := &closed.Slots[i]
		if slot.Reservation == reservation && slot.State == SlotOpen {
			slot.State, slot.Why, slot.Closing, ok = SlotClosing, cut(why, MaxSlotWhyBytes), closed.Sequence, true
		}
	}
	return closed, ok
}

// cut shortens a text to a number of bytes, between words if there are any. What JSON would write as an escape becomes a
// space, so that the text is no longer there than here.
func cut(text string, bytes int) string {
	const more = "..."
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError || strings.ContainsRune("\"\\<>&\u2028\u2029", r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= bytes {
		return text
	}
	text = strings.ToValidUTF8(text[:bytes-len(more)], "")
	if space := strings.LastIndexByte(text, ' '); space > 0 {
		text = text[:space]
	}
	return text + more
}

// Release says how a reservation leaves its tables.
type Release struct {
	// Remove deletes the gang's document instead of writing it.
	Remove bool
	// LeftBehind are nodes whose slots stay in their tables, closing, of no gang any more: nodes that have been silent for
	// so long that the gang goes on without them. BuildSweep takes such slots out once their node has cleared them.
	LeftBehind map[string]bool
	// Vouched takes slots out, with their claims, although their nodes have not cleared them: a person says that nothing
	// uses them. A node that has not answered yet in this epoch is no hindrance: it gets nothing before its answer, and what
	// it still remembers of the reservation then comes back closing.
	Vouched bool
}

// table is a node's table, for a release in this way.
func (how Release) table(s Snapshot, node string) (Versioned[SlotTable], error) {
	if how.Vouched {
		return s.current(node)
	}
	return s.settled(node)
}

// BuildRelease takes all slots of a gang's reservation out of their tables, once all that are not left behind are clear
// (see Cleared). The gang given is its new document, with no reservation; with how.Remove it is deleted.
func BuildRelease(s Snapshot, gang Gang, how Release) (Change, error) {
	refuse := refusing("releasing", gang.Name)
	before, err := reserved(s, gang.Name)
	if err != nil {
		return Change{}, refuse("%w", err)
	}
	if !how.Remove && (gang.Reservation != nil || gang.State != GangWaiting && gang.State != GangFinished && gang.State != GangFailed) {
		return Change{}, refuse("its new document must be waiting, finished or failed, with no reservation")
	}
	if missing, ok := Cleared(s, before.Doc, how); !ok {
		return Change{}, refuse("not clear yet: %s", strings.Join(missing, "; "))
	}
	reservation := before.Doc.Reservation.ID
	change := Change{Gang: &Versioned[Gang]{Doc: gang, Index: before.Index}, DeleteGang: how.Remove, Tables: map[string]Versioned[SlotTable]{}}
	for _, node := range nodesOf(before.Doc) {
		if how.LeftBehind[node] {
			continue
		}
		table, err := how.table(s, node)
		if err != nil {
			return Change{}, refuse("%w", err)
		}
		doc := table.Doc.next()
		doc.Slots = slices.DeleteFunc(doc.Slots, func(slot Slot) bool { return slot.Reservation == reservation })
		if len(doc.Slots) == len(table.Doc.Slots) {
			continue
		}
		doc = doc.vouchedFor(reservation)
		change.Tables[node] = Versioned[SlotTable]{Doc: doc, Index: table.Index}
		if how.Vouched {
			change.Claims = append(change.Claims, s.ClaimsOn(node, reservation)...)
		}
	}
	return change, nil
}

// vouchedFor is a table out of which the slots of a reservation were taken. If the node is still to answer what it
// remembers, it was at a person's word, and the table keeps that until then.
func (t SlotTable) vouchedFor(reservation string) SlotTable {
	if t.Rebuild && !slices.Contains(t.Vouched, reservation) {
		t.Vouched = append(slices.Clone(t.Vouched), reservation)
	}
	return t
}

// Cleared says whether a gang's reservation can be released in a way. Every slot must be closing; of those that are not
// left behind or vouched for the node must also have acknowledged that it is clear and show no claim on it, or the machine
// that it was granted on must have started anew. If not, missing says for each slot what is missing.
func Cleared(s Snapshot, gang Gang, how Release) (missing []string, ok bool) {
	if gang.Reservation == nil {
		return nil, true
	}
	found := 0
	for _, node := range nodesOf(gang) {
		table, err := how.table(s, node)
		if err != nil && !how.LeftBehind[node] {
			missing = append(missing, err.Error())
			continue
		}
		for _, slot := range table.Doc.Slots {
			if slot.Reservation != gang.Reservation.ID {
				continue
			}
			found++
			why := s.unclear(node, slot)
			if slot.State == SlotClosing && (how.LeftBehind[node] || how.Vouched) {
				why = ""
			}
			if why != "" {
				missing = append(missing, fmt.Sprintf("slot %s on node %s: %s", slot.ID(), node, why))
			}
		}
	}
	if members := gang.Reservation.members(); found != members && len(how.LeftBehind) == 0 {
		missing = append(missing, fmt.Sprintf("the ledger has %d of its %d slots", found, members))
	}
	return missing, len(missing) == 0
}

// members is the number of slots of a reservation.
func (g Grant) members() int {
	n := 0
	for _, p := range g.Placements {
		n += p.Members
	}
	return n
}

// unclear says why a slot is not free to be released; empty: it is.
func (s Snapshot) unclear(node string, slot Slot) string {
	if slot.State != SlotClosing {
		return "it is " + string(slot.State)
	}
	if n, ok := s.Nodes[node]; ok && n.Doc.BootID != "" && s.NodeSessions[node] != "" &&
		(n.Doc.BootID != slot.BootID || n.Doc.MachineID != slot.MachineID) {
		return "" // nothing outlives a boot
	}
	if claim, ok := s.Claims[node][slot.ID()]; ok {
		return fmt.Sprintf("claimed by allocation %s", claim.Doc.Allocation)
	}
	ack, ok := s.Acks[node]
	switch {
	case !ok || ack.Doc.Epoch != s.EpochID:
		return "the node has acknowledged nothing"
	case ack.Doc.Sequence < slot.Closing:
		return fmt.Sprintf("the node has acted on table %d, and it is closing since %d", ack.Doc.Sequence, slot.Closing)
	case !slices.Contains(ack.Doc.Clear, slot.ID().String()):
		return "the node has not acknowledged it as clear"
	}
	return ""
}

// table finds a node's table, or says why the node's slots are unknown.
func (s Snapshot) table(node string) (Versioned[SlotTable], error) {
	table, ok := s.Tables[node]
	switch {
	case ok:
		return table, nil
	case s.unreadable(s.keys.Slots(node)):
		return table, fmt.Errorf("the slot table of node %s: %w", node, ErrNewerVersion)
	default:
		return table, fmt.Errorf("the slot table of node %s: %w", node, ErrNotFound)
	}
}

// current is table for a change of it: one of this epoch. While a node has acted on a later table than the ledger has,
// nothing is changed: the sequence would catch up, and what was lost would be forgotten.
func (s Snapshot) current(node string) (Versioned[SlotTable], error) {
	table, err := s.table(node)
	ack := s.Acks[node].Doc
	switch {
	case err != nil:
	case s.EpochID == "" || table.Doc.Epoch != s.EpochID:
		err = errUnheard
	case ack.Epoch == s.EpochID && ack.Sequence > table.Doc.Sequence:
		err = fmt.Errorf("%w: node %s has acted on slot table %d, and the ledger has %d", ErrSetBack, node, ack.Sequence, table.Doc.Sequence)
	}
	return table, err
}

// errUnheard says why nothing is known for sure of a node's slots.
var errUnheard = errors.New("it has not said yet what it remembers of its slots, which each new leader asks first")

// settled is current for a change that rests on the slots being what the node knows: it has answered in this epoch.
func (s Snapshot) settled(node string) (Versioned[SlotTable], error) {
	table, err := s.current(node)
	if err == nil && table.Doc.Rebuild {
		err = errUnheard
	}
	return table, err
}

// reserved finds a gang that has a reservation.
func reserved(s Snapshot, gang string) (Versioned[Gang], error) {
	before, ok := s.Gangs[gang]
	switch {
	case !ok:
		return before, ErrNotFound
	case before.Doc.Reservation == nil:
		return before, errors.New("it has no reservation")
	}
	return before, nil
}

// nodesOf are the nodes of a gang's reservation, each once, in order.
func nodesOf(gang Gang) []string {
	nodes := map[string]bool{}
	for _, p := range gang.Reservation.Placements {
		nodes[p.Node] = true
	}
	return slices.Sorted(maps.Keys(nodes))
}

// refusing makes the errors of one builder.
func refusing(doing, gang string) func(format string, args ...any) error {
	return func(format string, args ...any) error {
		return fmt.Errorf("%s gang %s: %w", doing, gang, fmt.Errorf(format, args...))
	}
}
