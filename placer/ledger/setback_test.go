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

// TestSetBack restores a snapshot in which GPUs belong to a gang that has long gone, while another runs on them: those
// who watch see it, and nothing is granted, closed or released on a node that remembers more than the ledger.
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
		remembered := load(t, l).Acks["n1"].Doc
		must.EqOp(t, 5, remembered.Sequence)

		now := load(t, l).Index
		seen := make(chan Snapshot, 1)
		go func() {
			s, err := l.Follow(t.Context(), now, 2*time.Second)
			if err != nil {
				t.Error(err)
			}
			seen <- s
		}()
		restore()
		must.Less(t, now, (<-seen).Index, must.Sprint("the index goes back"))

		must.NoError(t, l.PublishAck(t.Context(), "n1", remembered))
		s = load(t, l)
		must.SliceEmpty(t, s.FreeGPUs("n1"))
		must.EqOp(t, "the ledger was set back: node n1 has acted on slot table 5, and the ledger has 3", s.Withheld("n1"))
		_, err = BuildRelease(s, waiting(first), Release{})
		must.ErrorContains(t, err, "not clear yet")
		_, err = BuildClose(s, closing(first), "test")
		must.ErrorIs(t, err, ErrSetBack)
		gang, slots := placed(s, second, "r3", []string{"n1"}, [][]string{uuids(s.Nodes["n1"].Doc)})
		_, err = BuildGrant(s, gang, slots)
		must.Error(t, err)
		must.Len(t, 8, s.FreeGPUs("n2"), must.Sprint("other nodes go on"))
	})
}

func uuids(n Node) []string {
	var list []string
	for _, g := range n.Machine.GPUs {
		list = append(list, g.UUID)
	}
	return list
}

// TestLost deletes the whole ledger: nothing is granted before there is a new epoch, and nothing on nodes that remember
// slots even then.
func TestLost(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1", "n2")
		grant(t, l, lease, asked("a", 1, 8), "r1", "n1")
		acknowledge(t, l, "n1")
		before := load(t, l)
		remembered := before.Acks["n1"].Doc
		held(t, l.Store(), Op{Verb: DeleteTree, Key: l.Keys().Root()})
		_, err := l.WatchTable(t.Context(), "n1", 0, 0)
		must.ErrorIs(t, err, ErrNotFound, must.Sprint("unknown, not revoked"))
		must.ErrorIs(t, l.EnsureTable(t.Context(), lease, "n1"), ErrNotLeader, must.Sprint("the lock is lost, too"))

		lease = lead(t, l, "next")
		for _, node := range []string{"n1", "n2"} {
			join(t, l, lease, inventory(node, 8))
		}
		must.NoError(t, l.PublishAck(t.Context(), "n1", remembered))
		s := load(t, l)
		must.EqOp(t, "", s.EpochID)
		gang, slots := placed(s, asked("b", 1, 8), "r2", []string{"n2"}, [][]string{s.FreeGPUs("n2")})
		_, err = BuildGrant(s, gang, slots)
		must.EqError(t, err, "granting gang b: the ledger has no epoch: it is new or was lost")
		epoch, isNew, err := l.EnsureEpoch(t.Context(), lease)
		must.NoError(t, err)
		must.True(t, isNew)
		must.NotEq(t, before.EpochID, epoch.ID)
		s = load(t, l)
		must.StrContains(t, s.Withheld("n1"), "set back")
		_, err = BuildGrant(s, gang, slots)
		must.NoError(t, err)
	})
}
