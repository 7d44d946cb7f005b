// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/queues"
	"github.com/nomad-muster/muster/placer/replay"
	"github.com/nomad-muster/muster/placer/replay/baseline"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// TestStories replays a dozen jobs by every policy and compares every start and every eviction.
func TestStories(t *testing.T) {
	doc, err := queues.Load(filepath.Join("testdata", "small.queues.hcl"))
	must.NoError(t, err)
	tree := queues.New(doc)
	jobs, nodes := read(t, "small.csv", trace.Read), read(t, "small.cluster.csv", trace.ReadCluster)
	told := 0
	datadriven.RunTest(t, filepath.Join("testdata", "stories"), func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		must.EqOp(t, "replay", d.Cmd)
		decide, err := baseline.New(d.CmdArgs[0].Key)
		must.NoError(t, err)
		told++
		var story strings.Builder
		r := replay.Run(jobs, nodes, replay.Options{
			Decide: telling(&story, jobs[0].Submitted, decide), Levels: trace.Levels(), Queues: tree.Queues(queues.Account{}),
			Settings: tree.Settings(), Physics: replay.DefaultPhysics(), Every: time.Second,
		})
		must.Eq(t, 0, r.Faults, must.Sprint(r.FaultTexts))
		fmt.Fprintf(&story, "%d of %d jobs, mean wait %.0f s, makespan %.0f s\n", r.JobsOut, r.JobsIn, r.Wait.All.Mean, r.Makespan)
		return story.String()
	})
	must.EqOp(t, len(baseline.Names()), told)
}

func read[T any](t *testing.T, name string, as func(io.Reader) (T, error)) T {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", name))
	must.NoError(t, err)
	defer file.Close()
	value, err := as(file)
	must.NoError(t, err)
	return value
}

// telling writes down what a scheduler decides, with the time since the first job came.
func telling(story io.Writer, began time.Time, decide baseline.Decider) baseline.Decider {
	return func(s model.Snapshot, k baseline.Knowledge, now time.Time) model.Decision {
		d := decide(s, k, now)
		for _, e := range d.Evictions {
			fmt.Fprintf(story, "%-12s %s ends for %s: %s\n", now.Sub(began), e.Gang, e.For, e.Reason.Code)
		}
		for _, g := range d.Grants {
			fmt.Fprintf(story, "%-12s %s starts on", now.Sub(began), g.Gang)
			for _, m := range g.Members {
				fmt.Fprintf(story, " %s:%s", m.Node, m.GPUs)
			}
			fmt.Fprintln(story)
		}
		return d
	}
}
