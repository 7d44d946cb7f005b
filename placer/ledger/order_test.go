// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func preemption(gang string) Order {
	return Order{Gang: gang, Kind: OrderPreempt, By: "alice", At: epochTime}
}

// TestOrder_CarriedOutInTheChange: the order goes with the change that it leads to, and whoever waits for it is told.
func TestOrder_CarriedOutInTheChange(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		ctx := t.Context()
		lease := cluster(t, l, 2, "n1")
		grant(t, l, lease, asked("a", 1, 2), "r1", "n1")
		o, err := l.PutOrder(ctx, preemption("a"))
		must.NoError(t, err)
		s := load(t, l)
		must.Eq(t, o, s.Orders["a"])

		answers := make(chan *Answer, 1)
		go func() {
			answer, err := l.AwaitOrder(ctx, o)
			if err != nil {
				answer = &Answer{Text: err.Error()}
			}
			answers <- answer
		}()
		change, err := BuildClose(s, closing(s.Gangs["a"].Doc), "preempted")
		must.NoError(t, err)
		change.Order = &o
		commit(t, l, lease, change)
		must.Nil(t, <-answers)
		must.MapEmpty(t, load(t, l).Orders)
		must.EqOp(t, GangClosing, load(t, l).Gangs["a"].Doc.State)
	})
}

// TestOrder_WithdrawnInTime: an order that was taken back is never carried out, and one that was carried out can't be
// taken back.
func TestOrder_WithdrawnInTime(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		ctx := t.Context()
		lease := cluster(t, l, 2, "n1")
		grant(t, l, lease, asked("a", 1, 2), "r1", "n1")
		o, err := l.PutOrder(ctx, preemption("a"))
		must.NoError(t, err)
		s := load(t, l)
		withdrawn, err := l.WithdrawOrder(ctx, o)
		must.NoError(t, err)
		must.True(t, withdrawn)
		change, err := BuildClose(s, closing(s.Gangs["a"].Doc), "preempted")
		must.NoError(t, err)
		change.Order = &o
		_, err = l.Commit(ctx, lease, change)
		must.ErrorIs(t, err, ErrConflict)
		must.EqOp(t, GangReserved, load(t, l).Gangs["a"].Doc.State)

		o, err = l.PutOrder(ctx, preemption("a"))
		must.NoError(t, err)
		must.NoError(t, l.DeleteOrder(ctx, lease, o))
		withdrawn, err = l.WithdrawOrder(ctx, o)
		must.NoError(t, err)
		must.False(t, withdrawn)
	})
}

// TestOrder_OneAtATime: a second order for a gang is refused while one is pending; an answered one makes room.
func TestOrder_OneAtATime(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		ctx := t.Context()
		lease := lead(t, l, "leader")
		first, err := l.PutOrder(ctx, preemption("a"))
		must.NoError(t, err)
		_, err = l.PutOrder(ctx, Order{Gang: "a", Kind: OrderSet, By: "bob", At: epochTime})
		var pending *OrderPendingError
		must.True(t, errors.As(err, &pending))
		must.EqOp(t, "alice", pending.Order.By)
		must.EqOp(t, "an order to preempt gang a, given by alice at "+epochTime.Format(time.RFC3339)+", is still pending; is a placer leading?", err.Error())

		answered := first
		answered.Doc.Answer = &Answer{Text: "there is no gang a", At: epochTime}
		must.NoError(t, l.AnswerOrder(ctx, lease, answered))
		answer, err := l.AwaitOrder(ctx, first)
		must.NoError(t, err)
		must.EqOp(t, "there is no gang a", answer.Text)

		second, err := l.PutOrder(ctx, Order{Gang: "a", Kind: OrderSet, By: "bob", At: epochTime})
		must.NoError(t, err)
		must.NotEq(t, first.Doc.ID, second.Doc.ID)
		must.ErrorIs(t, l.AnswerOrder(ctx, lease, answered), ErrConflict, must.Sprint("an answer to an order that is gone"))
		gone, err := l.AwaitOrder(ctx, first)
		must.NoError(t, err)
		must.Nil(t, gone, must.Sprint("another order is there now"))
	})
}

