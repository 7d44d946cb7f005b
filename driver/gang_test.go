// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

const untilGo = `touch started; while [ ! -e go ]; do sleep 0.05; done; `

func TestWholeGang(t *testing.T) {
	w := newWorld(t, 3)
	tasks := make([]*runningTask, 3)
	for rank := range tasks {
		tasks[rank] = w.client(rank).start(`env > env; cat "$MUSTER_HOSTS_FILE" > hosts; ` + untilGo)
		if rank < 2 {
			eventually(t, "it arrives", func() bool { return w.member(rank).State == ledger.MemberArrived })
		}
	}
	var starts []time.Time
	for rank, task := range tasks {
		task.everHas("started")
		eventually(t, "it says that it runs", func() bool { return w.member(rank).State == ledger.MemberRunning })
		starts = append(starts, *w.member(rank).Started)
		must.Eq(t, 1, w.claims(rank))
	}
	for _, start := range starts {
		must.Less(t, patience, start.Sub(starts[0]).Abs(), must.Sprint("the end-to-end stories measure it"))
	}
	run := w.run()
	must.Eq(t, ledger.RunRunning, run.Phase)
	must.Eq(t, "127.0.0.1", run.MasterAddr)
	env := tasks[1].read("env")
	for _, line := range []string{
		"MUSTER_MASTER_ADDR=127.0.0.1", fmt.Sprintf("MUSTER_MASTER_PORT=%d", run.MasterPort), fmt.Sprintf("PET_MASTER_PORT=%d", run.MasterPort),
		"PET_MASTER_ADDR=127.0.0.1", "MUSTER_GENERATION=1", "MUSTER_RANK=1",
	} {
		must.StrContains(t, env, line+"\n")
	}
	for _, forbidden := range []string{"\nRANK=", "\nLOCAL_RANK=", "\nWORLD_SIZE="} {
		must.StrNotContains(t, "\n"+env, forbidden)
	}
	must.StrContains(t, tasks[2].read("hosts"), "127.0.0.1 slots=2 # rank=1 node=n1 group=worker\n")

	// The exit barrier: two finish, and wait for the third.
	tasks[0].touch("go")
	tasks[1].touch("go")
	eventually(t, "two have succeeded", func() bool {
		return w.member(0).State == ledger.MemberSucceeded && w.member(1).State == ledger.MemberSucceeded
	})
	status, err := tasks[0].InspectTask(tasks[0].cfg.ID)
	must.NoError(t, err)
	must.Eq(t, drivers.TaskStateRunning, status.State)
	tasks[2].touch("go")
	for _, task := range tasks {
		result := task.wait()
		must.True(t, result.Successful(), must.Sprint(result))
	}
	must.Eq(t, ledger.RunSucceeded, w.run().Phase)
	w.noClaims()
}

func TestGangOfOne(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`exit 0`)
	must.True(t, task.wait().Successful())
	w.noClaims()
	must.NoError(t, task.DestroyTask(task.cfg.ID, false))
	must.ErrorContains(t, task.DestroyTask(task.cfg.ID, true), drivers.ErrTaskNotFound.Error())
	eventually(t, "its directory is removed", func() bool {
		entries, _ := os.ReadDir(task.stateDir + "/tasks")
		return len(entries) == 0
	})
}

func TestLateMember(t *testing.T) {
	w := newWorld(t, 2)
	first := w.client(0).start(`exit 0`)
	first.everTold("Waiting: gang resnet50 waits for rank 1 on node n1 (2 members in all)")
	must.False(t, first.has("started"))
	second := w.client(1).start(`exit 0`)
	must.True(t, first.wait().Successful())
	must.True(t, second.wait().Successful())
}

func TestStopWhileWaiting(t *testing.T) {
	w := newWorld(t, 2)
	task := w.client(1).start(`exit 0`)
	task.everTold("waits for rank 0 on node n0")
	begun := time.Now()
	must.NoError(t, task.StopTask(task.cfg.ID, 2*patience, ""))
	must.Less(t, patience, time.Since(begun), must.Sprint("there is no process to wait for"))
	must.False(t, task.wait().Successful())
	eventually(t, "the ledger says so", func() bool { return w.member(1).State == ledger.MemberStopped })
	w.noClaims()
	must.False(t, task.has("started"))
}

