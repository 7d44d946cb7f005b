// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"testing"

	"github.com/nomad-muster/muster/e2e/cluster"
)

// TestStories tells, one after the other on one cluster, the stories that leave the cluster as they found it.
func TestStories(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "stories", Nodes: cluster.FourNodes(), Placers: 2})
	for _, story := range []struct {
		name string
		told func(s *stage)
	}{
		{"01 a gang waits and starts whole", waitsAndStartsWhole},
		{"02 members get bridged pairs", getsBridgedPairs},
		{"03 a gang stays in one rack until it relaxes", staysInRack},
		{"05 checkpoints keep their interval", keepsCheckpointInterval},
		{"06 client agents die while a gang runs", outlivesAgents},
		{"07 a spec is run again", runsAgainUnchanged},
		{"07 a job is purged while it waits", purgedWhileWaiting},
		{"07 a job is purged while it runs", purgedWhileRunning},
		{"04 a crowd of gangs", crowd},
		{"08 the leading placer is killed", leaderDies},
		{"09 torchrun without flags", torchrun},
		{"09 MPI", mpi},
		{"the example of two groups", twoGroups},
		{"the example of one GPU", oneGPU},
	} {
		t.Run(story.name, func(t *testing.T) { tell(t, c, story.told) })
	}
}

// TestSmoke runs one gang on agents in their -dev modes, as a person does who tries things out.
func TestSmoke(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "smoke", Nodes: cluster.FourNodes()[:1], Dev: true})
	tell(t, c, func(s *stage) {
		finish := s.submitUntil(gang{name: "hello", count: 2, gpus: 4})
		s.awaitWhole("hello", 2, startWithin)
		finish()
		s.awaitFinished("hello", endWithin)
	})
}
