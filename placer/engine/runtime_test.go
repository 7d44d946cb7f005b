// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
)

// TestRunTimesAreLearned: a gang that finished in one go teaches how long others of its job's name run in its queue, also
// the next child of the same parent; one that failed, or had to start again, in its
// place too, teaches nothing.
func TestRunTimesAreLearned(t *testing.T) {
	w := newWorld(t)
	w.addNode("n1", "r1", 8)
	w.settle()
	w.ack()
	turn := func(job string, takes time.Duration, end ...string) {
		w.happen([]string{"job", job, "gang=" + job[len("sweep/"):], "gpus=8"})
		w.settle()
		gang := job[len("sweep/"):]
		w.place()
		w.claim(gang)
		w.run(gang, ledger.RunRunning, "")
		w.settle()
		w.now = w.now.Add(takes)
		for _, event := range end {
			w.happen(words(event))
		}
		w.settle()
		w.ack()
		w.settle()
		w.now = w.now.Add(time.Minute)
		w.settle()
	}
	id := ledger.RunTimeID{Queue: "default", Namespace: "default", Job: "sweep"}
	turn("sweep/dispatch-1", 2*time.Hour, "run dispatch-1 phase=succeeded", "end dispatch-1 ranks=0 client=complete exit=0")
	must.Eq(t, 2*time.Hour, w.load().RunTimes[id].Doc.Typical())
	turn("sweep/dispatch-4", 5*time.Hour, "run dispatch-4 phase=succeeded generation=2", "end dispatch-4 ranks=0 client=complete exit=0")
	must.Eq(t, 1, w.load().RunTimes[id].Doc.Count)
	turn("sweep/dispatch-2", 5*time.Hour, "member dispatch-2 state=failed exit=1", "end dispatch-2 ranks=0 exit=1")
	must.Eq(t, 1, w.load().RunTimes[id].Doc.Count)

	var seen time.Duration
	w.decide = func(s model.Snapshot, _ time.Time) model.Decision {
		seen = s.Gangs[0].Expected
		return model.Decision{}
	}
	w.happen([]string{"job", "sweep/periodic-3", "gang=periodic-3", "gpus=8"})
	w.settle()
	must.Eq(t, 2*time.Hour, seen)
}