func TestBarrierDeadline(t *testing.T) {
	w := newWorld(t, 3)
	first := w.client(0).start(untilGo)
	second := w.client(1).start(untilGo, func(c *TaskConfig) { c.BarrierTimeout = "2s" })
	result := second.wait()
	must.ErrorContains(t, result.Err, "the gang was not complete in time (barrier_timeout 2s)")
	must.ErrorContains(t, result.Err, "rank 2 on node n2")
	result = first.wait()
	must.ErrorContains(t, result.Err, "rank 1 on node n1 failed: the gang was not complete in time")
	must.Eq(t, ledger.RunFailed, w.run().Phase)
	w.noClaims()
}

func TestFailureEndsTheGang(t *testing.T) {
	for failing := range 3 {
		t.Run(fmt.Sprintf("of rank %d", failing), func(t *testing.T) {
			w := newWorld(t, 3)
			tasks := make([]*runningTask, 3)
			for rank := range tasks {
				script := untilGo
				if rank == failing {
					script += "exit 3"
				}
				tasks[rank] = w.client(rank).start(script)
			}
			succeeding := (failing + 1) % 3
			for _, task := range tasks {
				task.everHas("started")
			}
			tasks[succeeding].touch("go")
			eventually(t, "one succeeds", func() bool { return w.member(succeeding).State == ledger.MemberSucceeded })
			tasks[failing].touch("go")
			for rank, task := range tasks {
				result := task.wait()
				must.False(t, result.Successful())
				if rank == failing {
					must.Eq(t, 3, result.ExitCode)
				} else {
					must.ErrorContains(t, result.Err, fmt.Sprintf("rank %d on node n%d failed: exit code 3", failing, failing))
				}
			}
			run := w.run()
			must.Eq(t, ledger.RunFailed, run.Phase)
			must.False(t, run.Orderly)
			w.noClaims()
			eventually(t, "the member's last word", func() bool { return w.member(failing).State == ledger.MemberFailed })
			must.Eq(t, 3, *w.member(failing).ExitCode)
		})
	}
}

func TestClosingEndsTheGangFailed(t *testing.T) {
	w := newWorld(t, 2)
	obeys := w.client(0).start(`trap 'touch term; exit 0' TERM; ` + untilGo)
	w.termGrace = time.Second // which the other one outlasts
	tasks := []*runningTask{obeys, w.client(1).start(`trap '' TERM; ` + untilGo)}
	for _, task := range tasks {
		task.everHas("started")
	}
	w.close("preempted by gang bert")
	for _, task := range tasks {
		result := task.wait()
		must.ErrorContains(t, result.Err, "preempted by gang bert")
	}
	must.True(t, tasks[0].has("term"))
	w.noClaims()
	run := w.run()
	must.Eq(t, ledger.RunFailed, run.Phase)
	must.True(t, run.Orderly)
	eventually(t, "the members are stopped", func() bool { return w.member(1).State == ledger.MemberStopped })
}

func TestClosingWhileWaiting(t *testing.T) {
	w := newWorld(t, 2)
	task := w.client(1).start(`exit 0`)
	task.everTold("waits for rank 0")
	w.close("not complete within 15m")
	must.ErrorContains(t, task.wait().Err, "not complete within 15m")
	w.noClaims()
}

func TestASlotThatIsGoneRevokesNothing(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	key := w.ledger.Keys().Slots(node(0))
	kept, err := w.store.Get(t.Context(), key)
	must.NoError(t, err)
	_, err = w.store.Txn(t.Context(), []ledger.Op{{Verb: ledger.Delete, Key: key}})
	must.NoError(t, err)
	w.put(key, ledger.SlotTable{Version: ledger.Version, Sequence: 2, Slots: []ledger.Slot{}})
	w.put(key, map[string]any{"version": 99})
	task.touch("go")
	task.everTold("started as rank 0")
	_, err = w.store.Txn(t.Context(), []ledger.Op{{Verb: ledger.Set, Key: key, Value: kept.Value}})
	must.NoError(t, err)
	must.True(t, task.wait().Successful())
}

func TestGangThatSucceededIsClosedAsWell(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	run := w.run()
	run.Phase = ledger.RunSucceeded
	w.put(w.ledger.Keys().Run(gangName, reservation), run)
	task.touch("go")
	w.close("finished")
	// Whichever of the two it sees first: the process ended well and the run says success, or the closing came first.
	result := task.wait()
	if !result.Successful() {
		must.ErrorContains(t, result.Err, "closing")
	}
}

