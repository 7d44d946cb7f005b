// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
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

// TestDevices tells, one after the other on one cluster, what the device plugin does in trouble.
func TestDevices(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "devices", Nodes: cluster.FourNodes()[:2], Limits: cluster.Limits{Heartbeat: seconds(5)}})
	for _, story := range []struct {
		name string
		told func(s *stage)
	}{
		{"06 jobs that name no gang get no slot", takersGetNothing},
		{"07 a job is purged behind a stopped client", purgedBehindItsClient},
		{"12 a GPU is ill when its slot is offered", illWhenOffered},
		{"12 the device plugin is killed five times", pluginKilled},
		{"14 a member fails while Consul is away", failsWithoutConsul},
		{"a stranger uses a GPU of a new slot", strangerOnNewSlot},
	} {
		t.Run(story.name, func(t *testing.T) { tell(t, c, story.told) })
	}
}

// taker describes one job of jobs/taker.nomad.hcl.
type taker struct {
	name   string
	device string // empty: muster/gang
	gang   string // value of the gang constraint; empty: none
	count  int    // 0: one
	gpus   int
	nodes  string
	until  string // empty: it ends at once
}

func (s *stage) take(t taker) {
	s.t.Helper()
	args := []string{"-for", "1s"}
	if t.until != "" {
		args = []string{"-for", clusterLifetime.String(), "-until", t.until}
	}
	vars := map[string]string{
		"name": t.name, "gang": t.gang, "gpus": fmt.Sprint(t.gpus), "count": fmt.Sprint(max(t.count, 1)), "args": hclList(args), "priority": "60",
	}
	if t.device != "" {
		vars["device"] = t.device
	}
	if t.nodes != "" {
		vars["nodes"] = t.nodes
	}
	s.run("taker.nomad.hcl", vars)
}

// failures counts a job's failed allocations, by the index of the member.
func (s *stage) failures(job string) map[string]int {
	s.t.Helper()
	failed := map[string]int{}
	for _, a := range s.allocations(job) {
		if a.ClientStatus == nomad.AllocClientStatusFailed {
			failed[a.Name]++
		}
	}
	return failed
}

// takersGetNothing: a stock GPU job, and one that asks for slots of no gang in particular, wait for GPUs of higher
// priority while a gang's slots are offered. Neither gets anything, and the gang starts at its first attempt.
func takersGetNothing(s *stage) {
	s.take(taker{name: "stock", device: "gpu", gpus: 1})
	s.take(taker{name: "bare", gpus: 1})
	s.await("the job without a gang to be refused", noticeWithin, func() (bool, string) {
		snapshot := s.snapshot()
		for _, refusal := range snapshot.Refusals {
			if refusal.Doc.Job == "bare" {
				return strings.Contains(refusal.Doc.Why.Text, "the ask names no gang"), refusal.Doc.Why.Text
			}
		}
		return false, "no refusal"
	})

	release := s.submitUntil(gang{name: "owner", count: 2, gpus: 8})
	s.awaitWhole("owner", 2, startWithin)
	s.startedOnce(s.document("owner"))
	release()
	s.awaitFinished("owner", endWithin)

	must.SliceEmpty(s.t, s.allocations("stock"))
	for _, a := range s.allocations("bare") {
		must.Eq(s.t, nomad.AllocClientStatusFailed, a.ClientStatus)
		must.Eq(s.t, "dead", a.TaskStates["train"].State)
		must.True(s.t, a.TaskStates["train"].StartedAt.IsZero(), must.Sprint("it never started"))
	}
	s.t.Logf("the job without a gang failed to start %v", s.failures("bare"))
	bare, _, err := s.Nomad.Jobs().Info("bare", nil)
	must.NoError(s.t, err)
	must.True(s.t, *bare.Stop, must.Sprint("the placer ends a job that would take the slots of any gang"))
	must.NoError(s.t, s.StopJob(s.ctx, "stock", true))
}

