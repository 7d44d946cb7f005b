// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/placer/ledger"
)

// restart ends the plugin's process and begins another, as Nomad's agent does when it is killed or stopped.
func (r *runningTask) restart() {
	r.t.Helper()
	r.kill()
	r.startPlugin()
}

// recover hands the task back to the plugin as Nomad does: without the driver's block, and without the environment and the
// paths of its devices.
func (r *runningTask) recover() error {
	handle := r.handle.Copy()
	handle.Config = &drivers.TaskConfig{ID: r.cfg.ID, AllocID: r.cfg.AllocID, Name: r.cfg.Name, AllocDir: r.cfg.AllocDir, JobID: r.cfg.JobID}
	return r.RecoverTask(handle)
}

func TestRecoverRunningTask(t *testing.T) {
	w := newWorld(t, 2)
	tasks := []*runningTask{w.client(0).start(`echo $$ > pid; ` + untilGo), w.client(1).start(`echo $$ > pid; ` + untilGo)}
	for rank, task := range tasks {
		task.everHas("started")
		eventually(t, "it says that it runs", func() bool { return w.member(rank).State == ledger.MemberRunning })
	}
	for _, task := range tasks {
		task.restart()
		must.NoError(t, task.recover())
		must.NoError(t, task.recover()) // Nomad may ask twice
		eventually(t, "the process is found again", func() bool {
			status, err := task.InspectTask(task.cfg.ID)
			must.NoError(t, err)
			return status.DriverAttributes["pid"]+"\n" == task.read("pid")
		})
	}
	must.Eq(t, ledger.RunRunning, w.run().Phase)
	for _, task := range tasks {
		task.touch("go")
	}
	for _, task := range tasks {
		must.True(t, task.wait().Successful())
	}
	w.noClaims()
}

func TestRecoverWhileWaiting(t *testing.T) {
	w := newWorld(t, 2)
	first := w.client(0).start(`exit 0`)
	eventually(t, "it arrives", func() bool { return w.member(0).State == ledger.MemberArrived })
	first.restart()
	must.NoError(t, first.recover())
	second := w.client(1).start(`exit 0`)
	must.True(t, first.wait().Successful())
	must.True(t, second.wait().Successful())
}

func TestRecoverAfterTheProcessEnded(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo + `exit 6`)
	task.everHas("started")
	pid := pidOf(t, task)
	task.kill()
	task.touch("go")
	eventually(t, "the process has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	task.startPlugin()
	must.NoError(t, task.recover())
	must.Eq(t, 6, task.wait().ExitCode)
	w.noClaims()
}

func pidOf(t *testing.T, task *runningTask) int {
	t.Helper()
	var pid int
	eventually(t, "its PID is known", func() bool {
		status, err := task.InspectTask(task.cfg.ID)
		must.NoError(t, err)
		pid, err = strconv.Atoi(status.DriverAttributes["pid"])
		return err == nil
	})
	return pid
}

func TestRecoverAtTheExitBarrier(t *testing.T) {
	w := newWorld(t, 2)
	tasks := []*runningTask{w.client(0).start(`exit 0`), w.client(1).start(untilGo)}
	eventually(t, "one has succeeded", func() bool { return w.member(0).State == ledger.MemberSucceeded })
	tasks[0].restart()
	must.NoError(t, tasks[0].recover())
	tasks[1].touch("go")
	for _, task := range tasks {
		must.True(t, task.wait().Successful())
	}
}

func TestSupervisorDies(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`sleep 600 & ` + untilGo)
	task.everHas("started")
	pidOf(t, task)
	status, err := task.InspectTask(task.cfg.ID)
	must.NoError(t, err)
	supervisor, err := strconv.Atoi(status.DriverAttributes["supervisor_pid"])
	must.NoError(t, err)
	must.NoError(t, syscall.Kill(supervisor, syscall.SIGKILL))
	must.ErrorContains(t, task.wait().Err, "the task's supervisor died")
	eventually(t, "its last word tells that nobody knows how it ended", func() bool { return w.member(0).Lost })
	w.noClaims()
}

func TestClaimEndsAfterARestartThatCutTheEndShort(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	pidOf(t, task)
	eventually(t, "it says that it runs", func() bool { return w.member(0).State == ledger.MemberRunning })
	over := w.outage()
	task.touch("go")
	task.everTold("Consul can't be reached")
	task.restart() // the process has ended, nobody has heard of it, and Nomad has forgotten the task
	over()
	must.Eq(t, 1, w.claims(0))
	eventually(t, "its processes are gone", func() bool {
		task.plugin.sweep(t.Context())
		return w.claims(0) == 0
	})
}

func TestSweepLeavesRunningTasksAlone(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	pid := pidOf(t, task)
	task.restart()
	task.plugin.sweep(t.Context())
	must.Eq(t, 1, w.claims(0))
	must.NoError(t, syscall.Kill(pid, 0))
	must.NoError(t, task.recover())
	task.touch("go")
	must.True(t, task.wait().Successful())
}

func TestSweepEndsTasksThatNomadHasLost(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	pid := pidOf(t, task)
	task.restart()
	task.plugin.sweepLost(t.Context())
	must.Eq(t, 1, w.claims(0))
	must.NoError(t, syscall.Kill(pid, 0), must.Sprint("Nomad may still recover it"))
	must.NoError(t, os.RemoveAll(task.cfg.AllocDir))
	task.plugin.sweepLost(t.Context())
	w.noClaims()
	must.Error(t, syscall.Kill(pid, 0))
}

