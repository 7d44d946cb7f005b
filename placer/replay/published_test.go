// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/replay"
	"github.com/nomad-muster/muster/placer/replay/baseline"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// cluster makes nodes of 8 GPUs in racks.
func cluster(t *testing.T, nodes, perRack int) []model.Node {
	t.Helper()
	var list strings.Builder
	list.WriteString("node,gpus,rack\n")
	for i := range nodes {
		fmt.Fprintf(&list, "n%02d,8,r%d\n", i, i/perRack)
	}
	read, err := trace.ReadCluster(strings.NewReader(list.String()))
	must.NoError(t, err)
	return read
}

func run(t *testing.T, policy string, jobs []trace.Job, nodes []model.Node) *replay.Result {
	t.Helper()
	decide, err := baseline.New(policy)
	must.NoError(t, err)
	r := replay.Run(jobs, nodes, replay.Options{Decide: decide, Levels: trace.Levels()})
	must.Eq(t, 0, r.Faults, must.Sprint(r.FaultTexts))
	must.Eq(t, r.JobsIn, r.JobsOut)
	return r
}

// TestMuri compares with what the authors of Muri (SIGCOMM 2022) publish for their trace on 64 GPUs: a mean completion
// time of 249,140 s by shortest remaining time first without preemption, and of 219,557 s with it.
func TestMuri(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "..", "shared", "data", "muri", "cluster_trace.csv"))
	if err != nil {
		t.Skip("the Muri trace is not at hand: ", err)
	}
	defer file.Close()
	jobs, err := trace.Read(file)
	must.NoError(t, err)
	must.Len(t, 400, jobs)
	for policy, published := range map[string]float64{"srtf": 249_140, "srtf-preempt": 219_557} {
		mean := run(t, policy, jobs, cluster(t, 8, 8)).Completion.All.Mean
		t.Logf("%s: mean completion time %.0f s, published %.0f s", policy, mean, published)
		must.Between(t, 0.95*published, mean, 1.05*published)
	}
}

// TestWaves replays 53 gangs of two minutes that fill 32 nodes exactly in nine waves: nothing is left idle.
func TestWaves(t *testing.T) {
	waves := [][]int{{32}, {16, 16}, {8, 8, 16}, {1, 1, 2, 4, 8, 16}, {4, 4, 4, 4, 16}, {2, 2, 4, 8, 16}, {1, 3, 4, 8, 16}, {5, 5, 5, 5, 12}}
	count := 0
	for _, wave := range waves {
		count += len(wave)
	}
	last := make([]int, 53-count) // the rest of the gangs, in a wave of its own
	for i := range last {
		last[i] = 1
	}
	last[0] = 32 - (len(last) - 1)
	waves = append(waves, last)
	must.Len(t, 9, waves)
	var jobs []trace.Job
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, wave := range waves {
		sum := 0
		for _, nodes := range wave {
			jobs = append(jobs, trace.Job{
				Name: fmt.Sprintf("j%02d", len(jobs)), Queue: "default", GPUs: 8 * nodes, MemberGPUs: 8, Submitted: at, Duration: 2 * time.Minute,
			})
			sum += nodes
		}
		must.Eq(t, 32, sum)
	}
	must.Len(t, 53, jobs)
	for _, policy := range []string{baseline.Muster, "fifo"} {
		r := run(t, policy, jobs, cluster(t, 32, 8))
		must.Eq(t, (18 * time.Minute).Seconds(), r.Makespan, must.Sprint(policy))
		must.Eq(t, 1, r.Use, must.Sprint(policy))
	}
}
