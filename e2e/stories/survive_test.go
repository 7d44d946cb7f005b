// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestSurvive tells how gangs outlive what Nomad and machines do to them.
func TestSurvive(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "survive", Nodes: cluster.FourNodes(), Limits: cluster.Limits{
		FenceTime: seconds(10), PlacementDeadline: placedWithin, MaxFailures: hopelessStarts(), Heartbeat: seconds(5),
	}})
	for _, story := range []struct {
		name string
		told func(s *stage)
	}{
		{"01 nodes are drained", drained},
		{"03 04 05 14 members that fail, a thief, memory that is gone", failures},
		{"15 nodes that start anew, lose their data, or are gone", nodesLost},
	} {
		t.Run(story.name, func(t *testing.T) { tell(t, c, story.told) })
	}
}

// placedWithin is how long Nomad may take to place a gang before it is tried elsewhere: short, as a story waits for it.
const placedWithin = 40 * time.Second

// drained: one node of a gang is drained in time and the node of another gang, of one member, by force. Both run again
// elsewhere, and neither job ever looks as if it were done.
func drained(s *stage) {
	pairEnds := s.submitUntil(gang{name: "pair", count: 2, gpus: 8})
	oneEnds := s.submitUntil(gang{name: "one", count: 1, gpus: 2})
	pair := s.awaitWhole("pair", 2, startWithin)
	left := pair[1].Node
	s.drain(left, "-deadline", "60s")
	s.awaitMoved("pair", 2, pair)
	must.SliceNotContains(s.t, nodesOf(s.ranks("pair")), left)
	s.undrain(left) // so that there is room for the other

	one := s.awaitWhole("one", 1, startWithin)
	forced := one[0].Node
	s.drain(forced, "-force")
	s.awaitMoved("one", 1, one)
	must.NotEq(s.t, forced, s.ranks("one")[0].Node)
	s.undrain(forced)
	if s.jobVersion("one") > 0 { // else its driver was faster than Nomad, and ended it as failed
		s.await("the placer to say why", noticeWithin, func() (bool, string) {
			said := s.said("one")
			return strings.Contains(said, "Muster resets the gang: Nomad counts allocation"), said
		})
	}

	pairEnds()
	oneEnds()
	s.awaitOver("pair")
	s.awaitOver("one")
	s.undrain(left) // Nomad may have ended the drain only after it was called off, and keeps the node ineligible then
	s.undrain(forced)
}

// awaitMoved waits until a gang runs whole in other processes than before. Meanwhile its job must not look done.
func (s *stage) awaitMoved(name string, size int, before map[int]cluster.TaskProcess) map[int]cluster.TaskProcess {
	s.t.Helper()
	var ranks map[int]cluster.TaskProcess
	s.await("gang "+name+" to run whole again", endWithin+startWithin, func() (bool, string) {
		info, _, err := s.Nomad.Jobs().Info(name, nil)
		must.NoError(s.t, err)
		doc := s.document(name)
		if *info.Status == "dead" && doc.Reset == nil {
			must.NotEq(s.t, ledger.GangFinished, doc.State, must.Sprint("it looks as if it were done"))
		}
		ranks = s.standingOn(doc)
		moved := len(ranks) == size
		for rank, old := range before {
			moved = moved && ranks[rank].PID != old.PID
		}
		return moved, fmt.Sprintf("%d of %d members; job %s; %s", len(ranks), size, *info.Status, describe(doc))
	})
	return ranks
}

// standingOn are the processes of a gang on its reservation in force, by rank; those of an earlier one may live elsewhere.
func (s *stage) standingOn(doc ledger.Gang) map[int]cluster.TaskProcess {
	ranks := map[int]cluster.TaskProcess{}
	for _, h := range s.Processes() {
		if h.Gang == doc.Name && len(h.Minors) > 0 && doc.Reservation != nil && h.Reservation() == doc.Reservation.ID {
			ranks[h.Rank] = h
		}
	}
	return ranks
}

// awaitOver waits until a gang has finished and its job is over, however often it was started.
func (s *stage) awaitOver(name string) ledger.Gang {
	s.t.Helper()
	doc := s.awaitState(name, ledger.GangFinished, startWithin+endWithin)
	s.awaitDead(name)
	return doc
}

