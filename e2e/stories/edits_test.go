// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestEdits tells what users and blips do to running gangs.
func TestEdits(t *testing.T) {
	nodes := cluster.FourNodes()
	nodes[3] = cluster.Node{Name: "n4", Topology: nodes[3].Topology, Machine: fakenvml.HGX8("n4")}
	c := startCluster(t, cluster.Config{Name: "edits", Nodes: nodes, Limits: cluster.Limits{
		Heartbeat: seconds(5), PlacementDeadline: startWithin, // device plugins are paused
	}})
	for _, story := range []struct {
		name string
		told func(s *stage)
	}{
		{"a client is silent for a while", silentForAWhile},
		{"jobs are edited while their gangs run", editedWhileRunning},
		{"names that can't be", impossibleNames},
		{"groups get their own slots", groupsGetTheirOwn},
	} {
		t.Run(story.name, func(t *testing.T) { tell(t, c, story.told) })
	}
}

// silentForAWhile: a client agent stands still for longer than Nomad waits for it and goes on; then Nomad thinks about the
// job again. Nobody is stopped.
func silentForAWhile(s *stage) {
	release := s.submitUntil(gang{name: "steady", count: 3, gpus: 8, nodes: "n1|n2|n3"})
	before := s.awaitWhole("steady", 3, startWithin)
	placed, attempts := s.awaitKnown("steady", 3), s.document("steady").Attempts

	client := s.Client("n2")
	must.NoError(s.t, client.Signal(syscall.SIGSTOP))
	s.t.Cleanup(func() { _ = client.Signal(syscall.SIGCONT) })
	s.await("Nomad to miss node n2", noticeWithin, func() (bool, string) {
		status := s.nodeStatus("n2")
		return status == "disconnected" || status == "down", status
	})
	must.NoError(s.t, client.Signal(syscall.SIGCONT))
	s.await("node n2 to be back", startWithin, func() (bool, string) { return s.nodeReady("n2") })
	s.await("its allocation to run again for Nomad", startWithin, func() (bool, string) {
		return maps.Equal(placed, s.running("steady")), fmt.Sprint(s.allocationStates("steady"))
	})

	s.evaluate("steady")
	s.awaitIdle("steady")
	must.Eq(s.t, placed, s.running("steady"))
	must.Eq(s.t, pids(before), pids(s.ranks("steady")))
	release()
	must.Eq(s.t, attempts, s.awaitOver("steady").Attempts)
}

// nodeStatus is what Nomad says of a node.
func (s *stage) nodeStatus(name string) string {
	s.t.Helper()
	nodes, _, err := s.Nomad.Nodes().List(nil)
	must.NoError(s.t, err)
	for _, node := range nodes {
		if node.Name == name {
			return node.Status
		}
	}
	return "not registered"
}

// allocationStates are the allocations of a job, with what Nomad wants of each and what its client says.
func (s *stage) allocationStates(job string) map[string]string {
	s.t.Helper()
	states := map[string]string{}
	for _, alloc := range s.allocations(job) {
		states[alloc.ID] = alloc.DesiredStatus + ", " + alloc.ClientStatus
	}
	return states
}

// awaitKnown waits until Nomad's servers know that all members of a gang run, which its clients tell them a little after
// the fact: a member of which they have not heard yet is lost with its node, whatever the job allows.
func (s *stage) awaitKnown(job string, size int) map[string]string {
	s.t.Helper()
	var running map[string]string
	s.await("Nomad to know that "+job+" runs", startWithin, func() (bool, string) {
		running = s.running(job)
		return len(running) == size, fmt.Sprint(s.allocationStates(job))
	})
	return running
}

// running are the allocations of a job that run and are meant to: a start that a busy machine spoiled has left others.
func (s *stage) running(job string) map[string]string {
	s.t.Helper()
	states := s.allocationStates(job)
	maps.DeleteFunc(states, func(_, state string) bool { return state != "run, running" })
	return states
}

// awaitIdle waits until Nomad has thought about all there is to think about a job.
func (s *stage) awaitIdle(job string) {
	s.t.Helper()
	s.await("Nomad's evaluations of job "+job, noticeWithin, func() (bool, string) {
		evals, _, err := s.Nomad.Jobs().Evaluations(job, nil)
		must.NoError(s.t, err)
		for _, eval := range evals {
			if eval.Status == nomad.EvalStatusPending && eval.WaitUntil.IsZero() { // others are for when the client stays away
				return false, "evaluation " + eval.ID + " is pending"
			}
		}
		return true, ""
	})
}

