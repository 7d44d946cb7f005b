// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// waitsAndStartsWhole: a gang of 2 x 8 waits while another holds the GPUs, says truly why, and starts whole when they free
// up. That no poll sees it running in part is for the checker to say.
func waitsAndStartsWhole(s *stage) {
	release := s.submitUntil(gang{name: "first", count: 2, gpus: 8, nodes: "n1|n2"})
	s.awaitWhole("first", 2, startWithin)

	s.submit(gang{name: "second", count: 2, gpus: 8, runFor: seconds(5)})
	waiting := s.awaitState("second", ledger.GangWaiting, seconds(10))
	s.await("the second gang's reason", seconds(10), func() (bool, string) {
		waiting = s.document("second")
		return waiting.Why != nil, describe(waiting)
	})
	must.StrContains(s.t, waiting.Why.Text, "2 nodes with 8 free GPUs")
	gangs, err := s.MusterCommand(s.ctx, "gangs")
	must.NoError(s.t, err)
	must.StrContains(s.t, gangs, waiting.Why.Text)
	must.MapEmpty(s.t, s.ranks("second"))
	must.MapLen(s.t, 2, s.ranks("first"), must.Sprint("the first gang must still hold its GPUs"))

	release()
	second := s.awaitWhole("second", 2, endWithin+startWithin)
	must.SliceLen(s.t, 2, nodesOf(second))
	must.LessEq(s.t, time.Second, (second[0].Started - second[1].Started).Abs(), must.Sprint("between the starts of the two processes"))
	s.awaitFinished("second", endWithin)
	s.awaitFinished("first", endWithin)
}
