// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"fmt"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

func table(sequence uint64, slots ...ledger.Slot) ledger.SlotTable {
	return ledger.SlotTable{Version: ledger.Version, Sequence: sequence, Slots: slots}
}

// of puts a table into an epoch.
func of(epoch string, t ledger.SlotTable) ledger.SlotTable {
	t.Epoch = epoch
	return t
}

// asking makes a table the placer's question.
func asking(t ledger.SlotTable) ledger.SlotTable {
	t.Rebuild = true
	return t
}

func TestTakeTable(t *testing.T) {
	held := slot("r1", 0, 0)
	const wentBack, otherTime = "the ledger was set back (its table is at %d, this node's at 7)", "the ledger was set back (its table is of another time than this node's)"
	const inOrder = "the ledger has other slots than this node, and the placer is putting it in order"
	cases := map[string]struct {
		asked   *ledger.Lineage
		next    ledger.SlotTable
		want    uint64 // sequence of the table afterwards
		answers bool
		setBack string
	}{
		"a later one":                      {next: of("e1", table(8)), want: 8},
		"the same one":                     {next: of("e1", table(7, held)), want: 7},
		"an earlier one":                   {next: of("e1", table(5)), want: 7, setBack: fmt.Sprintf(wentBack, 5)},
		"another one of the same sequence": {next: of("e1", table(7)), want: 7, setBack: fmt.Sprintf(wentBack, 7)},
		"of another ledger":                {next: of("e2", table(9)), want: 7, setBack: otherTime},
		"a question":                       {next: asking(of("e2", table(9, held))), want: 7, answers: true},
		"a question about other slots":     {next: asking(of("e2", table(3))), want: 7, answers: true, setBack: inOrder},
		"what follows from the answer":     {asked: &ledger.Lineage{Epoch: "e2", Sequence: 3}, next: of("e2", table(8)), want: 8},
		"a table from before the question": {asked: &ledger.Lineage{Epoch: "e2", Sequence: 3}, next: of("e2", table(2)), want: 7, answers: true, setBack: otherTime},
		"of a third ledger":                {asked: &ledger.Lineage{Epoch: "e2", Sequence: 3}, next: of("e3", table(9)), want: 7, answers: true, setBack: otherTime},
		"the next question": {
			asked: &ledger.Lineage{Epoch: "e2", Sequence: 3}, next: asking(of("e3", table(4, held))), want: 7, answers: true,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(2, held)
			w.table.Epoch, w.asked = "e1", c.asked
			w.takeTable(c.next)
			must.Eq(t, c.want, w.table.Sequence)
			must.Eq(t, c.setBack, w.setBack)
			ack := w.ack()
			must.Eq(t, c.answers, ack.Remembered != nil)
			if c.answers {
				must.Eq(t, w.table, ack.Remembered.Table)
				must.Eq(t, ack.Sequence, ack.Remembered.Asked)
				must.Eq(t, w.asked.Epoch, ack.Epoch)
			} else {
				must.Eq(t, w.table.Epoch, ack.Epoch)
			}
		})
	}
}

// TestForgetfulNode: a plugin that has lost its state takes what the ledger has.
func TestForgetfulNode(t *testing.T) {
	w := settledWorld(2)
	w.table = ledger.SlotTable{}
	w.takeTable(asking(of("e2", table(9, slot("r1", 0, 0)))))
	must.Eq(t, "", w.setBack)
	must.Eq(t, 0, w.ack().Remembered.Table.Sequence)
	w.takeTable(of("e2", table(10, slot("r1", 0, 0))))
	must.Eq(t, 10, w.table.Sequence)
	must.Nil(t, w.ack().Remembered)
}

// TestQuestionWithdrawsNothing: a change of the leader must not disturb a gang that Nomad is about to place.
func TestQuestionWithdrawsNothing(t *testing.T) {
	s := slot("r1", 0, 0)
	w := settledWorld(2, s)
	w.takeTable(asking(of("e2", table(8, s))))
	w.settle()
	must.Eq(t, []string{"muster/gang/train.0"}, names(w.groups()))
	w.takeTable(asking(of("e2", table(8))))
	w.settle()
	must.SliceEmpty(t, names(w.groups()), must.Sprint("the ledger does not have it"))
	w.claims = claims(claimOn(s, "driver", "a1"))
	must.Eq(t, []string{"muster/gang/train.0"}, names(w.groups()), must.Sprint("a claimed slot stays"))
}