// purgedBehindItsClient: while a client is stopped its job is purged, and Nomad made to forget job, allocation and node.
// The process goes on; its GPUs are given to nobody until it has ended.
func purgedBehindItsClient(s *stage) {
	client := s.Client("n1")
	s.take(taker{name: "ghost", gang: "ghost", gpus: 8, nodes: "n1", until: s.sharedDir("releases") + "/never"})
	before := s.awaitWhole("ghost", 1, startWithin)
	slot := ledger.SlotID{Reservation: before[0].Reservation()}
	must.NoError(s.t, client.Signal(syscall.SIGSTOP))
	defer func() { _ = client.Signal(syscall.SIGCONT) }()
	s.await("Nomad to miss the client", noticeWithin, func() (bool, string) {
		status := s.nodeStatus("n1")
		return status != "ready", status
	})
	must.NoError(s.t, s.StopJob(s.ctx, "ghost", true))
	s.await("Nomad to forget the job's allocation and the node", noticeWithin, func() (bool, string) {
		must.NoError(s.t, s.Nomad.System().GarbageCollect())
		left, status := len(s.allocations("ghost")), s.nodeStatus("n1")
		return left == 0 && status == "not registered", fmt.Sprintf("%d allocations, node %q", left, status)
	})

	s.submit(gang{name: "heir", count: 1, gpus: 8, nodes: "n1", runFor: seconds(2)})
	s.await("the node to say what keeps the slot", noticeWithin, func() (bool, string) {
		snapshot := s.snapshot()
		why := snapshot.Acks["n1"].Doc.Busy[slot.String()]
		return strings.Contains(why, fmt.Sprintf("is used by process %d (testprog)", before[0].PID)), why
	})
	s.awaitState("heir", ledger.GangWaiting, noticeWithin)
	must.Eq(s.t, pids(before), pids(s.ranks("ghost")))

	must.NoError(s.t, client.Signal(syscall.SIGCONT))
	s.awaitFinished("heir", endWithin+startWithin)
	must.MapEmpty(s.t, s.ranks("ghost"))
}

// slotsInNomad are the device groups of slots on a node by Nomad's books, and how many of all their GPUs are unhealthy.
func (s *stage) slotsInNomad(name string) (groups []string, unhealthy int) {
	s.t.Helper()
	nodes, _, err := s.Nomad.Nodes().List(nil)
	must.NoError(s.t, err)
	for _, stub := range nodes {
		if stub.Name != name {
			continue
		}
		node, _, err := s.Nomad.Nodes().Info(stub.ID, nil)
		must.NoError(s.t, err)
		for _, group := range node.NodeResources.Devices {
			groups = append(groups, group.Name)
			for _, instance := range group.Instances {
				if !instance.Healthy {
					unhealthy++
				}
			}
		}
	}
	slices.Sort(groups)
	return groups, unhealthy
}

// illWhenOffered: a GPU falls ill between grant and offer, and is well again 10 s later.
func illWhenOffered(s *stage) {
	gpus := s.Client("n1").GPUs
	resume := s.pausePlugin("n1")
	defer resume()
	s.submit(gang{name: "flappy", count: 1, gpus: 8, nodes: "n1", runFor: seconds(2)})
	s.awaitState("flappy", ledger.GangReserved, noticeWithin)
	must.NoError(s.t, gpus.Set(3, func(g *fakenvml.GPUState) { g.ECCUncorrected = 1 }))
	must.NoError(s.t, gpus.FireXID(3, 31)) // the plugin looks at once
	resume()
	s.await("Nomad to see the slot with the ill GPU", startWithin, func() (bool, string) {
		groups, unhealthy := s.slotsInNomad("n1")
		return len(groups) == 1 && unhealthy == 1, fmt.Sprint(groups, unhealthy)
	})
	ill := time.Now()
	s.await("10 s to pass", noticeWithin, func() (bool, string) {
		must.MapEmpty(s.t, s.ranks("flappy"), must.Sprint("it started on an ill GPU"))
		return time.Since(ill) > seconds(10), ""
	})
	must.NoError(s.t, gpus.Return(3))
	s.startedOnce(s.awaitFinished("flappy", startWithin))
}

