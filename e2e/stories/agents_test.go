// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"syscall"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// outlivesAgents: a client agent is ended by SIGKILL and by SIGTERM while a gang runs, and started again each time. The
// processes live on, and the gang ends normally.
func outlivesAgents(s *stage) {
	release := s.submitUntil(gang{name: "survivor", count: 2, gpus: 8, nodes: "n1|n2"})
	before, attempts := s.awaitWhole("survivor", 2, startWithin), s.document("survivor").Attempts
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		client := s.Client("n1")
		must.NoError(s.t, client.Kill(signal))
		must.Eq(s.t, pids(before), pids(s.ranks("survivor")), must.Sprintf("after %s of the agent", signal))
		must.NoError(s.t, client.Start())
		s.await("node n1 to be back", startWithin, func() (bool, string) { return s.nodeReady("n1") })
		must.Eq(s.t, pids(before), pids(s.ranks("survivor")), must.Sprintf("after the agent's start that followed %s", signal))
	}
	release()
	must.Eq(s.t, attempts, s.awaitFinished("survivor", endWithin).Attempts)
}

// nodeReady says whether Nomad has a node as ready, heard from after its agent's last start, with the muster driver.
func (s *stage) nodeReady(name string) (bool, string) {
	agent, err := nomad.NewClient(&nomad.Config{Address: s.Client(name).HTTP})
	if err != nil {
		return false, err.Error()
	}
	defer agent.Close() // an agent takes a hundred connections at a time, and this is asked again and again
	self, err := agent.Agent().Self()
	if err != nil {
		return false, "its agent does not answer: " + err.Error()
	}
	if known := self.Stats["client"]["known_servers"]; known == "" {
		return false, "its agent knows no server yet"
	}
	nodes, _, err := s.Nomad.Nodes().List(nil)
	if err != nil {
		return false, err.Error()
	}
	for _, node := range nodes {
		if node.Name == name {
			info := node.Drivers["muster"]
			return node.Status == "ready" && info != nil && info.Healthy, node.Status
		}
	}
	return false, "not registered"
}
