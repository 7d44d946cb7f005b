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