// TestRememberedClaims: the answer has all claims in force, and those that the ledger loses stay until their tasks are over.
func TestRememberedClaims(t *testing.T) {
	s := slot("r1", 0, 0)
	idle := map[string][]gpu.Process{uuid(0): nil}
	running := allocation{id: "a1", instanceIDs: map[string][]string{"train": instanceIDs(s)}}
	ended := running
	ended.ended = true
	cases := map[string]struct {
		seen  evidence
		holds bool
	}{
		"its task is over":      {seen: evidence{processes: idle, allocs: []allocation{ended}}},
		"nobody knows it":       {seen: evidence{processes: idle}},
		"a process":             {seen: evidence{processes: map[string][]gpu.Process{uuid(0): {{PID: 7}}}}, holds: true},
		"an allocation":         {seen: evidence{processes: idle, allocs: []allocation{running}}, holds: true},
		"Nomad does not answer": {seen: evidence{processes: idle, allocsErr: errors.New("down")}, holds: true},
		"NVML does not answer":  {seen: evidence{allocs: []allocation{ended}}, holds: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(2, s)
			claim := claimOn(s, "driver", "a1")
			w.claims = claims(claim)
			w.takeTable(asking(of("e2", table(3))))
			w.takeClaims(claims(), false)
			w.settle()
			must.True(t, w.claimed(s.ID()))
			must.Eq(t, []ledger.Claim{claim}, w.ack().Remembered.Claims)
			w.takeTable(of("e2", table(9, s)))
			w.takeClaims(claims(), false)
			w.settle()
			must.True(t, w.claimed(s.ID()))
			w.endUnlisted(c.seen)
			must.Eq(t, c.holds, w.claimed(s.ID()))
			w.takeClaims(claims(claim), false)
			must.MapEmpty(t, w.unlisted, must.Sprint("it is listed again"))
		})
	}
}

// TestOldClaimGivesWay: a ledger that was set back has the claim of an earlier allocation on a slot that another one has
// now. It ends although the GPUs are in use.
func TestOldClaimGivesWay(t *testing.T) {
	s := slot("r1", 0, 0)
	w := settledWorld(2, s)
	w.claims = claims(claimOn(s, "driver", "a2"))
	w.takeTable(asking(of("e2", table(3, s))))
	old := claims(claimOn(s, "driver", "a1"))
	w.takeClaims(old, false)
	seen := evidence{
		processes: map[string][]gpu.Process{uuid(0): {{PID: 7}}}, claims: old,
		allocs: []allocation{{id: "a1", ended: true}, {id: "a2", instanceIDs: map[string][]string{"train": instanceIDs(s)}}},
	}
	must.Eq(t, []ledger.SlotID{s.ID()}, w.finished(seen))
	w.endUnlisted(seen)
	must.Eq(t, "a2", w.unlisted[s.ID()].Allocation)
}

// TestNeverFooled holds for any ledger whatever it answers: within one epoch the node's table never goes back, it changes
// its epoch only after an answer, and claims are not forgotten while the ledger is in doubt.
func TestNeverFooled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := settledWorld(2)
		s := slot("r1", 0, 0)
		epoch := rapid.SampledFrom([]string{"", "e1", "e2"})
		for range rapid.IntRange(1, 20).Draw(t, "answers") {
			before := w
			switch rapid.SampledFrom([]string{"table", "question", "none", "claim", "no claim"}).Draw(t, "answer") {
			case "table":
				w.takeTable(of(epoch.Draw(t, "epoch"), table(rapid.Uint64Range(1, 12).Draw(t, "sequence"), s)))
			case "question":
				w.takeTable(asking(of(epoch.Draw(t, "epoch"), table(rapid.Uint64Range(1, 12).Draw(t, "sequence")))))
			case "none":
				w.loseTable()
			case "claim":
				w.takeClaims(claims(claimOn(s, "driver", "a1")), false)
			case "no claim":
				w.takeClaims(claims(), false)
				if (w.setBack != "" || w.asked != nil) && before.claimed(s.ID()) && !w.claimed(s.ID()) {
					t.Fatal("a claim was forgotten by a ledger in doubt")
				}
			}
			same := w.table.Epoch == before.table.Epoch
			answered := before.asked != nil && w.table.Epoch == before.asked.Epoch && w.table.Sequence > before.asked.Sequence
			if same && w.table.Sequence < before.table.Sequence && !answered {
				t.Fatalf("went back from %d to %d", before.table.Sequence, w.table.Sequence)
			}
			if !same && !answered {
				t.Fatalf("took a table of epoch %q without having been asked in it", w.table.Epoch)
			}
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