// pluginKilled: the device plugin is killed five times in a minute, and then once more while Consul is away. The gang that
// runs does not notice, and Nomad sees no slot but the gang's. Meanwhile the GPU that somebody's shell uses is noticed.
func pluginKilled(s *stage) {
	shell, err := s.Client("n1").OpenGPU(7)
	must.NoError(s.t, err)
	defer shell.Close()
	release := s.submitUntil(gang{name: "steady", count: 1, gpus: 4, nodes: "n1"})
	before, attempts := s.awaitWhole("steady", 1, startWithin), s.document("steady").Attempts
	must.SliceNotContains(s.t, before[0].Minors, 7)
	for range 5 {
		s.killDevicePlugin("n1")
		must.Eq(s.t, pids(before), pids(s.ranks("steady")))
	}
	must.NoError(s.t, s.ConsulAgent().Kill(syscall.SIGKILL))
	s.killDevicePlugin("n1")
	away := time.Now()
	s.await("Nomad to hear of everything that the plugin offers", noticeWithin, func() (bool, string) {
		groups, unhealthy := s.slotsInNomad("n1")
		must.Eq(s.t, []string{"steady.0"}, groups)
		must.Zero(s.t, unhealthy)
		return time.Since(away) > seconds(12), ""
	})
	must.NoError(s.t, s.StartConsulAgain(s.ctx))
	s.await("the node to say who uses the GPU", noticeWithin, func() (bool, string) {
		text, err := s.MusterCommand(s.ctx, "nodes")
		busy := fmt.Sprintf("used by process %d", os.Getpid())
		return err == nil && strings.Contains(text, "GPU 7 of n1 is busy") && strings.Contains(text, busy), text
	})
	must.Eq(s.t, pids(before), pids(s.ranks("steady")))
	must.Eq(s.t, attempts, s.document("steady").Attempts)
	release()
	s.awaitFinished("steady", endWithin)
}

// killDevicePlugin kills a node's device plugin and waits until its agent has started another one that offers what it knows.
// Nomad (1.6) gives a plugin up for ever if it dies before it answers for the first time.
func (s *stage) killDevicePlugin(node string) {
	s.t.Helper()
	client := s.Client(node)
	starts := func() int {
		n, err := client.Logged("nomad-device-muster: slot table on disk")
		must.NoError(s.t, err)
		return n
	}
	before := starts()
	killed, err := client.KillPlugin(cluster.DevicePlugin)
	must.NoError(s.t, err)
	s.await("another device plugin", noticeWithin, func() (bool, string) {
		next := client.PluginPID(cluster.DevicePlugin)
		return next != 0 && next != killed && starts() > before, fmt.Sprint(next)
	})
}

