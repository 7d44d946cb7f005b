// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"testing"

	"github.com/shoenig/test/must"
)

// TestRestore says what becomes of the slots that the ledger has and of those that a node remembers.
func TestRestore(t *testing.T) {
	slot := func(reservation string, i int, state SlotState) Slot {
		return Slot{Reservation: reservation, GPUs: []string{gpuName("n1", i)}, State: state, BootID: "boot 1"}
	}
	at := func(epoch string, sequence uint64, slots ...Slot) SlotTable {
		return SlotTable{Version: Version, Epoch: epoch, Sequence: sequence, Slots: slots}
	}
	r1, r1Closing, r2 := slot("r1", 0, SlotOpen), slot("r1", 0, SlotClosing), slot("r2", 0, SlotOpen)
	r3, r3Closing := slot("r3", 1, SlotOpen), slot("r3", 1, SlotClosing)
	cases := map[string]struct {
		ledger, node SlotTable
		boot         string
		clear        []string
		want         []string
		other        bool // the node contradicts the ledger
	}{
		"they agree":                       {at("e1", 7, r1), at("e1", 7, r1), "boot 1", nil, []string{"r1.0 open"}, false},
		"a new grant":                      {at("e1", 8, r1, r3), at("e1", 7, r1), "boot 1", nil, []string{"r1.0 open", "r3.0 open"}, false},
		"closing, and the node missed it":  {at("e1", 8, r1Closing), at("e1", 7, r1), "boot 1", nil, []string{"r1.0 closing"}, false},
		"released, and the node missed it": {at("e1", 8), at("e1", 7, r1Closing), "boot 1", []string{"r1.0"}, nil, false},
		"released and granted again":       {at("e1", 9, r2), at("e1", 7, r1Closing), "boot 1", []string{"r1.0"}, []string{"r2.0 open"}, false},
		"left behind":                      {at("e1", 9, r3), at("e1", 7, r1), "boot 1", nil, []string{"r1.0 open", "r3.0 open"}, false},
		"a node that remembers nothing":    {at("e1", 7, r1), SlotTable{}, "boot 1", nil, []string{"r1.0 open"}, false},
		"set back before a grant":          {at("e1", 5), at("e1", 7, r1), "boot 1", nil, []string{"r1.0 open"}, true},
		"set back before a closing":        {at("e1", 5, r1), at("e1", 7, r1Closing), "boot 1", nil, []string{"r1.0 closing"}, true},
		"set back before a release":        {at("e1", 5, r1), at("e1", 7, r2), "boot 1", nil, []string{"r2.0 open"}, true},
		"lost":                             {SlotTable{}, at("e1", 7, r1, r3Closing), "boot 1", []string{"r3.0"}, []string{"r1.0 open"}, true},
		"lost, and started anew":           {SlotTable{}, at("e1", 7, r1), "boot 2", nil, nil, true},
		"of another time":                  {at("e1", 9, r1, r3), at("e2", 3, r2), "boot 1", nil, []string{"r2.0 open"}, true},
		"one way and another from there":   {at("e1", 9, r2, r3), at("e1", 7, r1), "boot 1", nil, []string{"r1.0 open", "r3.0 open"}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := Snapshot{EpochID: "e9", Tables: map[string]Versioned[SlotTable]{}, Acks: map[string]Versioned[Ack]{}}
			if c.ledger.Sequence > 0 {
				s.Tables["n1"] = Versioned[SlotTable]{Doc: c.ledger, Index: 3}
			}
			asking, due := BuildAsk(s, "n1")
			must.True(t, due)
			must.EqOp(t, c.ledger.Sequence+1, asking.Doc.Sequence)
			s.Tables["n1"] = asking
			_, due = BuildAsk(s, "n1")
			must.False(t, due, must.Sprint("it is asked once"))
			_, due = BuildRestore(s, "n1")
			must.False(t, due, must.Sprint("it has not answered"))
			must.True(t, s.Unheard("n1"))

			s.Acks["n1"] = Versioned[Ack]{Doc: Ack{
				Epoch: "e9", Sequence: asking.Doc.Sequence, BootID: c.boot, Clear: c.clear,
				Remembered: &Remembered{Asked: asking.Doc.Sequence, Table: c.node},
			}}
			must.EqOp(t, c.other, s.Contradicted("n1"))
			restored, due := BuildRestore(s, "n1")
			must.True(t, due)
			must.Eq(t, c.want, sortedSlots(restored.Doc))
			must.EqOp(t, max(asking.Doc.Sequence, c.node.Sequence)+1, restored.Doc.Sequence)
			must.EqOp(t, asking.Index, restored.Index)
			for _, slot := range restored.Doc.Slots {
				must.EqOp(t, slot.State == SlotClosing, slot.Closing == restored.Doc.Sequence, must.Sprint("its word is to be new"))
			}
			s.Tables["n1"] = restored
			must.False(t, s.Unheard("n1"))
		})
	}
}