// TestOrder_NobodyAnswers: waiting ends with the context.
func TestOrder_NobodyAnswers(t *testing.T) {
	l := New(NewMemory(), "global")
	o, err := l.PutOrder(t.Context(), preemption("a"))
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = l.AwaitOrder(ctx, o)
	must.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestOrder_LostAnswer: an order whose acknowledgement from the store was lost is written once.
func TestOrder_LostAnswer(t *testing.T) {
	store := NewMemory()
	l := New(store, "global")
	lost := false
	store.Inject(func(call Call) Fault {
		if call.Method != "Txn" || lost {
			return None
		}
		lost = true
		return Lose
	})
	o, err := l.PutOrder(t.Context(), preemption("a"))
	must.NoError(t, err)
	must.True(t, lost)
	must.Eq(t, o, load(t, l).Orders["a"])
}

// TestOrder_FullTransaction: where a gang's nodes leave no room for the order in the transaction, it stays for the leader
// to see that it was carried out.
func TestOrder_FullTransaction(t *testing.T) {
	l := New(NewMemory(), "global")
	lease, s, gang, slots := wide(t, l, MaxNodes)
	granted, err := BuildGrant(s, gang, slots)
	must.NoError(t, err)
	commit(t, l, lease, granted)
	o, err := l.PutOrder(t.Context(), preemption(gang.Name))
	must.NoError(t, err)
	s = load(t, l)
	change, err := BuildClose(s, closing(s.Gangs[gang.Name].Doc), "preempted")
	must.NoError(t, err)
	change.Order = &o
	commit(t, l, lease, change)
	s = load(t, l)
	must.EqOp(t, GangClosing, s.Gangs[gang.Name].Doc.State)
	must.MapContainsKey(t, s.Orders, gang.Name)
}

// TestVouched: slots that a person vouches for go with their claims, held or left behind, and nobody else's do.
func TestVouched(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		ctx := t.Context()
		lease := cluster(t, l, 8, "n1", "n2")
		gang := grant(t, l, lease, asked("a", 2, 4), "r1", "n1", "n2")
		grant(t, l, lease, asked("b", 1, 4), "r2", "n1")
		for node, c := range map[string]Claim{"n1": claimOf("r1", 0, "a0"), "n2": claimOf("r1", 1, "a1")} {
			must.NoError(t, must1(l.Claim(ctx, node, c, anyone)))
		}
		must.NoError(t, must1(l.Claim(ctx, "n1", claimOf("r2", 0, "b0"), anyone)))
		closeGang(t, l, lease, "a", "test")
		must.EqOp(t, "claimed by allocation a0", load(t, l).Keeps("n1", load(t, l).Tables["n1"].Doc.Slots[0]))

		change, err := BuildRelease(load(t, l), waiting(gang), Release{Vouched: true, LeftBehind: map[string]bool{"n2": true}})
		must.NoError(t, err)
		commit(t, l, lease, change)
		s := load(t, l)
		must.Eq(t, []string{"r2.0 open"}, sortedSlots(s.Tables["n1"].Doc))
		must.MapLen(t, 1, s.Claims["n1"])
		must.EqOp(t, "", s.Withheld("n1"))

		table, due, err := BuildSweep(s, "n2", "r1")
		must.NoError(t, err)
		must.True(t, due)
		must.NoError(t, must1(l.CommitTable(ctx, lease, "n2", table, s.ClaimsOn("n2", "r1")...)))
		s = load(t, l)
		must.SliceEmpty(t, s.Tables["n2"].Doc.Slots)
		must.MapEmpty(t, s.Claims["n2"])
		must.Len(t, 8, s.FreeGPUs("n2"))
	})
}

// TestVouched_UnheardNode: a node that has not answered a new leader is no hindrance to a person's word. It gets nothing, and
// what it remembers when it answers comes back closing, not open.
func TestVouched_UnheardNode(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		ctx := t.Context()
		lease := cluster(t, l, 8, "n1", "n2")
		gang := grant(t, l, lease, asked("a", 2, 4), "r1", "n1", "n2")
		remembered := load(t, l).Tables["n2"].Doc
		must.NoError(t, must1(l.Claim(ctx, "n2", claimOf("r1", 1, "a1"), anyone)))
		closeGang(t, l, lease, "a", "test")
		left := Release{LeftBehind: map[string]bool{"n2": true}}
		acknowledge(t, l, "n1")
		change, err := BuildRelease(load(t, l), waiting(gang), left)
		must.NoError(t, err)

		anew(t, l, lease, "n1", "n2")
		vouched, err := BuildRelease(load(t, l), waiting(gang), Release{Vouched: true})
		must.NoError(t, err)
		must.MapLen(t, 2, vouched.Tables)
		_, err = l.Commit(ctx, lease, change)
		must.ErrorIs(t, err, ErrConflict)
		commit(t, l, lease, vouched)
		s := load(t, l)
		must.SliceEmpty(t, s.Tables["n2"].Doc.Slots)
		must.MapEmpty(t, s.Claims["n2"])
		must.Eq(t, []string{"r1"}, s.Tables["n2"].Doc.Vouched)
		must.SliceEmpty(t, s.FreeGPUs("n2"))

		anew(t, l, lease, "n1", "n2") // another leader asks before the node has answered
		asked := load(t, l).Tables["n2"].Doc
		must.Eq(t, []string{"r1"}, asked.Vouched)
		ack := Ack{
			Version: Version, Epoch: asked.Epoch, Sequence: asked.Sequence, BootID: remembered.Slots[0].BootID,
			Remembered: &Remembered{Asked: asked.Sequence, Table: remembered},
		}
		must.NoError(t, l.PublishAck(ctx, "n2", ack))
		restored, due := BuildRestore(load(t, l), "n2")
		must.True(t, due)
		must.Eq(t, []string{"r1.1 closing"}, sortedSlots(restored.Doc))
		must.SliceEmpty(t, restored.Doc.Vouched)
	})
}