// Nomad could not recover a task and starts it again: what is left of it ends first, and its claim is never without an
// owner while its processes run.
func TestStartedAgainInsteadOfRecovered(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	pid := pidOf(t, task)
	eventually(t, "it says that it runs", func() bool { return w.member(0).State == ledger.MemberRunning })
	task.restart()
	cfg := task.config(`touch started-again`)
	again := task.startConfig(cfg)
	must.True(t, again.wait().Successful())
	must.Error(t, syscall.Kill(pid, 0))
	w.noClaims()
	must.True(t, again.has("started-again"))
	must.Eq(t, 2, w.run().Generation)
}

func TestRecoverUnknown(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`exit 0`)
	must.True(t, task.wait().Successful())
	must.NoError(t, task.DestroyTask(task.cfg.ID, false))
	w.noClaims()
	must.ErrorContains(t, task.recover(), "has ended")
	must.ErrorContains(t, task.DestroyTask(task.cfg.ID, true), drivers.ErrTaskNotFound.Error())
	newer := task.handle.Copy()
	newer.Version = handleVersion + 1
	must.ErrorContains(t, task.RecoverTask(newer), "newer version")
	must.NoError(t, os.MkdirAll(taskDir(task.stateDir, "newer"), 0o700))
	must.NoError(t, save(filepath.Join(taskDir(task.stateDir, "newer"), taskFile), savedTask{Version: handleVersion + 1}))
	_, err := loadTask(taskDir(task.stateDir, "newer"))
	must.ErrorContains(t, err, "newer version")
	newer = &drivers.TaskHandle{Version: handleVersion, Config: task.cfg, DriverState: []byte("rubbish")}
	must.Error(t, task.RecoverTask(newer))
}

func TestWaitTaskDeliversOnceToEachCaller(t *testing.T) {
	w := newWorld(t, 1)
	c := w.client(0)
	task := c.start(untilGo)
	one, err := c.plugin.WaitTask(t.Context(), task.cfg.ID)
	must.NoError(t, err)
	two, err := c.plugin.WaitTask(t.Context(), task.cfg.ID)
	must.NoError(t, err)
	task.everHas("started")
	task.touch("go")
	for _, results := range []<-chan *drivers.ExitResult{one, two} {
		select {
		case result := <-results:
			must.True(t, result.Successful())
		case <-time.After(patience):
			t.Fatal("no result")
		}
		_, more := <-results
		must.False(t, more)
	}
}

// A member that was being ended ends so, whatever its process makes of the signal: leaving well is not success.
func TestRecoverWhileEnding(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`trap 'touch asked; while [ ! -e go ]; do sleep 0.05; done; exit 0' TERM; ` + untilGo)
	task.everHas("started")
	pid := pidOf(t, task)
	eventually(t, "it says that it runs", func() bool { return w.member(0).State == ledger.MemberRunning })
	over := w.outage()
	go func() { _ = task.StopTask(task.cfg.ID, patience, "") }()
	task.everHas("asked")
	task.kill()
	task.touch("go")
	eventually(t, "the process has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	task.startPlugin()
	must.NoError(t, task.recover())
	must.False(t, task.wait().Successful())
	over()
	eventually(t, "the ledger says so", func() bool { return w.run().Phase == ledger.RunFailed })
	w.noClaims()
}

// A Consul that is slow to answer does not hold up the recovery of a task whose process runs.
func TestRecoverWithASlowLedger(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	pidOf(t, task)
	w.wrap = func(l Ledger) Ledger { return hangingGang{l} }
	task.restart()
	must.NoError(t, task.recover())
	task.touch("go")
	must.True(t, task.wait().Successful())
}

type hangingGang struct{ Ledger }

func (hangingGang) GetGang(ctx context.Context, _ string) (ledger.Versioned[ledger.Gang], error) {
	<-ctx.Done()
	return ledger.Versioned[ledger.Gang]{}, ctx.Err()
}

// A start that took too long was given up, and the process came up after all.
func TestAProcessThatNobodyWantsEndsBeforeTheClaim(t *testing.T) {
	w := newWorld(t, 1)
	c := w.client(0)
	dir := taskDir(c.stateDir, "a")
	must.NoError(t, os.MkdirAll(processDir(dir), 0o700))
	process, err := launch.Start(t.Context(), processDir(dir), launch.Spec{
		Name: "unwanted-" + strconv.Itoa(os.Getpid()), Command: "/bin/sleep", Args: []string{"600"}, Dir: "/", Limits: launch.Limits{Parent: "muster-test"},
	})
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must.NoError(t, c.plugin.clear(ctx, w.ledger, dir, gang.Seat{Gang: gangName, Reservation: reservation, Node: node(0)}, c.plugin.logger))
	must.Error(t, syscall.Kill(process.State().Main, 0))
}

func TestSweepRemovesWhatNeverBecameATask(t *testing.T) {
	w := newWorld(t, 1)
	c := w.client(0)
	dir := taskDir(c.stateDir, "a")
	must.NoError(t, os.MkdirAll(processDir(dir), 0o700))
	c.plugin.sweep(t.Context())
	must.False(t, exists(dir))
}
