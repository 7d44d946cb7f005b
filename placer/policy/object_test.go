// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

// TestDecideObjection: a grant that can't be made takes nothing from the gangs behind it, and its gang waits for that
// reason.
func TestDecideObjection(t *testing.T) {
	s := model.Snapshot{Nodes: []model.Node{{
		Name: "n1", Topology: gpu.NewTopology(machine(8, "switch")), Usable: gpu.FirstN(8), Free: gpu.FirstN(8), MemoryMB: 1,
	}}}
	for i, name := range []string{"first", "second", "third"} {
		s.Gangs = append(s.Gangs, model.Gang{
			Name: name, Submitted: epoch.Add(time.Duration(i) * time.Second), Locality: model.LocalityAny,
			Groups: []model.Group{{Name: "worker", Count: 1, GPUs: 8}},
		})
	}
	var asked []string
	why := model.Reason{Code: "test", Text: "not this one"}
	s.Object = func(g model.Grant) (model.Reason, bool) {
		asked = append(asked, g.Gang)
		return why, g.Gang == "first"
	}
	d := policy.Decide(s, epoch.Add(time.Minute))
	must.Eq(t, []string{"first", "second"}, asked)
	must.Len(t, 1, d.Grants)
	must.Eq(t, "second", d.Grants[0].Gang)
	must.Len(t, 2, d.Waits)
	must.Eq(t, model.Wait{Gang: "first", Reason: why, Position: 1, Cause: model.CauseOwn}, d.Waits[0])
	must.Eq(t, model.WaitCapacity, d.Waits[1].Reason.Code)
}
