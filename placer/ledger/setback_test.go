// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// snapshotter saves a store and puts it back.
func snapshotter(t *testing.T, store Store) (restore func()) {
	t.Helper()
	switch store := store.(type) {
	case *Memory:
		saved := store.Save()
		return func() { store.SetBack(saved) }
	case *Consul:
		stream, _, err := store.client.Snapshot().Save(nil)
		must.NoError(t, err)
		defer stream.Close()
		saved, err := io.ReadAll(stream)
		must.NoError(t, err)
		return func() { must.NoError(t, store.client.Snapshot().Restore(nil, bytes.NewReader(saved))) }
	}
	t.Fatalf("no snapshots of %T", store)
	return nil
}

// TestSetBack restores a snapshot in which GPUs belong to a gang that has long gone, while another runs on them. Those who
// watch see it; the next leader decides nothing about the node until it has answered, and then has what the node remembers.
func TestSetBack(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1", "n2")
		first := grant(t, l, lease, asked("a", 1, 8), "r1", "n1")
		closeGang(t, l, lease, "a", "test")
		acknowledge(t, l, "n1")
		restore := snapshotter(t, l.Store())

		s := load(t, l)
		change, err := BuildRelease(s, waiting(first), Release{})
		must.NoError(t, err)
		commit(t, l, lease, change)
		second := grant(t, l, lease, asked("b", 1, 8), "r2", "n1")
		acknowledge(t, l, "n1")
		before := load(t, l)
		remembered := Remembered{Table: before.Tables["n1"].Doc}

		seen := make(chan Snapshot, 1)
		go func() {
			s, err := l.Follow(t.Context(), before.Index, time.Minute)
			if err != nil {
				t.Error(err)
			}
			seen <- s
		}()
		restore()
		next := <-seen
		must.True(t, next.SetBackFrom(before))
		must.False(t, before.SetBackFrom(next))

		_, err = l.NewEpoch(t.Context(), lease)
		must.NoError(t, err)
		s = load(t, l)
		must.SliceEmpty(t, s.FreeGPUs("n1"))
		must.EqOp(t, errUnheard.Error(), s.Withheld("n1"))
		_, err = BuildRelease(s, waiting(first), Release{})
		must.ErrorContains(t, err, "not clear yet")
		_, err = BuildClose(s, closing(first), "test")
		must.ErrorIs(t, err, errUnheard)

		ask(t, l, lease, "n1")
		_, err = BuildForget(load(t, l), waiting(first), false)
		must.ErrorIs(t, err, errUnheard)
		answer(t, l, "n1", remembered, "boot 1")
		must.True(t, load(t, l).Contradicted("n1"))
		restoreTable(t, l, lease, "n1")
		s = load(t, l)
		must.Eq(t, []string{"r2.0 open"}, sortedSlots(s.Tables["n1"].Doc))
		must.Less(t, s.Tables["n1"].Doc.Sequence, before.Tables["n1"].Doc.Sequence)

		change, err = BuildForget(s, waiting(first), false)
		must.NoError(t, err)
		commit(t, l, lease, change)
		change, err = BuildAdopt(load(t, l), second)
		must.NoError(t, err)
		commit(t, l, lease, change)
		s = load(t, l)
		must.MapEmpty(t, s.Orphans())
		must.Eq(t, second, s.Gangs["b"].Doc)
		must.EqOp(t, "", s.Withheld("n1"))
		must.SliceEmpty(t, s.FreeGPUs("n1"))
	})
}

// TestLost deletes the whole ledger. Nothing is granted before there is a new epoch, and then only on nodes that have
// answered; what they remember comes back.
func TestLost(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1", "n2")
		lost := grant(t, l, lease, asked("a", 1, 8), "r1", "n1")
		acknowledge(t, l, "n1")
		before := load(t, l)
		held(t, l.Store(), Op{Verb: DeleteTree, Key: l.Keys().Root()})
		must.True(t, load(t, l).SetBackFrom(before))
		_, err := l.WatchTable(t.Context(), "n1", 0, 0)
		must.ErrorIs(t, err, ErrNotFound, must.Sprint("unknown, not revoked"))
		_, err = l.NewEpoch(t.Context(), lease)
		must.ErrorIs(t, err, ErrNotLeader, must.Sprint("the lock is lost, too"))

		lease = lead(t, l, "next")
		for _, node := range []string{"n1", "n2"} {
			id, err := l.Store().CreateSession(t.Context(), NodeSession(node))
			must.NoError(t, err)
			must.NoError(t, l.PublishNode(t.Context(), id, inventory(node, 8)))
		}
		s := load(t, l)
		gang, slots := placed(s, asked("b", 1, 8), "r2", []string{"n2"}, [][]string{uuids(s.Nodes["n2"].Doc)})
		_, err = BuildGrant(s, gang, slots)
		must.EqError(t, err, "granting gang b: the ledger has no epoch: it is new or was lost")
		_, err = l.NewEpoch(t.Context(), lease)
		must.NoError(t, err)
		hear(t, l, lease, "n1", Remembered{Table: before.Tables["n1"].Doc}, "boot 1")
		s = load(t, l)
		must.True(t, s.Unheard("n2"))
		_, err = BuildGrant(s, gang, slots)
		must.EqError(t, err, "granting gang b: the slot table of node n2: not in the ledger")
		hear(t, l, lease, "n2", Remembered{Table: before.Tables["n2"].Doc}, "boot 1")
		must.SliceEmpty(t, load(t, l).FreeGPUs("n1"))
		change, err := BuildAdopt(load(t, l), lost)
		must.NoError(t, err)
		commit(t, l, lease, change)
		_, err = BuildGrant(load(t, l), gang, slots)
		must.NoError(t, err)
	})
}

func uuids(n Node) []string {
	var list []string
	for _, g := range n.Machine.GPUs {
		list = append(list, g.UUID)
	}
	return list
}
