// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestRestarts tells what becomes of a gang when Nomad restarts or evicts one of its members.
func TestRestarts(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "restarts", Nodes: cluster.FourNodes()[:3]})
	for _, story := range []struct {
		name string
		told func(s *stage)
	}{
		{"13 one member is restarted", oneIsRestarted},
		{"13 a template restarts one member", templateRestarts},
		{"13 another task driver", foreignIsRestarted},
		{"13 a system job evicts one member", oneIsEvicted},
	} {
		t.Run(story.name, func(t *testing.T) { tell(t, c, story.told) })
	}
}

// oneIsRestarted: nomad alloc restart of one member, the leading one too, is a new generation of all, in the same
// allocations.
func oneIsRestarted(s *stage) {
	release := s.submitUntil(gang{name: "restarted", count: 3, gpus: 8})
	before, attempts := s.awaitWhole("restarted", 3, startWithin), s.document("restarted").Attempts
	allocs := s.claimants("restarted")
	for i, rank := range []int{1, 0} {
		_, err := s.NomadCommand(s.ctx, "alloc", "restart", allocs[rank])
		must.NoError(s.t, err)
		before = s.awaitGeneration("restarted", i+2, before)
		must.Eq(s.t, allocs, s.claimants("restarted"))
	}
	s.await("Nomad's servers to hear the events", startWithin, func() (bool, string) {
		shown, err := s.NomadCommand(s.ctx, "alloc", "status", allocs[2])
		must.NoError(s.t, err)
		return strings.Contains(shown, "starts again in place: rank 1 on node") && strings.Contains(shown, "generation 3, master"), shown
	})
	s.await("the output of later generations, which is kept", noticeWithin, func() (bool, string) {
		output, err := s.NomadCommand(s.ctx, "alloc", "logs", allocs[2])
		return err == nil && strings.Contains(output, "generation 3: 8 GPUs open"), output
	})
	release()
	doc := s.awaitFinished("restarted", 2*endWithin)
	must.Eq(s.t, attempts, doc.Attempts)
	must.Eq(s.t, 3, doc.LastRun.Generation)
}

// templateRestarts: the data of one member's template change, and all start again.
func templateRestarts(s *stage) {
	must.NoError(s.t, s.setVariable("tuned", "1"))
	s.run("restart.nomad.hcl", map[string]string{
		"gang": "tuned", "count": "3", "gpus": "8", "args": hclList([]string{"-for", "10m"}),
		"template": `{{ if eq (env "MUSTER_RANK") "2" }}{{ with nomadVar "nomad/jobs/tuned" }}{{ .rate }}{{ end }}{{ end }}`,
	})
	before := s.awaitWhole("tuned", 3, startWithin)
	allocs := s.claimants("tuned")
	must.NoError(s.t, s.setVariable("tuned", "2"))
	s.awaitGeneration("tuned", 2, before)
	must.Eq(s.t, allocs, s.claimants("tuned"))
	must.NoError(s.t, s.StopJob(s.ctx, "tuned", false))
}

func (s *stage) setVariable(job, rate string) error {
	_, err := s.NomadCommand(s.ctx, "var", "put", "-force", "nomad/jobs/"+job, "rate="+rate)
	return err
}

// foreignIsRestarted: a gang of another driver with Nomad's default restart block is refused with the mend. With the right
// one, a restart of one member is one new start of all.
func foreignIsRestarted(s *stage) {
	vars := map[string]string{
		"gang": "foreign", "count": "2", "gpus": "8", "driver": "raw_exec", "args": hclList([]string{"-for", "10m"}),
	}
	vars["restarts"] = "3"
	s.run("restart.nomad.hcl", vars)
	var refused string
	s.await("the gang to be refused", noticeWithin, func() (bool, string) {
		snapshot := s.snapshot()
		refused = snapshot.Refusals["default/foreign"].Doc.Why.Text
		return refused != "", "it is not"
	})
	must.StrContains(s.t, refused, "restart attempts = 3: Nomad would restart a member in place, alone")
	must.StrContains(s.t, refused, `write restart { attempts = 0  mode = "fail" } in the group`)

	vars["restarts"] = "0"
	s.run("restart.nomad.hcl", vars)
	before := s.awaitWhole("foreign", 2, startWithin)
	_, err := s.NomadCommand(s.ctx, "alloc", "restart", s.claimants("foreign")[1])
	must.NoError(s.t, err)
	s.awaitNewReservation("foreign", 2, before)
	must.StrContains(s.t, s.document("foreign").LastRun.Reason.Text, "was restarted in place by Nomad")
	must.NoError(s.t, s.StopJob(s.ctx, "foreign", false))
}