func (s *stage) awaitDead(job string) {
	s.t.Helper()
	s.await("job "+job+" to be over", endWithin, func() (bool, string) {
		info, _, err := s.Nomad.Jobs().Info(job, nil)
		must.NoError(s.t, err)
		living := slices.ContainsFunc(s.allocations(job), func(a *nomad.AllocationListStub) bool {
			return a.ClientStatus == "running" || a.ClientStatus == "pending"
		})
		// After a node was lost Nomad keeps an evaluation for its return, and calls even a stopped job pending meanwhile.
		return *info.Status == "dead" || *info.Stop && !living, *info.Status
	})
}

func (s *stage) jobVersion(job string) int {
	s.t.Helper()
	info, _, err := s.Nomad.Jobs().Info(job, nil)
	must.NoError(s.t, err)
	return int(*info.Version)
}

// said is all that the placer has told about a job, in Nomad.
func (s *stage) said(job string) string {
	s.t.Helper()
	return strings.Join(s.messages(job), "\n")
}

func (s *stage) nodeID(name string) (id string) {
	s.t.Helper()
	s.await("Nomad to have node "+name+" as ready", noticeWithin, func() (bool, string) {
		nodes, _, err := s.Nomad.Nodes().List(nil)
		must.NoError(s.t, err)
		for _, node := range nodes {
			if node.Name == name && node.Status == "ready" {
				id = node.ID
			}
		}
		return id != "", "it has not"
	})
	return id
}

func (s *stage) drain(node string, options ...string) {
	s.t.Helper()
	args := append([]string{"node", "drain", "-enable", "-yes", "-detach"}, options...)
	_, err := s.NomadCommand(s.ctx, append(args, s.nodeID(node))...)
	must.NoError(s.t, err)
}

func (s *stage) undrain(node string) {
	s.t.Helper()
	_, err := s.NomadCommand(s.ctx, "node", "drain", "-disable", "-yes", "-detach", s.nodeID(node))
	must.NoError(s.t, err)
	s.await("node "+node+" to take members again", startWithin, func() (bool, string) {
		info, _, err := s.Nomad.Nodes().Info(s.nodeID(node), nil)
		must.NoError(s.t, err)
		if info.DrainStrategy == nil && info.SchedulingEligibility == nomad.NodeSchedulingEligible {
			return true, ""
		}
		_, err = s.Nomad.Nodes().ToggleEligibility(info.ID, true, nil)
		return false, fmt.Sprintf("%s, draining: %v, %v", info.SchedulingEligibility, info.DrainStrategy != nil, err)
	})
}

// failures tells several stories at once, since each is mostly waiting.
func failures(s *stage) {
	hopelessEnds := hopeless(s)
	lateEnds := failsLate(s)
	bigEnds := losesMemory(s)
	thief(s)
	bigEnds()
	lateEnds()
	hopelessEnds()
}

// hopelessStarts is how often a command that cannot work is started: by default eight times, which takes ten minutes.
func hopelessStarts() int {
	if soak() {
		return 8
	}
	return 3
}

// hopeless: a command that does not exist is tried as often as the placer is told; then the job ends with the reason, and so
// does muster run.
func hopeless(s *stage) (end func()) {
	starts, began := hopelessStarts(), time.Now()
	inARow := fmt.Sprintf("failed %d times in a row", starts)
	ended := s.startMuster(s.runArgs("hopeless", "count=2", "program=/nowhere/train")...)
	return func() {
		said := ended(1)
		must.StrContains(s.t, said, "gang hopeless has failed: "+inARow+": rank ")
		must.StrContains(s.t, said, "edit and run the job again\n")
		doc := s.awaitState("hopeless", ledger.GangFailed, noticeWithin)
		must.StrContains(s.t, doc.Why.Text, inARow+": rank ")
		must.StrContains(s.t, doc.Why.Text, "edit and run the job again")
		s.awaitDead("hopeless")
		allocs := s.allocations("hopeless")
		s.t.Logf("hopeless: %d allocations in %s, %s", len(allocs), time.Since(began).Round(time.Second), doc.Why.Text)
		must.Between(s.t, 2*starts, len(allocs), 20*starts, must.Sprint("allocations of the starts of 2 members, and those that Nomad placed on slots just withdrawn"))
		s.await("the reason on the job", noticeWithin, func() (bool, string) {
			said := s.said("hopeless")
			return strings.Contains(said, "The gang has failed: "+inARow), said
		})
		s.awaitShown(func() []string { return []string{inARow} }, "gang", "hopeless")
	}
}

