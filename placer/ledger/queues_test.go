// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// TestQueues_CheckAndSet: queues replace those that were read, or nothing; the snapshot has them.
func TestQueues_CheckAndSet(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		ctx := t.Context()
		_, err := l.GetQueues(ctx)
		must.ErrorIs(t, err, ErrNotFound)
		must.EqOp(t, 0, load(t, l).Queues.Index)

		first, err := l.PutQueues(ctx, Versioned[Queues]{Doc: Queues{Queues: []Queue{{Name: "a", Quota: 8}}, By: "alice", At: epochTime}})
		must.NoError(t, err)
		read, err := l.GetQueues(ctx)
		must.NoError(t, err)
		must.Eq(t, first, read)
		must.Eq(t, first, load(t, l).Queues)

		_, err = l.PutQueues(ctx, Versioned[Queues]{Doc: Queues{By: "bob"}})
		must.ErrorIs(t, err, ErrConflict, must.Sprint("others were applied meanwhile"))
		second, err := l.PutQueues(ctx, Versioned[Queues]{Doc: Queues{By: "bob"}, Index: first.Index})
		must.NoError(t, err)
		must.EqOp(t, "bob", load(t, l).Queues.Doc.By)

		large := Queues{Queues: []Queue{{Name: "a", Namespaces: []string{strings.Repeat("x", MaxQueuesBytes)}}}}
		_, err = l.PutQueues(ctx, Versioned[Queues]{Doc: large, Index: second.Index})
		must.ErrorIs(t, err, ErrTooLarge)
	})
}

// TestUsage_OfTheLeader: only the leader writes what was used, over whatever was there.
func TestUsage_OfTheLeader(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		ctx := t.Context()
		lease := lead(t, l, "leader")
		for _, used := range []float64{1, 2.5} {
			index, err := l.PutUsage(ctx, lease, Usage{At: epochTime, HalfLifeS: 60, Queues: map[string]float64{"a": used}})
			must.NoError(t, err)
			got := load(t, l).Usage
			must.EqOp(t, index, got.Index)
			must.EqOp(t, used, got.Doc.Queues["a"])
		}
		stranger := lease
		stranger.Session = session(t, l.Store(), NodeSession("n1"))
		_, err := l.PutUsage(ctx, stranger, Usage{At: epochTime})
		must.ErrorIs(t, err, ErrNotLeader)
	})
}
