// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
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
		submitted[g.name] = s.awaitState(g.name, ledger.GangWaiting, noticeWithin).Submitted
	}

	for try, took := 1, s.failsOver(); took > seconds(10); try, took = try+1, s.failsOver() {
		must.Less(s.t, tries, try, must.Sprint("another placer never led within 10 s"))
	}
	for _, g := range waiting {
		must.Eq(s.t, submitted[g.name], s.document(g.name).Submitted, must.Sprint("its place in the queue is lost"))
	}
	must.Eq(s.t, pids(holder), pids(s.ranks("holder")))
	release()

	for _, g := range append(waiting, gang{name: "holder"}) {
		s.startedOnce(s.awaitFinished(g.name, 2*startWithin))
	}
}

// failsOver kills the leading placer, waits until another leads, starts the one that was killed, and returns how long the
// cluster was without a leader.
func (s *stage) failsOver() time.Duration {
	s.t.Helper()
	leader := s.leader(nil)
	killed := time.Now()
	must.NoError(s.t, leader.Kill(syscall.SIGKILL))
	s.leader(leader)
	took := time.Since(killed)
	s.t.Logf("another placer led after %s", took.Round(10*time.Millisecond))
	must.NoError(s.t, leader.Start())
	return took
}

// leader waits until a placer leads that is another one than before.
func (s *stage) leader(before *cluster.Process) (leader *cluster.Process) {
	s.t.Helper()
	s.await("another placer to lead", noticeWithin, func() (bool, string) {
		var err error
		leader, err = s.Leader(s.ctx)
		return err == nil && leader != nil && leader != before, fmt.Sprint(err)
	})
	return leader
}

// startedOnce checks that a gang was not started again for no reason. A start may have failed on a busy machine, but not
// all the time, and it has gone up in nothing: no member ran.
func (s *stage) startedOnce(doc ledger.Gang) {
	s.t.Helper()
	if doc.Attempts != 1 {
		s.t.Logf("gang %s was started %d times: the machine was busy", doc.Name, doc.Attempts)
	}
	must.Between(s.t, 1, doc.Attempts, tries, must.Sprintf("starts of gang %s", doc.Name))
}
