// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

func table(sequence uint64, slots ...ledger.Slot) ledger.SlotTable {
	return ledger.SlotTable{Version: ledger.Version, Sequence: sequence, Slots: slots}
}

func TestTakeTable(t *testing.T) {
	held := slot("r1", 0, 0)
	cases := map[string]struct {
		next    ledger.SlotTable
		want    uint64 // sequence of the table afterwards
		setBack string
	}{
		"a later one":    {next: table(8), want: 8},
		"the same one":   {next: table(7, held), want: 7},
		"an earlier one": {next: table(5), want: 7, setBack: "the ledger was set back (its table is at 5, this node's at 7)"},
		"another one of the same sequence": {
			next: table(7), want: 7, setBack: "the ledger was set back (its table is at 7, this node's at 7)",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(2, held)
			w.takeTable(c.next)
			must.Eq(t, c.want, w.table.Sequence)
			must.Eq(t, c.setBack, w.setBack)
		})
	}
}

// TestAgree holds on to what is known beyond a ledger that was set back for as long as anything uses it.
func TestAgree(t *testing.T) {
	s := slot("r1", 0, 0)
	idle := map[string][]gpu.Process{uuid(0): nil}
	running := allocation{id: "a1", instanceIDs: map[string][]string{"train": instanceIDs(s)}}
	ended := running
	ended.ended = true
	claimed := claims(claimOn(s, "driver", "a1"))
	cases := map[string]struct {
		seen  evidence
		holds bool
	}{
		"nothing is in use":          {seen: evidence{processes: idle, allocs: []allocation{ended}}},
		"a process":                  {seen: evidence{processes: map[string][]gpu.Process{uuid(0): {{PID: 7}}}}, holds: true},
		"an allocation":              {seen: evidence{processes: idle, allocs: []allocation{running}}, holds: true},
		"a claim in the ledger":      {seen: evidence{processes: idle, claims: claimed}, holds: true},
		"Nomad does not answer":      {seen: evidence{processes: idle, allocsErr: errors.New("down")}, holds: true},
		"the ledger does not answer": {seen: evidence{processes: idle, claimsErr: errors.New("down"), claims: claimed}, holds: true},
		"NVML does not answer":       {seen: evidence{}, holds: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(2, s)
			w.claims = claimed
			w.takeTable(table(5))
			w.agree(c.seen)
			must.Eq(t, c.holds, w.setBack != "")
			must.Eq(t, c.holds, w.claimed(s.ID()))
			must.Eq(t, c.holds, w.table.Sequence == 7)
		})
	}
}

// TestSequenceNeverGoesBack holds for one ledger whatever it answers, and claims are not forgotten while it is behind.
func TestSequenceNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := settledWorld(2)
		s := slot("r1", 0, 0)
		last := w.table.Sequence
		for range rapid.IntRange(1, 20).Draw(t, "answers") {
			switch rapid.SampledFrom([]string{"table", "none", "claim", "no claim"}).Draw(t, "answer") {
			case "table":
				w.takeTable(table(rapid.Uint64Range(1, 12).Draw(t, "sequence"), s))
			case "none":
				w.loseTable()
			case "claim":
				w.takeClaims(claims(claimOn(s, "driver", "a1")), false)
			case "no claim":
				before := len(w.claims)
				w.takeClaims(claims(), false)
				if w.setBack != "" && len(w.claims) < before {
					t.Fatal("a claim was forgotten by a ledger that was set back")
				}
			}
			if w.table.Sequence < last {
				t.Fatalf("went back from %d to %d", last, w.table.Sequence)
			}
			last = w.table.Sequence
		}
	})
}

func TestLoseTableIsNoRevocation(t *testing.T) {
	fresh := world{}
	fresh.loseTable()
	must.Eq(t, "", fresh.setBack, must.Sprint("a new node has no table yet"))

	s := slot("r1", 0, 0)
	w := settledWorld(2, s)
	w.claims = claims(claimOn(s, "driver", "a1"))
	w.loseTable()
	w.takeClaims(claims(), false)
	w.settle()
	must.Eq(t, []string{"muster/gang/train.0"}, names(w.groups()))
	w.takeTable(table(8))
	must.Eq(t, "", w.setBack)
	w.takeClaims(claims(), false)
	must.SliceEmpty(t, w.groups())
}

func TestGangFacts(t *testing.T) {
	gang := ledger.Gang{Name: "train", Reservation: &ledger.Grant{ID: "r1", MasterPort: 29400, Placements: []ledger.Placement{
		{Node: "gpu-2", Address: "10.0.0.2", Group: "worker", Rank: 1, Members: 2, GPUs: 4},
		{Node: "gpu-1", Address: "10.0.0.1", Group: "launcher", Rank: 0, Members: 1, GPUs: 1},
	}}}
	facts, ok := gangFactsOf(gang, "r1")
	must.True(t, ok)
	must.Eq(t, `10.0.0.1 slots=1 # node=gpu-1 rank=0 group=launcher
10.0.0.2 slots=4 # node=gpu-2 rank=1 group=worker
10.0.0.2 slots=4 # node=gpu-2 rank=2 group=worker
`, facts.hostLines())
	address, err := facts.master()
	must.NoError(t, err)
	must.Eq(t, "10.0.0.1", address)

	_, ok = gangFactsOf(gang, "r2")
	must.False(t, ok)
	_, ok = gangFactsOf(ledger.Gang{}, "r1")
	must.False(t, ok)
	_, err = gangFacts{Gang: "train", Reservation: "r1"}.master()
	must.EqError(t, err, "the document of gang train names no address for rank 0 of reservation r1")
}