// TestAskAgain: a question that was not answered before the leader changed keeps where the table stood.
func TestAskAgain(t *testing.T) {
	s := Snapshot{EpochID: "e2", Tables: map[string]Versioned[SlotTable]{"n1": {Doc: SlotTable{Epoch: "e1", Sequence: 7}}}}
	s.Tables["n1"], _ = BuildAsk(s, "n1")
	s.EpochID = "e3"
	again, due := BuildAsk(s, "n1")
	must.True(t, due)
	must.Eq(t, SlotTable{Version: Version, Epoch: "e3", Sequence: 9, Rebuild: true, Former: &Lineage{Epoch: "e1", Sequence: 7}}, again.Doc)
}

// TestAdoptClosing: a reservation of which a slot closes is given back as closing, and all of it closes.
func TestAdoptClosing(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1", "n2")
		gang := grant(t, l, lease, asked("a", 2, 8), "r1", "n1", "n2")
		held(t, l.Store(), Op{Verb: Delete, Key: l.Keys().Gang("a")})
		sweep(t, l, lease, "n1")
		must.EqOp(t, SlotOpen, load(t, l).Tables["n2"].Doc.Slots[0].State)
		_, err := BuildAdopt(load(t, l), gang)
		must.EqError(t, err, "adopting gang a: rank 0: a new slot must be open")

		adopted := closing(gang)
		adopted.Why = &Reason{Code: "ledger", Text: "set back"}
		change, err := BuildAdopt(load(t, l), adopted)
		must.NoError(t, err)
		commit(t, l, lease, change)
		s := load(t, l)
		must.True(t, inOrder(s, s.Gangs["a"].Doc))
		must.MapEmpty(t, s.Orphans())
		must.EqOp(t, "set back", s.Tables["n2"].Doc.Slots[0].Why)
		must.EqOp(t, "no gang holds it", s.Tables["n1"].Doc.Slots[0].Why)
		acknowledge(t, l, "n1")
		acknowledge(t, l, "n2")
		change, err = BuildRelease(load(t, l), waiting(adopted), Release{})
		must.NoError(t, err)
		commit(t, l, lease, change)
	})
}

// TestForgetRefusals: only what is not whole is taken from a gang.
func TestForgetRefusals(t *testing.T) {
	l := New(NewMemory(), "global")
	lease := cluster(t, l, 8, "n1", "n2")
	gang := grant(t, l, lease, asked("a", 2, 8), "r1", "n1", "n2")
	_, err := BuildForget(load(t, l), waiting(gang), false)
	must.EqError(t, err, "forgetting the reservation of gang a: its reservation is whole")
	_, err = BuildAdopt(load(t, l), gang)
	must.EqError(t, err, "adopting gang a: it holds reservation r1")
	s := load(t, l)
	change(s.Tables, "n2", func(t *SlotTable) { t.Rebuild = true })
	_, err = BuildForget(s, waiting(gang), false)
	must.EqError(t, err, "forgetting the reservation of gang a: node n2: it has not said yet what it remembers of its slots, which each new leader asks first")
	s = load(t, l)
	change(s.Tables, "n2", func(t *SlotTable) { t.Slots = nil })
	_, err = BuildForget(s, gang, false)
	must.EqError(t, err, "forgetting the reservation of gang a: its new document must have no reservation")
	_, err = BuildForget(s, waiting(gang), false)
	must.NoError(t, err)
	delete(s.Gangs, "a")
	_, err = BuildAdopt(s, gang)
	must.EqError(t, err, "adopting gang a: group worker has 1 of 2 members")
}