// failsLate: rank 1 fails after rank 0 has succeeded, with the muster driver and without. Both run again; the second time
// all succeed, some seconds apart, and the jobs complete once.
func failsLate(s *stage) (end func()) {
	for _, driver := range []string{"muster", "raw_exec"} {
		name := "late-" + strings.ReplaceAll(driver, "_", "-")
		file := filepath.Join(s.sharedDir("once"), name)
		s.submit(gang{
			name: name, count: 2, gpus: 2, runFor: seconds(1), more: map[string]string{"driver": driver},
			program: []string{"-apart", "4s", "-exit", "3", "-exit-rank", "1", "-once", file},
		})
	}
	return func() {
		for name, version := range map[string]int{"late-muster": 0, "late-raw-exec": 2} {
			doc := s.awaitOver(name)
			must.GreaterEq(s.t, 2, doc.Attempts, must.Sprintf("%s: %v", name, doc.LastRun))
			must.GreaterEq(s.t, version, s.jobVersion(name), must.Sprint(name))
		}
	}
}

// losesMemory: between the grant and Nomad's placement another job takes the memory of the node. The gang is closed when
// the time for its placement is over, with the reason, and starts elsewhere.
func losesMemory(s *stage) (end func()) {
	const most = "300000" // MB, of 512 GiB
	var resume []func()
	for _, node := range []string{"n1", "n2", "n3"} { // none offers its slots before the memory is taken
		resume = append(resume, s.pausePlugin(node))
		defer resume[len(resume)-1]()
	}
	release := s.submitUntil(gang{name: "big", count: 1, gpus: 2, nodes: "n1|n2|n3", more: map[string]string{"memory": most}})
	granted := s.awaitState("big", ledger.GangReserved, noticeWithin)
	first := granted.Reservation.Placements[0].Node
	s.run("hog.nomad.hcl", map[string]string{"node": first, "memory": most})
	s.await("the memory to be taken", noticeWithin, func() (bool, string) { return len(s.allocations("hog")) == 1, "" })
	return func() {
		second := s.awaitWhole("big", 1, 2*startWithin)[0].Node
		must.NotEq(s.t, first, second)
		doc := s.document("big")
		must.StrContains(s.t, doc.LastRun.Reason.Text, "Nomad has placed no allocation on rank 0 on "+first+" within "+placedWithin.String())
		must.Eq(s.t, 0, doc.Failures)
		must.NoError(s.t, s.StopJob(s.ctx, "hog", true))
		release()
		s.awaitOver("big")
	}
}

// thief: a second job names a running gang's value, whose member then fails. The owner gets its slots back every time, and
// the thief is stopped.
func thief(s *stage) {
	release := s.submitUntil(gang{name: "owned", count: 2, gpus: 4})
	ranks := s.awaitWhole("owned", 2, startWithin)
	for range 2 {
		s.submit(gang{name: "owned", count: 2, gpus: 4, runFor: seconds(600), more: map[string]string{"job": "thief"}})
		s.await("the thief to be refused", noticeWithin, func() (bool, string) {
			said := s.said("thief")
			return strings.Contains(said, "the gang name owned belongs to job owned in namespace default, which asked first"), said
		})
		must.NoError(s.t, syscall.Kill(ranks[1].PID, syscall.SIGKILL))
		ranks = s.awaitMoved("owned", 2, ranks)
		s.awaitDead("thief")
	}
	release()
	doc := s.awaitOver("owned")
	must.Eq(s.t, "owned", doc.Job)
	allocs := s.allocations("thief")
	s.t.Logf("the thief had %d allocations", len(allocs))
	for _, alloc := range allocs {
		must.NotEq(s.t, nomad.AllocClientStatusComplete, alloc.ClientStatus)
	}
}