// editedWhileRunning: the meta of one running gang is edited, for which Nomad restarts its group; another gets more members
// and then fewer; the job of a third is stopped and run again at once. Each ends whole and runs whole in its new shape.
func editedWhileRunning(s *stage) {
	tuned := gang{name: "tuned", count: 2, gpus: 4, more: map[string]string{"relax_after": "10m"}}
	elastic := gang{name: "elastic", count: 2, gpus: 4}
	restless := gang{name: "restless", count: 2, gpus: 4}
	before := map[string]map[int]cluster.TaskProcess{}
	for _, g := range []gang{tuned, elastic, restless} {
		s.submitUntil(g)
	}
	for _, g := range []gang{tuned, elastic, restless} {
		before[g.name] = s.awaitWhole(g.name, 2, startWithin)
	}

	tuned.more, elastic.count = map[string]string{"relax_after": "20m"}, 3
	releaseTuned := s.submitUntil(tuned)
	s.submitUntil(elastic)
	must.NoError(s.t, s.StopJob(s.ctx, "restless", false))
	releaseRestless := s.submitUntil(restless)
	wider := s.awaitAnew("elastic", 3, before["elastic"])
	elastic.count = 1
	releaseElastic := s.submitUntil(elastic)
	s.awaitAnew("tuned", 2, before["tuned"])
	s.awaitAnew("restless", 2, before["restless"])
	s.awaitAnew("elastic", 1, wider)

	releaseTuned()
	releaseElastic()
	releaseRestless()
	must.Eq(s.t, 20*60, s.awaitOver("tuned").Spec.RelaxAfterS)
	must.Eq(s.t, 1, s.awaitOver("elastic").Spec.Size())
	s.awaitOver("restless")
}

// awaitAnew waits until a gang runs whole with other processes than before.
func (s *stage) awaitAnew(name string, size int, before map[int]cluster.TaskProcess) map[int]cluster.TaskProcess {
	s.t.Helper()
	var ranks map[int]cluster.TaskProcess
	s.await("gang "+name+" to run anew", endWithin+startWithin, func() (bool, string) {
		ranks = s.ranks(name)
		old := 0
		for _, process := range ranks {
			if slices.Contains(pids(before), process.PID) {
				old++
			}
		}
		return len(ranks) == size && old == 0, fmt.Sprintf("%d of %d members, %d of them old; %s", len(ranks), size, old, describe(s.document(name)))
	})
	return ranks
}

// impossibleNames: each is refused, with a reason that says what is wrong with the name, in the ledger and in Nomad. None
// of them gets in the way of a good one.
func impossibleNames(s *stage) {
	const letters = "it must start with a letter a-z and go on with a-z, 0-9, dot, underscore or hyphen"
	reasons := map[string]string{
		"7":                      letters,
		"007":                    letters,
		"5GiB":                   letters,
		"true":                   "Nomad reads it as a number, a bool or a size, so it would never match",
		strings.Repeat("a", 200): "it has 200 characters, the most is 63",
		"team/resnet":            `value "team/resnet" names group "resnet", but stands in group "worker"`,
		"обучение":               letters,
		"訓練":                     letters,
	}
	jobs := map[string]string{} // job -> gang's name
	for i, name := range slices.Sorted(maps.Keys(reasons)) {
		job := fmt.Sprintf("named-%d", i)
		jobs[job] = name
		s.submit(gang{name: name, count: 1, gpus: 1, runFor: seconds(1), more: map[string]string{"job": job}})
	}
	s.submit(gang{name: "good", count: 1, gpus: 1, runFor: seconds(1)})
	for job, name := range jobs {
		text := s.awaitRefusal(job)
		must.StrContains(s.t, text, reasons[name])
		s.awaitMessage(job, "Muster refused the gang: "+text)
	}
	listed, err := s.MusterCommand(s.ctx, "gangs")
	must.NoError(s.t, err)
	must.Eq(s.t, len(jobs), strings.Count(listed, "refused"), must.Sprint(listed))
	s.awaitFinished("good", startWithin+endWithin)
	for job := range jobs {
		must.NoError(s.t, s.StopJob(s.ctx, job, true))
	}
	s.await("the refusals to go with their jobs", endWithin, func() (bool, string) {
		snapshot := s.snapshot()
		return len(snapshot.Refusals) == 0, fmt.Sprintf("%d are left", len(snapshot.Refusals))
	})
}