// failsWithoutConsul: members of two gangs, one of them without the muster driver, fail while Consul is away. Nomad places
// them again; the failed allocations stay few, all other members live on, and with Consul the gangs start anew.
func failsWithoutConsul(s *stage) {
	away := seconds(40)
	if soak() {
		away = 2 * time.Minute
	}
	release := s.submitUntil(gang{name: "patient", count: 2, gpus: 2, nodes: "n1"})
	until := s.sharedDir("releases") + "/simple"
	must.NoError(s.t, os.RemoveAll(until))
	s.take(taker{name: "simple", gang: "simple", count: 2, gpus: 2, nodes: "n2", until: until})
	patient, simple := s.awaitWhole("patient", 2, startWithin), s.awaitWhole("simple", 2, startWithin)
	s.awaitState("simple", ledger.GangRunning, noticeWithin)

	must.NoError(s.t, s.ConsulAgent().Kill(syscall.SIGKILL))
	began := time.Now()
	for _, ranks := range []map[int]cluster.TaskProcess{patient, simple} {
		must.NoError(s.t, syscall.Kill(ranks[0].PID, syscall.SIGKILL))
	}
	var heard time.Time // Nomad has that the slot of the member without the muster driver is not offered any more
	inVain := 0         // failures until then
	s.await("Consul to be away for long", away+noticeWithin, func() (bool, string) {
		for name, ranks := range map[string]map[int]cluster.TaskProcess{"patient": patient, "simple": simple} {
			must.Eq(s.t, ranks[1].PID, s.ranks(name)[1].PID, must.Sprintf("rank 1 of %s", name))
		}
		if groups, _ := s.slotsInNomad("n2"); heard.IsZero() && len(groups) == 1 {
			heard, inVain = time.Now(), most(s.failures("simple"))
			s.t.Logf("Nomad has heard after %s that the slot is not offered any more", heard.Sub(began).Round(time.Second))
		}
		return time.Since(began) > away && !heard.IsZero() && time.Since(heard) > seconds(15), "slots of n2 in Nomad"
	})
	for job, most := range map[string]int{
		"patient": 1 + 1,      // its own failure; the driver of the next one waits for Consul
		"simple":  inVain + 1, // and one that Nomad was placing just then
	} {
		failed := s.failures(job)
		s.t.Logf("failed allocations of %s after %s without Consul: %v", job, time.Since(began).Round(time.Second), failed)
		must.MapLen(s.t, 1, failed)
		for _, n := range failed {
			must.LessEq(s.t, most, n, must.Sprint("starts in vain that never end"))
		}
	}
	s.logNewest("patient")

	must.NoError(s.t, s.StartConsulAgain(s.ctx))
	release()
	must.NoError(s.t, os.WriteFile(until, nil, 0o644))
	for _, name := range []string{"patient", "simple"} {
		doc := s.awaitOver(name) // the released member that lived on may have ended well just before its gang was closed
		must.GreaterEq(s.t, 2, doc.Attempts)
	}
}

// most is the largest of some counts.
func most(counts map[string]int) int {
	return slices.Max(append(slices.Collect(maps.Values(counts)), 0))
}

// logNewest shows what Nomad says of a job's newest allocation.
func (s *stage) logNewest(job string) {
	s.t.Helper()
	newest := slices.MaxFunc(s.allocations(job), func(a, b *nomad.AllocationListStub) int { return int(a.CreateIndex) - int(b.CreateIndex) })
	text, err := s.NomadCommand(s.ctx, "alloc", "status", newest.ID)
	must.NoError(s.t, err)
	s.t.Log(text)
}

// strangerOnNewSlot: somebody takes a GPU between grant and placement. The start is refused with the reason, the gang waits
// for that GPU, and starts when it is free.
func strangerOnNewSlot(s *stage) {
	s.submit(gang{name: "late", count: 1, gpus: 8, nodes: "n2", runFor: seconds(2)})
	s.awaitState("late", ledger.GangReserved, noticeWithin)
	shell, err := s.Client("n2").OpenGPU(5)
	must.NoError(s.t, err)
	defer func() {
		if err := shell.Close(); !errors.Is(err, os.ErrClosed) {
			must.NoError(s.t, err)
		}
	}()
	waiting := s.awaitState("late", ledger.GangWaiting, startWithin)
	must.NotNil(s.t, waiting.LastRun)
	must.StrContains(s.t, waiting.LastRun.Reason.Text, fmt.Sprintf("is used by process %d", os.Getpid()))
	s.awaitShown(func() []string { return []string{"GPU 5 of n2 is busy"} }, "nodes")
	must.NoError(s.t, shell.Close())
	doc := s.awaitFinished("late", startWithin)
	must.GreaterEq(s.t, 2, doc.Attempts)
}
