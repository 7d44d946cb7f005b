// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// runsAgainUnchanged: the same spec is run again while its gang runs; nothing restarts.
func runsAgainUnchanged(s *stage) {
	again := gang{name: "again", count: 2, gpus: 4}
	s.submitUntil(again)
	before, attempts := s.awaitWhole("again", 2, startWithin), s.document("again").Attempts
	finish := s.submitUntil(again)
	s.awaitIdle("again")
	must.Eq(s.t, pids(before), pids(s.ranks("again")))
	finish()
	doc := s.awaitFinished("again", endWithin)
	must.Eq(s.t, attempts, doc.Attempts)
	must.NotNil(s.t, doc.LastRun)
	must.Eq(s.t, 1, doc.LastRun.Generation)
}

// purgedWhileWaiting: `nomad job stop -purge` of a waiting gang leaves nothing behind.
func purgedWhileWaiting(s *stage) {
	s.submit(gang{name: "toolarge", count: 4, gpus: 8, runFor: seconds(5)})
	s.awaitState("toolarge", ledger.GangWaiting, noticeWithin)
	must.NoError(s.t, s.StopJob(s.ctx, "toolarge", true))
	s.awaitForgotten("toolarge")
}

// purgedWhileRunning: the same of a running gang, which ends and leaves nothing behind.
func purgedWhileRunning(s *stage) {
	s.submit(gang{name: "doomed", count: 2, gpus: 8, runFor: seconds(600)})
	s.awaitWhole("doomed", 2, startWithin)
	must.NoError(s.t, s.StopJob(s.ctx, "doomed", true))
	s.awaitForgotten("doomed")
	must.NoError(s.t, s.AwaitEmpty(s.ctx, endWithin))
}

// awaitForgotten waits until the ledger knows nothing of a gang any more.
func (s *stage) awaitForgotten(name string) {
	s.t.Helper()
	s.await("gang "+name+" to be forgotten", endWithin, func() (bool, string) {
		doc := s.document(name)
		return doc.Name == "", describe(doc)
	})
}