func TestConsulOutage(t *testing.T) {
	w := newWorld(t, 2)
	over := w.outage()
	tasks := []*runningTask{w.client(0).start(untilGo), w.client(1).start(untilGo)}
	for _, task := range tasks {
		task.everTold("Consul can't be reached, trying on (claiming the slot)")
	}
	over()
	for _, task := range tasks {
		task.everHas("started")
		task.everTold("Consul can be reached again")
	}
	over = w.outage()
	tasks[0].touch("go")
	tasks[1].touch("go")
	tasks[1].everTold("has finished; waiting for the other members")
	over()
	for _, task := range tasks {
		must.True(t, task.wait().Successful())
	}
	w.noClaims()
}

func TestStopDuringOutage(t *testing.T) {
	w := newWorld(t, 1)
	over := w.outage()
	task := w.client(0).start(untilGo)
	task.everTold("Consul can't be reached")
	must.NoError(t, task.StopTask(task.cfg.ID, 5*time.Second, ""))
	must.False(t, task.wait().Successful())
	over()
	w.noClaims()
}

func TestClaimsAreKeptThroughAnOutage(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`exit 4`)
	task.everTold("exit code 4")
	over := w.outage()
	must.Eq(t, 4, task.wait().ExitCode) // Nomad learns it all the same
	over()
	w.noClaims()
}

func TestStrangersGetNoSlot(t *testing.T) {
	cases := map[string]func(*drivers.TaskConfig){
		"another namespace": func(c *drivers.TaskConfig) { c.Namespace = "other" },
		"another job":       func(c *drivers.TaskConfig) { c.JobID = "resnet2" },
		"another group":     func(c *drivers.TaskConfig) { c.TaskGroupName = "other" },
	}
	w := newWorld(t, 1)
	c := w.client(0)
	for title, change := range cases {
		t.Run(title, func(t *testing.T) {
			cfg := c.config(`exit 0`)
			change(cfg)
			must.ErrorContains(t, c.startConfig(cfg).wait().Err, "was granted to task train of group worker of job resnet")
			must.Eq(t, 0, w.claims(0))
		})
	}
}

func TestChildrenOfTheOwnerMayClaim(t *testing.T) {
	must.True(t, jobIs("resnet", "resnet"))
	must.True(t, jobIs("resnet/dispatch-1700000000-abc", "resnet"))
	must.True(t, jobIs("resnet/periodic-1700000000", "resnet"))
	must.False(t, jobIs("resnet/other", "resnet"))
	must.False(t, jobIs("resnet2", "resnet"))
}

func TestTaskWithoutASlot(t *testing.T) {
	w := newWorld(t, 1)
	c := w.client(0)
	cfg := c.config(`exit 0`)
	cfg.DeviceEnv = nil
	_, _, err := c.StartTask(cfg)
	must.ErrorContains(t, err, "has no slot of a gang (MUSTER_GANG, MUSTER_RESERVATION, MUSTER_NODE, MUSTER_RANK, MUSTER_SIZE missing")
}

func TestStopTask(t *testing.T) {
	w := newWorld(t, 2)
	tasks := []*runningTask{w.client(0).start(`trap 'touch int; exit 7' INT; ` + untilGo), w.client(1).start(untilGo)}
	tasks[0].everHas("started")
	tasks[1].everHas("started")
	must.NoError(t, tasks[0].StopTask(tasks[0].cfg.ID, patience, "SIGINT"))
	result := tasks[0].wait()
	must.Eq(t, 7, result.ExitCode)
	must.NoError(t, result.Err)
	must.True(t, tasks[0].has("int"))
	must.ErrorContains(t, tasks[1].wait().Err, "rank 0 on node n0 was stopped: stopped on request")
	must.True(t, w.run().Orderly)
	w.noClaims()
}

func TestStopTaskKillsInTime(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`trap '' TERM INT; sleep 600 & ` + untilGo)
	task.everHas("started")
	begun := time.Now()
	must.NoError(t, task.StopTask(task.cfg.ID, time.Second, ""))
	must.Less(t, patience, time.Since(begun), must.Sprint("the processes would live for ten minutes"))
	must.Eq(t, 9, task.wait().Signal)
	w.noClaims()
}

