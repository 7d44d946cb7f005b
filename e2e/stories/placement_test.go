// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"slices"

	"github.com/shoenig/test/must"
)

// getsBridgedPairs: two members of 2 GPUs each on a machine with bridged pairs get a pair each.
func getsBridgedPairs(s *stage) {
	finish := s.submitUntil(gang{name: "pairs", count: 2, gpus: 2, nodes: "n4"})
	ranks := s.awaitWhole("pairs", 2, startWithin)
	machine := s.snapshot().Nodes["n4"].Doc.Machine
	for rank, holder := range ranks {
		must.SliceLen(s.t, 2, holder.Minors)
		var indices []int
		for i, gpu := range machine.GPUs {
			if slices.Contains(holder.Minors, gpu.Minor) {
				indices = append(indices, i)
			}
		}
		must.SliceLen(s.t, 2, indices)
		must.Positive(s.t, machine.Links[indices[0]][indices[1]].NVLinks,
			must.Sprintf("rank %d has the GPUs %v, which no bridge joins", rank, holder.Minors))
	}
	finish()
	s.awaitFinished("pairs", endWithin)
}

// staysInRack: a gang that wants one rack gets one, waits when none fits, and widens after muster_relax_after.
func staysInRack(s *stage) {
	finish := s.submitUntil(gang{name: "roomy", count: 2, gpus: 8, more: map[string]string{"locality": "rack"}})
	must.Eq(s.t, []string{"n1", "n2"}, nodesOf(s.awaitWhole("roomy", 2, startWithin)))
	finish()
	s.awaitFinished("roomy", endWithin)
	must.NoError(s.t, s.AwaitEmpty(s.ctx, endWithin))

	release := s.submitUntil(gang{name: "squatter", count: 1, gpus: 8, nodes: "n1"})
	s.awaitWhole("squatter", 1, startWithin)
	const relaxAfter = 30
	finish = s.submitUntil(gang{name: "patient", count: 2, gpus: 8, more: map[string]string{
		"locality": "rack", "relax_after": seconds(relaxAfter).String(),
	}})
	waiting := s.awaitReason("patient")
	must.StrContains(s.t, waiting.Why.Text, "rack")

	ranks := s.awaitWhole("patient", 2, seconds(relaxAfter)+startWithin)
	must.Eq(s.t, []string{"n2", "n3"}, nodesOf(ranks))
	granted := s.document("patient").Reservation
	must.NotNil(s.t, granted)
	must.GreaterEq(s.t, seconds(relaxAfter), granted.At.Sub(waiting.Submitted).Round(seconds(1)),
		must.Sprint("the gang left its rack too early"))
	finish()
	s.awaitFinished("patient", endWithin)
	release()
	s.awaitFinished("squatter", endWithin)
}