// awaitRefusal waits until a job is refused, and returns why.
func (s *stage) awaitRefusal(job string) string {
	s.t.Helper()
	var text string
	s.await("job "+job+" to be refused", noticeWithin, func() (bool, string) {
		snapshot := s.snapshot()
		for _, refusal := range snapshot.Refusals {
			if refusal.Doc.Job == job {
				text = refusal.Doc.Why.Text
			}
		}
		return text != "", "it is not"
	})
	return text
}

// groupsGetTheirOwn: two gangs of two groups each, one with 1 and 8 GPUs a member, the other with 4 and 4, where nothing
// but the value tells the slots apart. In both cases the slot of the later group is registered well before the other.
func groupsGetTheirOwn(s *stage) {
	var release []func()
	for node, gpus := range map[string]int{"n1": 7, "n3": 4, "n4": 4} {
		release = append(release, s.submitUntil(gang{name: "on-" + node, count: 1, gpus: gpus, nodes: node}))
	}
	for _, node := range []string{"n1", "n3", "n4"} {
		s.awaitWhole("on-"+node, 1, startWithin)
	}
	resumeOne, resumeOther := s.pausePlugin("n1"), s.pausePlugin("n3")
	defer resumeOne()
	defer resumeOther()
	s.run("groups.nomad.hcl", map[string]string{"gang": "roles", "first": "1", "second": "8", "nodes": "n1|n2"})
	s.run("groups.nomad.hcl", map[string]string{"gang": "twins", "first": "4", "second": "4", "nodes": "n3|n4"})
	for _, name := range []string{"roles", "twins"} {
		s.await("the early slot of gang "+name+" to be placed", startWithin, func() (bool, string) {
			return len(s.allocationStates(name)) > 0, describe(s.document(name))
		})
		s.awaitIdle(name)
		must.MapLen(s.t, 1, s.allocationStates(name), must.Sprint("a member was placed on the slot of the other group"))
	}
	resumeOne()
	resumeOther()
	for _, name := range []string{"roles", "twins"} {
		s.checkGroups(name)
	}
	for _, end := range release {
		end()
	}
	for _, name := range []string{"roles", "twins", "on-n1", "on-n3", "on-n4"} {
		s.startedOnce(s.awaitFinished(name, endWithin))
	}
}

// checkGroups waits until a gang runs and checks that each group's member has the slot that was meant for it.
func (s *stage) checkGroups(name string) {
	s.t.Helper()
	ranks := s.awaitWhole(name, 2, startWithin)
	snapshot := s.snapshot()
	doc := snapshot.Gangs[name].Doc
	must.NotNil(s.t, doc.Reservation)
	for _, placed := range doc.Reservation.Placements {
		process := ranks[placed.Rank]
		must.Eq(s.t, placed.Node, process.Node)
		must.SliceLen(s.t, placed.GPUs, process.Minors)
		claim := snapshot.Claims[placed.Node][ledger.SlotID{Reservation: doc.Reservation.ID, Rank: placed.Rank}]
		alloc, _, err := s.Nomad.Allocations().Info(claim.Doc.Allocation, nil)
		must.NoError(s.t, err)
		must.Eq(s.t, placed.Group, alloc.TaskGroup, must.Sprintf("rank %d of %s", placed.Rank, name))
	}
	must.MapLen(s.t, 2, s.allocationStates(name), must.Sprint("a member was turned away from a slot"))
}

// pausePlugin makes a node's device plugin stand still, so that its node offers no new slot, and returns what lets it go
// on.
func (s *stage) pausePlugin(node string) (resume func()) {
	s.t.Helper()
	pid := s.pluginOf(node)
	must.NoError(s.t, syscall.Kill(pid, syscall.SIGSTOP))
	return func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // may be asked again, when it has gone on long ago
}

func (s *stage) pluginOf(node string) int {
	s.t.Helper()
	pid := s.Client(node).PluginPID("nomad-device-muster")
	must.Positive(s.t, pid, must.Sprintf("node %s has no device plugin", node))
	return pid
}
