// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// waitsAndStartsWhole: a gang of 2 x 8 waits while another holds the GPUs, says truly why, and starts whole when they free
// up. That no poll sees it running in part is for the checker to say.
func waitsAndStartsWhole(s *stage) {
	release := s.submitUntil(gang{name: "first", count: 2, gpus: 8, nodes: "n1|n2"})
	s.awaitWhole("first", 2, startWithin)

	finish := s.submitUntil(gang{name: "second", count: 2, gpus: 8})
	s.awaitShown(func() []string { return []string{s.awaitReason("second").Why.Text, "2 nodes with 8 free GPUs"} }, "gangs")
	must.MapEmpty(s.t, s.ranks("second"))
	must.MapLen(s.t, 2, s.ranks("first"), must.Sprint("the first gang must still hold its GPUs"))

	release()
	second := s.awaitWhole("second", 2, endWithin+startWithin)
	must.SliceLen(s.t, 2, nodesOf(second))
	finish()
	s.awaitFinished("second", endWithin)
	s.awaitFinished("first", endWithin)
	s.startsTogether(apartIn(second))
}

// startsTogether proves that the processes of a gang start within a second of one another. Where the machine was too busy
// in one start, another gang is tried.
func (s *stage) startsTogether(apart time.Duration) {
	s.t.Helper()
	for try := 1; ; try++ {
		s.t.Logf("the processes of two members started %s apart", apart)
		if apart <= time.Second {
			return
		}
		must.Less(s.t, tries, try, must.Sprint("never within a second"))
		name := fmt.Sprintf("together-%d", try)
		finish := s.submitUntil(gang{name: name, count: 2, gpus: 8})
		apart = apartIn(s.awaitWhole(name, 2, startWithin))
		finish()
		s.awaitFinished(name, endWithin)
	}
}

// apartIn is the time between the starts of a gang's first and last process.
func apartIn(ranks map[int]cluster.TaskProcess) time.Duration {
	var first, last time.Duration
	for _, h := range ranks {
		if first == 0 || h.Started < first {
			first = h.Started
		}
		last = max(last, h.Started)
	}
	return last - first
}