// nodesLost: at once, a node falls silent for ever, another loses the data of its Nomad client, and a third is started
// anew. And a second machine has the name of a node.
func nodesLost(s *stage) {
	goneEnds := s.submitUntil(gang{name: "gone", count: 2, gpus: 4, nodes: "n1|n2"})
	wipedEnds := s.submitUntil(gang{name: "wiped", count: 1, gpus: 4, nodes: "n3"})
	bootedEnds := s.submitUntil(gang{name: "booted", count: 1, gpus: 4, nodes: "n4"})
	gone, wiped, booted := s.awaitWhole("gone", 2, startWithin), s.awaitWhole("wiped", 1, startWithin), s.awaitWhole("booted", 1, startWithin)

	s.awaitKnown("gone", 2)

	lost := s.Client(gone[0].Node)
	must.NoError(s.t, lost.Freeze())
	frozen := time.Now()
	s.loseData("n3", wiped)
	s.reboot("n4", booted)

	s.awaitMoved("wiped", 1, wiped)
	s.awaitMoved("booted", 1, booted)
	s.t.Logf("both run again %s after the node fell silent", time.Since(frozen).Round(time.Second))
	moved := s.awaitMoved("gone", 2, gone)
	s.t.Logf("the gang of the lost node runs again %s after it fell silent", time.Since(frozen).Round(time.Second))
	must.SliceNotContains(s.t, nodesOf(moved), lost.Node.Name)
	must.GreaterEq(s.t, 2, s.jobVersion("gone"))
	must.StrContains(s.t, s.document("gone").LastRun.Reason.Text, "node "+lost.Node.Name+" has been silent for 10s")

	must.NoError(s.t, lost.Thaw())
	s.await("the old processes and slots on the node that is back to be gone", endWithin, func() (bool, string) {
		snapshot := s.snapshot()
		left := len(snapshot.Tables[lost.Node.Name].Doc.Slots)
		return left == 0 && !s.lives(gone[0].PID) && !s.lives(gone[1].PID), strconv.Itoa(left) + " slots"
	})
	must.Eq(s.t, pids(moved), pids(s.standingOn(s.document("gone"))), must.Sprint("the node that came back has disturbed the gang"))
	s.await("node "+lost.Node.Name+" to be back", startWithin, func() (bool, string) { return s.nodeReady(lost.Node.Name) })
	twin(s)

	for _, release := range []func(){goneEnds, wipedEnds, bootedEnds} {
		release()
	}
	for _, name := range []string{"gone", "wiped", "booted"} {
		s.awaitOver(name)
	}
}

// loseData ends a node's client, makes it forget everything and starts it. The process that it has lost ends soon.
func (s *stage) loseData(node string, ranks map[int]cluster.TaskProcess) {
	s.t.Helper()
	client := s.Client(node)
	must.NoError(s.t, client.Kill(syscall.SIGTERM))
	must.NoError(s.t, client.WipeData())
	must.NoError(s.t, client.Start())
	began := time.Now()
	s.await("the process that Nomad has lost on "+node+" to be ended", noticeWithin, func() (bool, string) {
		return !s.lives(ranks[0].PID), "it runs"
	})
	s.t.Logf("the lost process ended %s after the client's start", time.Since(began).Round(100*time.Millisecond))
}

// lives says whether a member's process lives.
func (s *stage) lives(pid int) bool {
	return slices.ContainsFunc(s.Processes(), func(p cluster.TaskProcess) bool { return p.PID == pid })
}

// reboot starts a node anew.
func (s *stage) reboot(node string, ranks map[int]cluster.TaskProcess) {
	s.t.Helper()
	client := s.Client(node)
	before := s.reservationOf(node)
	must.NoError(s.t, client.Kill(syscall.SIGTERM))
	must.NoError(s.t, s.Reboot(s.ctx, client))
	s.await("the machine's processes to be gone", noticeWithin, func() (bool, string) { return !s.lives(ranks[0].PID), "" })
	must.NoError(s.t, client.Start())
	began := time.Now()
	s.await("the GPUs of "+node+" to be free of what was before", noticeWithin, func() (bool, string) {
		return s.reservationOf(node) != before, before
	})
	s.t.Logf("its GPUs were free %s after the client's start", time.Since(began).Round(100*time.Millisecond))
}

// reservationOf is the reservation of a node's first slot; empty: it has none.
func (s *stage) reservationOf(node string) string {
	s.t.Helper()
	snapshot := s.snapshot()
	for _, slot := range snapshot.Tables[node].Doc.Slots {
		return slot.Reservation
	}
	return ""
}

// twin: another machine comes up with a node's name. It offers nothing, says so, and disturbs nobody.
func twin(s *stage) {
	var before ledger.Snapshot
	s.await("node n1 to speak for itself", noticeWithin, func() (bool, string) { // it may be the one that was away
		before = s.snapshot()
		return before.NodeSessions["n1"] != "", "it is silent"
	})
	client, err := s.AddClient(s.ctx, cluster.Node{Name: "twin", As: "n1", Machine: fakenvml.HGX8("twin")})
	must.NoError(s.t, err)
	s.await("the second machine to say that the name is taken", startWithin, func() (bool, string) {
		said, err := client.Logged("no slots are offered: ")
		must.NoError(s.t, err)
		return said > 0, "it does not"
	})
	after := s.snapshot()
	must.Eq(s.t, before.Nodes["n1"].Doc.MachineID, after.Nodes["n1"].Doc.MachineID)
	must.Eq(s.t, before.NodeSessions["n1"], after.NodeSessions["n1"])
	must.NoError(s.t, client.Kill(syscall.SIGTERM))
}
