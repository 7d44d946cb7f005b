// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/replay"
	"github.com/nomad-muster/muster/placer/replay/baseline"
	"github.com/nomad-muster/muster/placer/replay/report"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// scenario is a small cluster with what is to run on it.
type scenario struct {
	jobs    []trace.Job
	nodes   []model.Node
	queues  []model.Queue
	options replay.Options
}

// TestAudit replays random scenarios by every policy: the audit finds nothing, every job that could run has run, and the
// same scenario in another order gives the same report. For the long form: -rapid.checks=1000.
func TestAudit(t *testing.T) {
	for _, name := range baseline.Names() {
		t.Run(name, func(t *testing.T) {
			evictions := 0
			rapid.Check(t, func(t *rapid.T) {
				s := draw(t)
				if name == baseline.Muster {
					s.limit(t)
				}
				r := s.run(t, name)
				must.Eq(t, 0, r.Faults, must.Sprint(r.FaultTexts))
				must.Eq(t, r.JobsIn, r.JobsOut, must.Sprint(r.Left))
				must.Eq(t, 0, r.PartlyRunning)
				evictions += r.Evictions
				s.jobs = rapid.Permutation(s.jobs).Draw(t, "jobs in another order")
				s.nodes = rapid.Permutation(s.nodes).Draw(t, "nodes in another order")
				s.queues = rapid.Permutation(s.queues).Draw(t, "queues in another order")
				must.Eq(t, text(t, r), text(t, s.run(t, name)))
			})
			t.Logf("%d evictions", evictions)
		})
	}
}

// limit gives queues a limit that none of their jobs is above: the placer's policy alone knows limits.
func (s scenario) limit(t *rapid.T) {
	for i := range s.queues {
		if q := &s.queues[i]; rapid.Bool().Draw(t, "limit") {
			for _, j := range s.jobs {
				if j.Queue == q.Name || strings.HasPrefix(j.Queue, q.Name+".") {
					q.Max = max(q.Max, j.GPUs)
				}
			}
			q.Max += rapid.IntRange(1, 8).Draw(t, "GPUs above the largest job")
		}
	}
}

func text(t must.T, results ...*replay.Result) string {
	var out bytes.Buffer
	must.NoError(t, report.JSON(&out, results))
	must.NoError(t, report.HTML(&out, results))
	return out.String()
}

func (s scenario) run(t must.T, name string) *replay.Result {
	decide, err := baseline.New(name)
	must.NoError(t, err)
	o := s.options
	o.Decide, o.Queues, o.Levels = decide, s.queues, trace.Levels()
	r := replay.Run(s.jobs, s.nodes, o)
	r.Policy = name
	return r
}

// draw makes a scenario in which every job could run if it were alone.
func draw(t *rapid.T) scenario {
	minutes := func(most int, label string) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * time.Minute
	}
	var s scenario
	var list bytes.Buffer
	fmt.Fprintln(&list, "node,gpus,rack")
	whole, largest := 0, 0
	for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
		gpus := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "GPUs")
		whole, largest = whole+gpus, max(largest, gpus)
		fmt.Fprintf(&list, "n%d,%d,r%d\n", i, gpus, rapid.IntRange(0, 2).Draw(t, "rack"))
	}
	var err error
	s.nodes, err = trace.ReadCluster(&list)
	must.NoError(t, err)
	names := []string{"a", "b", "b.x", "b.y"}
	for _, name := range names {
		if rapid.Bool().Draw(t, "queue") {
			s.queues = append(s.queues, model.Queue{
				Name: name, Quota: rapid.IntRange(0, whole).Draw(t, "quota"), Preempt: rapid.Bool().Draw(t, "preempt"),
				Weight: float64(rapid.IntRange(0, 3).Draw(t, "weight")),
			})
		}
	}
	for i := range rapid.IntRange(1, 25).Draw(t, "jobs") {
		member := rapid.IntRange(1, largest).Draw(t, "GPUs of a member")
		room := 0
		for _, n := range s.nodes {
			room += n.Usable.Len() / member
		}
		members := rapid.IntRange(1, room).Draw(t, "members")
		s.jobs = append(s.jobs, trace.Job{
			Name: fmt.Sprintf("j%d", i), Queue: rapid.SampledFrom(names).Draw(t, "queue"), GPUs: members * member, MemberGPUs: member,
			Submitted: time.Unix(1_500_000_000, 0).UTC().Add(minutes(600, "submitted")), Duration: minutes(300, "duration"),
			Priority: rapid.IntRange(1, 3).Draw(t, "priority"), MaxRuntime: minutes(400, "max runtime"),
			Comm: rapid.SampledFrom([]model.Comm{model.CommUnknown, model.CommNone, model.CommLow, model.CommHigh}).Draw(t, "comm"),
		})
	}
	s.options = replay.Options{
		Every: rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(t, "every"),
		Physics: replay.Physics{
			Slowdown: rapid.Bool().Draw(t, "slowdown"), Checkpoint: minutes(40, "checkpoint"), Close: minutes(2, "close"), Restart: minutes(5, "restart"),
		},
		Settings: model.Settings{MinRuntime: time.Minute, ReclaimAbove: 0.5, Defragment: rapid.Bool().Draw(t, "defragment")},
	}
	return s
}