// oneIsEvicted: a system job of higher priority needs the memory of one node. The gang ends whole, waits, and runs again
// when the system job has gone.
func oneIsEvicted(s *stage) {
	release := s.submitUntil(gang{name: "evicted", count: 3, gpus: 8})
	before := s.awaitWhole("evicted", 3, startWithin)
	node := before[1].Node
	must.NoError(s.t, s.Run(s.ctx, "jobs/evictor.nomad.hcl", map[string]string{"node": node, "memory": strconv.Itoa(cluster.NodeMemoryMB - 64)}))
	doc := s.awaitState("evicted", ledger.GangWaiting, endWithin)
	must.StrContains(s.t, doc.LastRun.Reason.Text, "rank 1 on "+node+" was evicted by Nomad for a job of higher priority")
	must.SliceEmpty(s.t, pids(s.ranks("evicted")))
	must.NoError(s.t, s.StopJob(s.ctx, "evictor", true))
	s.awaitNewReservation("evicted", 3, before)
	release()
	s.awaitState("evicted", ledger.GangFinished, endWithin)
	s.await("Nomad to count the job as over", endWithin, func() (bool, string) { // and the evicted allocation as complete
		info, _, err := s.Nomad.Jobs().Info("evicted", nil)
		must.NoError(s.t, err)
		return *info.Status == "dead", *info.Status
	})
}

// claimants are the allocations that have claimed a gang's slots, by rank.
func (s *stage) claimants(name string) []string {
	s.t.Helper()
	snapshot := s.snapshot()
	grant := snapshot.Gangs[name].Doc.Reservation
	must.NotNil(s.t, grant)
	allocs := make([]string, snapshot.Gangs[name].Doc.Spec.Size())
	for _, claims := range snapshot.Claims {
		for id, claim := range claims {
			if id.Reservation == grant.ID {
				allocs[id.Rank] = claim.Doc.Allocation
			}
		}
	}
	must.SliceNotContains(s.t, allocs, "")
	return allocs
}

// awaitGeneration waits until a gang runs whole in a generation, by new processes.
func (s *stage) awaitGeneration(name string, generation int, before map[int]cluster.TaskProcess) map[int]cluster.TaskProcess {
	s.t.Helper()
	run := before[0].Reservation() + "/" + strconv.Itoa(generation)
	return s.awaitOtherProcesses(name, before, func(h cluster.TaskProcess) bool { return h.Run == run })
}

// awaitNewReservation waits until a gang runs whole on another reservation.
func (s *stage) awaitNewReservation(name string, size int, before map[int]cluster.TaskProcess) {
	s.t.Helper()
	s.awaitOtherProcesses(name, before, func(h cluster.TaskProcess) bool { return h.Reservation() != before[0].Reservation() })
	must.Eq(s.t, size, s.document(name).Spec.Size())
}

func (s *stage) awaitOtherProcesses(name string, before map[int]cluster.TaskProcess, right func(cluster.TaskProcess) bool) map[int]cluster.TaskProcess {
	s.t.Helper()
	var ranks map[int]cluster.TaskProcess
	s.await("gang "+name+" to start again as a whole", endWithin+startWithin, func() (bool, string) {
		ranks = s.ranks(name)
		var runs []string
		whole := len(ranks) == len(before)
		for rank, h := range ranks {
			runs = append(runs, fmt.Sprintf("rank %d in %s", rank, h.Run))
			whole = whole && right(h)
		}
		slices.Sort(runs)
		return whole, strings.Join(runs, ", ") + "; " + describe(s.document(name))
	})
	for rank, h := range ranks {
		must.NotEq(s.t, before[rank].PID, h.PID)
	}
	return ranks
}
