// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
)

// TestDocker runs the example for Docker on a daemon of the test's own, with an image that no registry has seen.
func TestDocker(t *testing.T) {
	if err := cluster.CheckDocker(); err != nil {
		t.Skip(err)
	}
	c := startCluster(t, cluster.Config{Name: "docker", Nodes: cluster.FourNodes()[:1], Docker: true})
	const image = "muster-e2e:1"
	must.NoError(t, c.ImportImage(t.Context(), image, nil))
	t.Run("10 a container with a slot", func(t *testing.T) {
		tell(t, c, func(s *stage) {
			must.NoError(s.t, s.Run(s.ctx, examples("docker.nomad.hcl"), map[string]string{
				"gang": "boxed", "members": "2", "gpus": "2", "image": image, "seconds": "5",
			}))
			s.awaitFinished("boxed", startWithin+endWithin)
			output := s.outputOf("boxed")
			for _, line := range []string{"member 0 of 2", "member 1 of 2", "nvidia0", "nvidia3", "done"} {
				must.StrContains(s.t, output, line)
			}
		})
	})
}
