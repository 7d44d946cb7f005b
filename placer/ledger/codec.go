// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
)

// document is a value that is stored under a key of its own.
type document interface{ version() int }

func (d Epoch) version() int     { return d.Version }
func (d Node) version() int      { return d.Version }
func (d Health) version() int    { return d.Version }
func (t SlotTable) version() int { return t.Version }
func (d Claim) version() int     { return d.Version }
func (d Ack) version() int       { return d.Version }
func (d Gang) version() int      { return d.Version }
func (d Refusal) version() int   { return d.Version }
func (d Order) version() int     { return d.Version }
func (d Queues) version() int    { return d.Version }
func (d Usage) version() int     { return d.Version }
func (d Run) version() int       { return d.Version }
func (d RunTime) version() int   { return d.Version }
func (d Member) version() int    { return d.Version }

// decode reads a document. One of another version, or that can't be read at all, is ErrNewerVersion: either way it says
// something that this build does not understand.
func decode[T document](entry Entry) (Versioned[T], error) {
	var doc T
	if err := unmarshal(entry.Value, &doc); err != nil {
		return Versioned[T]{}, fmt.Errorf("%s can't be read, so it is kept as it is: %w (%w)", entry.Key, ErrNewerVersion, err)
	}
	if v := doc.version(); v < 1 || v > Version {
		return Versioned[T]{}, fmt.Errorf("%s has version %d and this build knows %d, so it is kept as it is; upgrade Muster here: %w",
			entry.Key, v, Version, ErrNewerVersion)
	}
	return Versioned[T]{Doc: doc, Index: entry.Index}, nil
}

// unmarshal is json.Unmarshal without its checking the text of a table twice.
func unmarshal(text []byte, doc any) error {
	if table, ok := doc.(*SlotTable); ok {
		return table.UnmarshalJSON(text)
	}
	return json.Unmarshal(text, doc)
}

// encode writes a document. All documents are plain values, so that it can't fail.
func encode(doc document) []byte {
	var form any = doc
	if table, ok := doc.(SlotTable); ok {
		form = table.wire() // MarshalJSON would have its text checked again
	}
	value, err := json.Marshal(form)
	if err != nil {
		panic(fmt.Sprintf("ledger: encoding %T: %v", doc, err))
	}
	return value
}

// wireTable is a slot table as it is stored: the machine and boot that all slots have in common is said once, and names
// that equal the gang's are left out, so that a node of eight slots stays within MaxSlotTableBytes.
type wireTable struct {
	Version  int        `json:"version"`
	Epoch    string     `json:"epoch,omitempty"`
	Sequence uint64     `json:"seq"`
	Rebuild  bool       `json:"rebuild,omitempty"`
	Former   *Lineage   `json:"former,omitempty"`
	Vouched  []string   `json:"vouched,omitempty"`
	Boots    []wireBoot `json:"boots,omitempty"`
	Slots    []wireSlot `json:"slots"`
}

type wireBoot struct {
	MachineID string `json:"mach"`
	BootID    string `json:"boot"`
}

// wireSlot is a Slot whose fields Owner, MachineID and BootID are replaced.
type wireSlot struct {
	Slot
	Owner     wireOwner `json:"owner"`
	MachineID *string   `json:"mach,omitempty"` // never written
	Boot      int       `json:"boot,omitempty"` // position in Boots
}

// wireOwner is an Owner whose value and job are left out where they equal the gang's name.
type wireOwner struct {
	Gang        string  `json:"gang"`
	Value       *string `json:"value,omitempty"`
	Namespace   string  `json:"ns"`
	Job         *string `json:"job,omitempty"`
	CreateIndex uint64  `json:"create"`
	Group       string  `json:"group"`
	Task        string  `json:"task"`
}

// MarshalJSON writes the compact form of a table.
func (t SlotTable) MarshalJSON() ([]byte, error) { return json.Marshal(t.wire()) }

func (t SlotTable) wire() wireTable {
	wire := wireTable{
		Version: t.Version, Epoch: t.Epoch, Sequence: t.Sequence, Rebuild: t.Rebuild, Former: t.Former, Vouched: t.Vouched,
		Slots: make([]wireSlot, 0, len(t.Slots)),
	}
	for _, slot := range t.Slots {
		boot := wireBoot{MachineID: slot.MachineID, BootID: slot.BootID}
		at := slices.Index(wire.Boots, boot)
		if at < 0 {
			at = len(wire.Boots)
			wire.Boots = append(wire.Boots, boot)
		}
		o := slot.Owner
		owner := wireOwner{Gang: o.Gang, Namespace: o.Namespace, CreateIndex: o.CreateIndex, Group: o.Group, Task: o.Task}
		if o.Value != o.Gang {
			owner.Value = &o.Value
		}
		if o.Job != o.Gang {
			owner.Job = &o.Job
		}
		wire.Slots = append(wire.Slots, wireSlot{Slot: slot, Owner: owner, Boot: at})
	}
	return wire
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *SlotTable) UnmarshalJSON(data []byte) error {
	var wire wireTable
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	*t = SlotTable{Version: wire.Version, Epoch: wire.Epoch, Sequence: wire.Sequence, Rebuild: wire.Rebuild, Former: wire.Former, Vouched: wire.Vouched}
	for _, w := range wire.Slots {
		if w.Boot < 0 || w.Boot >= len(wire.Boots) {
			return fmt.Errorf("slot %s names boot %d of %d", w.ID(), w.Boot, len(wire.Boots))
		}
		slot := w.Slot
		slot.MachineID, slot.BootID = wire.Boots[w.Boot].MachineID, wire.Boots[w.Boot].BootID
		o := w.Owner
		slot.Owner = Owner{Gang: o.Gang, Value: o.Gang, Namespace: o.Namespace, Job: o.Gang, CreateIndex: o.CreateIndex, Group: o.Group, Task: o.Task}
		if o.Value != nil {
			slot.Owner.Value = *o.Value
		}
		if o.Job != nil {
			slot.Owner.Job = *o.Job
		}
		t.Slots = append(t.Slots, slot)
	}
	return nil
}
