// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"testing"

	"github.com/shoenig/test/must"
)

// TestLeftBehind releases a gang without waiting for one of its nodes. The slot there stays, taken and closing, until
// its node says that it is clear.
func TestLeftBehind(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1", "n2")
		gang := grant(t, l, lease, asked("a", 2, 8), "r1", "n1", "n2")
		_, err := l.Claim(t.Context(), "n2", claimOf("r1", 1, "alloc"), anyone)
		must.NoError(t, err)
		must.MapEmpty(t, load(t, l).Orphans())
		behind := Release{LeftBehind: map[string]bool{"n2": true}}
		_, err = BuildRelease(load(t, l), waiting(gang), behind)
		must.EqError(t, err, "releasing gang a: not clear yet: slot r1.0 on node n1: it is open; slot r1.1 on node n2: it is open")

		closeGang(t, l, lease, "a", "test")
		acknowledge(t, l, "n1")
		change, err := BuildRelease(load(t, l), waiting(gang), behind)
		must.NoError(t, err)
		commit(t, l, lease, change)
		s := load(t, l)
		must.Len(t, 8, s.FreeGPUs("n1"))
		must.SliceEmpty(t, s.FreeGPUs("n2"))
		must.Len(t, 1, s.Orphans()["n2"])
		grant(t, l, lease, asked("b", 1, 8), "r2", "n1")

		_, due, err := BuildSweep(load(t, l), "n2", "")
		must.NoError(t, err)
		must.False(t, due, must.Sprint("it is claimed"))
		must.NoError(t, l.Unclaim(t.Context(), "n2", SlotID{"r1", 1}, "alloc"))
		acknowledge(t, l, "n2")
		sweep(t, l, lease, "n2")
		s = load(t, l)
		must.MapEmpty(t, s.Orphans())
		must.Len(t, 8, s.FreeGPUs("n2"))
	})
}

// TestSweep closes what is open of an orphan before it takes it out, and touches nobody else's slot.
func TestSweep(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1")
		grant(t, l, lease, asked("a", 1, 2), "r1", "n1")
		grant(t, l, lease, asked("b", 1, 2), "r2", "n1")
		held(t, l.Store(), Op{Verb: Delete, Key: l.Keys().Gang("a")})
		sweep(t, l, lease, "n1")
		must.Eq(t, []string{"r1.0 closing", "r2.0 open"}, sortedSlots(load(t, l).Tables["n1"].Doc))
		must.EqOp(t, "no gang holds it", load(t, l).Tables["n1"].Doc.Slots[0].Why)
		acknowledge(t, l, "n1")
		sweep(t, l, lease, "n1")
		must.Eq(t, []string{"r2.0 open"}, sortedSlots(load(t, l).Tables["n1"].Doc))

		held(t, l.Store(), Op{Verb: Set, Key: l.Keys().Gang("b"), Value: []byte(`{"version":99}`)})
		must.MapEmpty(t, load(t, l).Orphans(), must.Sprint("a document that can't be read may hold it"))
		table, _, err := BuildSweep(load(t, l), "n1", "")
		must.NoError(t, err)
		must.NoError(t, l.Store().DestroySession(t.Context(), lease.Session))
		_, err = l.CommitTable(t.Context(), lease, "n1", table)
		must.ErrorIs(t, err, ErrNotLeader)
	})
}

// sweep does a sweep of a node that is due.
func sweep(t *testing.T, l *Ledger, lease Lease, node string) {
	t.Helper()
	table, due, err := BuildSweep(load(t, l), node, "")
	must.NoError(t, err)
	must.True(t, due)
	_, err = l.CommitTable(t.Context(), lease, node, table)
	must.NoError(t, err)
}