// TestVouched_SweepOfAnUnheardNode: the same for slots that were left behind.
func TestVouched_SweepOfAnUnheardNode(t *testing.T) {
	l := New(NewMemory(), "global")
	lease := cluster(t, l, 8, "n1", "n2")
	gang := grant(t, l, lease, asked("a", 2, 4), "r1", "n1", "n2")
	closeGang(t, l, lease, "a", "test")
	acknowledge(t, l, "n1")
	change, err := BuildRelease(load(t, l), waiting(gang), Release{LeftBehind: map[string]bool{"n2": true}})
	must.NoError(t, err)
	commit(t, l, lease, change)
	anew(t, l, lease, "n1", "n2")
	_, _, err = BuildSweep(load(t, l), "n2", "")
	must.ErrorIs(t, err, errUnheard)
	table, due, err := BuildSweep(load(t, l), "n2", "r1")
	must.NoError(t, err)
	must.True(t, due)
	must.SliceEmpty(t, table.Doc.Slots)
	must.True(t, table.Doc.Rebuild)
	must.Eq(t, []string{"r1"}, table.Doc.Vouched)
}

// anew is a new epoch, in which nodes are asked and have not answered.
func anew(t *testing.T, l *Ledger, lease Lease, nodes ...string) {
	t.Helper()
	must.NoError(t, must1(l.NewEpoch(t.Context(), lease)))
	for _, node := range nodes {
		asking, due := BuildAsk(load(t, l), node)
		must.True(t, due)
		must.NoError(t, must1(l.CommitTable(t.Context(), lease, node, asking)))
	}
}

// TestVouched_TooManyClaims: a gang of more tables and claims than one transaction holds loses its claims first, its slots
// staying closing, while it and the order are as they were.
func TestVouched_TooManyClaims(t *testing.T) {
	ctx := t.Context()
	l := New(NewMemory(), "global")
	lease, s, gang, slots := wide(t, l, MaxNodes)
	granted, err := BuildGrant(s, gang, slots)
	must.NoError(t, err)
	commit(t, l, lease, granted)
	for node, list := range slots {
		claim := claimOf(list[0].Reservation, list[0].Rank, "alloc")
		claim.BootID = list[0].BootID
		must.NoError(t, must1(l.Claim(ctx, node, claim, anyone)))
	}
	closeGang(t, l, lease, gang.Name, "test")
	o, err := l.PutOrder(ctx, Order{Gang: gang.Name, Kind: OrderRelease, Reservation: gang.Reservation.ID})
	must.NoError(t, err)
	released := gang
	released.State, released.Reservation = GangWaiting, nil
	build := func() Change {
		change, err := BuildRelease(load(t, l), released, Release{Vouched: true})
		must.NoError(t, err)
		return change
	}
	_, err = l.Commit(ctx, lease, build())
	must.ErrorIs(t, err, ErrTooLarge)
	stale := load(t, l).Gangs[gang.Name]
	stale.Index--
	must.ErrorIs(t, l.EndClaims(ctx, lease, stale, o, build().Surplus()), ErrConflict)
	for _, left := range []int{2, 0} {
		change := build()
		must.NoError(t, l.EndClaims(ctx, lease, load(t, l).Gangs[gang.Name], o, change.Surplus()))
		must.Len(t, left, build().Claims)
	}
	must.SliceEmpty(t, build().Surplus())
	commit(t, l, lease, build())
	s = load(t, l)
	must.MapEmpty(t, s.Claims)
	must.EqOp(t, GangWaiting, s.Gangs[gang.Name].Doc.State)
}

// TestKeeps: the node's own words say more than the ledger.
func TestKeeps(t *testing.T) {
	l := New(NewMemory(), "global")
	lease := cluster(t, l, 8, "n1")
	grant(t, l, lease, asked("a", 1, 4), "r1", "n1")
	closeGang(t, l, lease, "a", "test")
	slot := load(t, l).Tables["n1"].Doc.Slots[0]
	ack := Ack{Version: Version, Sequence: slot.Closing, BootID: slot.BootID, Busy: map[string]string{"r1.0": "process 4711 (python) uses GPU 0"}}
	must.NoError(t, l.PublishAck(t.Context(), "n1", ack))
	must.EqOp(t, "process 4711 (python) uses GPU 0", load(t, l).Keeps("n1", slot))
	acknowledge(t, l, "n1")
	must.EqOp(t, "", load(t, l).Keeps("n1", slot))
}
