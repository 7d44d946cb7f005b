// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"syscall"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/placer/ledger"
)

// leaderDies: the leading placer is killed while gangs wait. Another leads within 10 s; nothing is lost or placed twice.
func leaderDies(s *stage) {
	release := s.submitUntil(gang{name: "holder", count: 3, gpus: 8})
	holder := s.awaitWhole("holder", 3, startWithin)
	waiting := []gang{
		{name: "waiting-a", count: 2, gpus: 8, runFor: seconds(3)},
		{name: "waiting-b", count: 1, gpus: 8, runFor: seconds(3)},
		{name: "waiting-c", count: 3, gpus: 8, runFor: seconds(3)},
	}
	submitted := map[string]time.Time{}
	for _, g := range waiting {
		s.submit(g)
		submitted[g.name] = s.awaitState(g.name, ledger.GangWaiting, seconds(10)).Submitted
	}

	leader := s.leader()
	killed := time.Now()
	must.NoError(s.t, leader.Kill(syscall.SIGKILL))
	s.await("another placer to lead", seconds(10), func() (bool, string) {
		next, err := s.Leader(s.ctx)
		must.NoError(s.t, err)
		return next != nil && next != leader, "none does"
	})
	s.t.Logf("another placer led after %s", time.Since(killed).Round(10*time.Millisecond))
	for _, g := range waiting {
		must.Eq(s.t, submitted[g.name], s.document(g.name).Submitted, must.Sprint("its place in the queue is lost"))
	}
	must.Eq(s.t, pids(holder), pids(s.ranks("holder")))
	must.NoError(s.t, leader.Start())
	release()

	for _, g := range append(waiting, gang{name: "holder"}) {
		doc := s.awaitFinished(g.name, seconds(180))
		must.Eq(s.t, 1, doc.Attempts, must.Sprintf("gang %s was placed more than once", g.name))
	}
}

func (s *stage) leader() *cluster.Process {
	s.t.Helper()
	leader, err := s.Leader(s.ctx)
	must.NoError(s.t, err)
	must.NotNil(s.t, leader, must.Sprint("no placer leads"))
	return leader
}
