// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestRebuild loses and sets back the ledger while gangs run.
func TestRebuild(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "rebuild", Nodes: cluster.FourNodes()[:3]})
	t.Run("16 the ledger is deleted", func(t *testing.T) { tell(t, c, ledgerIsDeleted) })
	t.Run("16 Consul is restored", func(t *testing.T) { tell(t, c, consulIsRestored) })
}

// ledgerIsDeleted: the gangs that run go on and end well; those that wait are granted after the ledger is in order.
func ledgerIsDeleted(s *stage) {
	releaseWide := s.submitUntil(gang{name: "wide", count: 2, gpus: 8, nodes: "n1|n2"})
	releaseSolo := s.submitUntil(gang{name: "solo", count: 1, gpus: 4, nodes: "n3"})
	wide, solo := s.awaitRunning("wide", 2), s.awaitRunning("solo", 1)
	s.submit(gang{name: "patient", count: 1, gpus: 8, runFor: seconds(2), nodes: "n1|n2"}) // so that no place on n3 is kept for it
	s.awaitState("patient", ledger.GangWaiting, noticeWithin)

	_, err := s.Consul.KV().DeleteTree(s.Ledger.Keys().Root(), nil)
	must.NoError(s.t, err)
	s.submit(gang{name: "small", count: 1, gpus: 4, runFor: seconds(2), nodes: "n3"}) // there is room for it all the time
	must.Eq(s.t, wide, s.awaitRunning("wide", 2))
	must.Eq(s.t, solo, s.awaitRunning("solo", 1))
	s.awaitAfter("small", "wide", "solo")
	must.Eq(s.t, ledger.GangWaiting, s.document("patient").State)
	s.awaitFinished("small", startWithin+endWithin)

	releaseWide()
	releaseSolo()
	s.awaitFinished("wide", endWithin)
	s.awaitFinished("solo", endWithin)
	s.awaitFinished("patient", startWithin+endWithin)
}

// consulIsRestored: the same with a snapshot from before one gang was granted and another one released.
func consulIsRestored(s *stage) {
	releaseWide := s.submitUntil(gang{name: "wide", count: 2, gpus: 8, nodes: "n1|n2"})
	releaseOld := s.submitUntil(gang{name: "old", count: 1, gpus: 4, nodes: "n3"})
	wide := s.awaitRunning("wide", 2)
	s.awaitRunning("old", 1)
	stream, _, err := s.Consul.Snapshot().Save(nil)
	must.NoError(s.t, err)
	snapshot, err := io.ReadAll(stream)
	must.NoError(s.t, err)
	must.NoError(s.t, stream.Close())

	releaseNew := s.submitUntil(gang{name: "new", count: 1, gpus: 4, nodes: "n3"})
	fresh := s.awaitRunning("new", 1)
	releaseOld()
	s.awaitFinished("old", endWithin)
	s.submit(gang{name: "patient", count: 1, gpus: 8, runFor: seconds(2), nodes: "n1|n2"}) // so that no place on n3 is kept for it
	s.awaitState("patient", ledger.GangWaiting, noticeWithin)

	must.NoError(s.t, s.Consul.Snapshot().Restore(nil, bytes.NewReader(snapshot)))
	s.submit(gang{name: "small", count: 1, gpus: 4, runFor: seconds(2), nodes: "n3"}) // old's GPUs are free
	s.awaitState("old", ledger.GangFinished, endWithin)
	must.Eq(s.t, wide, s.awaitRunning("wide", 2))
	must.Eq(s.t, fresh, s.awaitRunning("new", 1))
	s.awaitAfter("small", "new")
	s.awaitFinished("small", startWithin+endWithin)

	releaseWide()
	releaseNew()
	s.awaitFinished("wide", endWithin)
	s.awaitFinished("new", endWithin)
	s.awaitFinished("patient", startWithin+endWithin)
}

// awaitRunning waits until a gang runs by the ledger's account and all of its members hold their GPUs open, and returns
// their process IDs.
func (s *stage) awaitRunning(name string, size int) []int {
	s.t.Helper()
	s.awaitState(name, ledger.GangRunning, startWithin)
	return pids(s.awaitWhole(name, size, startWithin))
}

// awaitAfter waits until a gang is granted, and holds it against the ledger if that was before others had their
// reservations back.
func (s *stage) awaitAfter(name string, others ...string) {
	s.t.Helper()
	var granted time.Time
	s.await("gang "+name+" to be granted", startWithin, func() (bool, string) {
		doc := s.document(name)
		if doc.Reservation != nil {
			granted = doc.Reservation.At
		}
		return doc.Reservation != nil, describe(doc)
	})
	for _, other := range others {
		back := s.document(other).Reservation
		must.NotNil(s.t, back)
		must.False(s.t, granted.Before(back.At), must.Sprintf("gang %s was granted at %s, gang %s had its slots at %s", name, granted, other, back.At))
	}
}