func TestDestroyRunningTask(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	must.Error(t, task.DestroyTask(task.cfg.ID, false))
	must.NoError(t, task.DestroyTask(task.cfg.ID, true))
	_, err := task.InspectTask(task.cfg.ID)
	must.ErrorContains(t, err, drivers.ErrTaskNotFound.Error())
	w.noClaims()
}

func TestHostsFileGoesThroughNoLink(t *testing.T) {
	w := newWorld(t, 1)
	c := w.client(0)
	cfg := c.config(untilGo)
	precious := filepath.Join(t.TempDir(), "precious")
	must.NoError(t, os.WriteFile(precious, []byte("kept"), 0o600))
	must.NoError(t, os.Symlink(precious, filepath.Join(cfg.TaskDir().LocalDir, hostsFile)))
	task := c.startConfig(cfg)
	task.everHas("started")
	text, err := os.ReadFile(precious)
	must.NoError(t, err)
	must.Eq(t, "kept", string(text))
	must.StrContains(t, task.read("local/"+hostsFile), "127.0.0.1 slots=2")
}

func TestProcessThatDoesNotStart(t *testing.T) {
	w := newWorld(t, 2)
	first := w.client(0).start(untilGo)
	second := w.client(1).start(``, func(c *TaskConfig) { c.Command = "no-such-program" })
	must.ErrorContains(t, second.wait().Err, `command "no-such-program" is not in the task's PATH`)
	must.True(t, strings.Contains(first.wait().Err.Error(), "rank 1 on node n1 failed"))
	w.noClaims()
}

// slowClaims are on their way when their caller gives up, and arrive later, as Consul's do.
type slowClaims struct {
	Ledger
	asked, arrive chan struct{}
}

func (s slowClaims) Claim(ctx context.Context, node string, c ledger.Claim, match func(ledger.Slot) error) (ledger.Slot, error) {
	close(s.asked)
	select {
	case <-s.arrive:
		return s.Ledger.Claim(ctx, node, c, match)
	case <-ctx.Done():
		go func() {
			<-s.arrive
			_, _ = s.Ledger.Claim(context.Background(), node, c, match)
		}()
		return ledger.Slot{}, ctx.Err()
	}
}

func TestAClaimThatArrivesAfterTheStopEndsAsWell(t *testing.T) {
	w := newWorld(t, 1)
	slow := slowClaims{asked: make(chan struct{}), arrive: make(chan struct{})}
	w.wrap = func(l Ledger) Ledger { slow.Ledger = l; return slow }
	c := w.client(0)
	task := c.start(`exit 0`)
	<-slow.asked
	must.NoError(t, task.StopTask(task.cfg.ID, time.Second, ""))
	must.False(t, task.wait().Successful())
	must.True(t, exists(task.dir(t)), must.Sprint("the task is cared for until the claim is known to be there or not"))
	close(slow.arrive)
	eventually(t, "it is cleared away", func() bool { return !exists(task.dir(t)) })
	must.Eq(t, 0, w.claims(0))
}

func (r *runningTask) dir(t *testing.T) string {
	t.Helper()
	return taskDir(r.stateDir, r.cfg.ID)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Nobody says anything twice: what is heard together with the end of a process that ended well is not lost on the exit
// barrier.
func TestNewsWithTheEndOfTheProcess(t *testing.T) {
	for range 50 { // whichever is looked at first
		for phase, why := range map[ledger.RunPhase]string{
			ledger.RunSucceeded: "", ledger.RunFailed: "its gang ended after this member had finished: rank 1 failed",
		} {
			runs, exits := make(chan ledger.Run, 1), make(chan exited, 1)
			runs <- ledger.Run{Phase: phase, Why: "rank 1 failed"}
			exits <- exited{}
			member := &task{runs: runs, stopped: make(chan struct{})}
			_, cause := member.watch(t.Context(), exits)
			must.Nil(t, cause)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			end, _ := member.awaitOthers(ctx)
			must.Eq(t, why, end.why)
			must.NoError(t, ctx.Err(), must.Sprint("it waits for ever"))
			cancel()
		}
		closing, exits := make(chan string, 1), make(chan exited, 1)
		closing <- "preempted"
		exits <- exited{}
		member := &task{closing: closing, stopped: make(chan struct{})}
		_, cause := member.watch(t.Context(), exits)
		must.Nil(t, cause)
		must.True(t, len(closing) == 1 || member.closes != nil)
	}
}
