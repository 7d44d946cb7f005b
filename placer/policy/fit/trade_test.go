// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit_test

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

// crowded is two racks of eight nodes with two free GPUs each; a gang that holds the rest of two nodes of the first rack
// ends in a while.
func crowded(ends time.Duration) model.Snapshot {
	s := racks(16, 8, func(int) gpu.Set { return gpu.FirstN(2) })
	runs := model.Running{
		Gang:    model.Gang{Name: "old", MaxRuntime: time.Hour, Groups: []model.Group{{Name: "worker", Count: 2, GPUs: 6}}},
		Started: epoch.Add(ends - time.Hour), Granted: epoch.Add(ends - time.Hour),
	}
	for i, n := range []string{"node-00002", "node-00003"} {
		runs.Members = append(runs.Members, model.Member{Rank: i, Group: "worker", Node: n, GPUs: gpu.FirstN(8) &^ gpu.FirstN(2)})
	}
	s.Running = []model.Running{runs}
	return s
}

func TestAuto(t *testing.T) {
	t.Parallel()
	sixteen := gang(0, 16, 1, "rack")
	sixteen.RelaxAuto = true
	for name, tc := range map[string]struct {
		change   func(g *model.Gang, s *model.Snapshot)
		ends     time.Duration
		after    time.Duration // since it began to wait
		want     string        // why it waits; empty: it starts
		level    string
		declines bool
	}{
		"a long run waits for two nodes of a rack": {
			change: func(g *model.Gang, _ *model.Snapshot) { g.Expected = 10 * time.Hour }, ends: 8 * time.Minute, declines: true,
			want: "could start now on 8 nodes, but would run 35% slower there than on 2 nodes in one rack, which are expected to be free in 8m; " +
				"waits for that at most 5h18m more",
		},
		"a short run does not": {change: func(g *model.Gang, _ *model.Snapshot) { g.Expected = 10 * time.Minute }, ends: 8 * time.Minute, level: "rack"},
		"nor does one that has waited for as long as it could gain": {
			change: func(g *model.Gang, _ *model.Snapshot) { g.Expected = 10 * time.Hour }, ends: 8 * time.Minute, after: 6 * time.Hour, level: "rack",
		},
		"nor one that hardly talks": {
			change: func(g *model.Gang, _ *model.Snapshot) { g.Expected, g.Comm = time.Hour, model.CommNone }, ends: 8 * time.Minute, level: "rack",
		},
		"nor one that may run anywhere": {
			change: func(g *model.Gang, _ *model.Snapshot) { g.Expected, g.Locality = 10*time.Hour, model.LocalityAny }, ends: 8 * time.Minute, level: "rack",
		},
		"nor one whose place comes too late": {
			change: func(g *model.Gang, _ *model.Snapshot) { g.Expected = time.Hour }, ends: 50 * time.Minute, level: "rack",
		},
		"of an unknown gang an hour is expected": {
			change: func(_ *model.Gang, s *model.Snapshot) { s.Running[0].MaxRuntime = 0 }, ends: 20 * time.Minute, declines: true,
			want: "could start now on 8 nodes, but would run 35% slower there than on 2 nodes in one rack, which are expected to be free in 20m; " +
				"waits for that at most 32m more",
		},
		"across racks is worse still": {
			change: func(g *model.Gang, s *model.Snapshot) {
				for i := 2; i < 8; i++ {
					s.Nodes[2*i].Free &^= gpu.FirstN(1)
				}
				s.Nodes[9].Free, g.Expected = gpu.FirstN(4), 2*time.Hour
			},
			ends: time.Hour, declines: true,
			want: "could start now on 7 nodes across several racks, but would run 54% slower there than on 2 nodes in one rack, " +
				"which are expected to be free in 1h; waits for that at most 2h22m more",
		},
		"one node is worth waiting for": {
			change: func(g *model.Gang, _ *model.Snapshot) {
				g.Groups[0].Count, g.Locality, g.Expected = 8, model.LocalityNode, 10*time.Hour
			},
			ends: 8 * time.Minute, declines: true,
			want: "could start now on 4 nodes, but would run 38% slower there than on one node, which is expected to be free in 8m; " +
				"waits for that at most 6h5m more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, g := crowded(tc.ends), sixteen
			g.Groups = []model.Group{g.Groups[0]}
			tc.change(&g, &s)
			now := epoch
			g.WaitingSince = now.Add(-tc.after)
			c := fit.New(s)
			grant, found := c.Fit(g, now)
			must.Eq(t, tc.declines, c.Declines(g, now))
			must.Eq(t, tc.want == "", found)
			must.Eq(t, tc.level, grant.Level)
			if tc.want != "" {
				reason, until := c.Explain(g, now)
				must.Eq(t, model.Reason{Code: model.WaitLocality, Text: tc.want}, reason)
				grant, found = c.Fit(g, until)
				must.True(t, found, must.Sprint("it has waited as long as it could gain"))
			}
		})
	}
}

func TestAuto_TakesTheFastestPlace(t *testing.T) {
	t.Parallel()
	// In the first rack eight nodes would do, in the second two nodes.
	s := racks(16, 8, func(i int) gpu.Set {
		if i == 9 || i == 14 {
			return gpu.FirstN(8)
		}
		return gpu.FirstN(2)
	})
	g := gang(0, 16, 1, model.LocalityNode)
	g.RelaxAuto = true
	grant, found := fit.New(s).Fit(g, epoch)
	must.True(t, found)
	must.Eq(t, "rack", grant.Level)
	for rank, m := range grant.Members {
		must.Eq(t, []string{"node-00009", "node-00014"}[rank/8], m.Node)
	}
}
