// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay_test

import (
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
	"github.com/nomad-muster/muster/placer/replay"
	"github.com/nomad-muster/muster/placer/replay/baseline"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// TestAuditSeesNoEnd replays two jobs for one node by schedulers that never come to an end.
func TestAuditSeesNoEnd(t *testing.T) {
	jobs, err := trace.Read(strings.NewReader(
		"job,queue,submitted,gpus,duration_s\na,default,2026-01-01T00:00:00Z,8,3600\nb,default,2026-01-01T00:00:00Z,8,3600\n"))
	must.NoError(t, err)
	for name, test := range map[string]struct {
		decide baseline.Decider
		faults []string
	}{
		"nobody starts though all is free": {idle, []string{
			"2026-01-08T00:05:00Z: gang a waits for ever: nothing runs, and it would fit",
			"2026-01-08T00:05:00Z: gang b waits for ever: nothing runs, and it would fit",
		}},
		"two evict one another": {takeTurns, []string{
			"2026-01-01T16:45:00Z: gangs evict one another for ever: 201 evictions, and 2 jobs in all",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := replay.Run(jobs, cluster(t, 1, 1), replay.Options{
				Decide: test.decide, Levels: trace.Levels(), Physics: replay.Physics{Checkpoint: time.Hour},
			})
			must.Eq(t, test.faults, r.FaultTexts)
			must.Eq(t, len(test.faults), r.Faults)
			must.Eq(t, []string{"a", "b"}, r.Left)
		})
	}
}

// idle lets everybody wait.
func idle(s model.Snapshot, _ baseline.Knowledge, _ time.Time) model.Decision {
	var d model.Decision
	for _, g := range s.Gangs {
		d.Waits = append(d.Waits, waits(g))
	}
	return d
}

// takeTurns evicts whoever runs for whoever waits.
func takeTurns(s model.Snapshot, _ baseline.Knowledge, now time.Time) model.Decision {
	d := policy.Decide(s, now)
	for _, r := range s.Running {
		for _, g := range s.Gangs {
			if !r.Closing && len(d.Grants) == 0 {
				d.Evictions = append(d.Evictions, model.Eviction{Gang: r.Name, For: g.Name, Reason: waits(g).Reason})
			}
		}
	}
	return d
}

func waits(g model.Gang) model.Wait {
	return model.Wait{Gang: g.Name, Reason: model.Reason{Code: "whim", Text: "as it pleases"}, Cause: model.CauseOwn}
}
