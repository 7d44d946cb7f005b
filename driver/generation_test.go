// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// noting is a program that notes each of its starts, and runs until it may end.
const noting = `echo "$MUSTER_GENERATION $MUSTER_MASTER_PORT $$" >> starts; ` + untilGo

// stopForRestart ends the task as Nomad does before it starts it again, and forgets it.
func (r *runningTask) stopForRestart() *drivers.ExitResult {
	r.t.Helper()
	must.NoError(r.t, r.StopTask(r.cfg.ID, patience, ""))
	result := r.wait()
	must.NoError(r.t, r.DestroyTask(r.cfg.ID, true))
	return result
}

// startAgain starts the task again, as Nomad does in the same allocation: with another ID.
func (r *runningTask) startAgain() *runningTask {
	r.t.Helper()
	cfg := r.cfg.Copy()
	cfg.ID += "-again"
	must.NoError(r.t, cfg.EncodeConcreteDriverConfig(r.options()))
	return r.startConfig(cfg)
}

func (r *runningTask) options() *TaskConfig {
	r.t.Helper()
	var options TaskConfig
	must.NoError(r.t, r.cfg.DecodeDriverConfig(&options))
	return &options
}

// starts are the generations in which the task's program has started.
func (r *runningTask) starts() []string {
	if !r.has("starts") {
		return nil
	}
	var generations []string
	for line := range strings.Lines(r.read("starts")) {
		generations = append(generations, strings.Fields(line)[0])
	}
	return generations
}

func (w *world) startNoting(comeback time.Duration, change ...func(*TaskConfig)) []*runningTask {
	w.t.Helper()
	w.comeback = comeback
	tasks := make([]*runningTask, w.size)
	for rank := range tasks {
		tasks[rank] = w.client(rank).start(noting, change...)
	}
	w.everStarted(tasks, "1")
	return tasks
}

// everStarted waits until all tasks have started in these generations, and say that they run.
func (w *world) everStarted(tasks []*runningTask, generations ...string) {
	w.t.Helper()
	for rank, task := range tasks {
		eventually(w.t, fmt.Sprintf("rank %d has started in the generations %v", rank, generations), func() bool {
			return strings.Join(task.starts(), " ") == strings.Join(generations, " ") && w.member(rank).State == ledger.MemberRunning
		})
	}
}

func (w *world) finish(tasks []*runningTask) {
	w.t.Helper()
	for _, task := range tasks {
		task.touch("go")
	}
	for _, task := range tasks {
		must.True(w.t, task.wait().Successful())
	}
	must.Eq(w.t, ledger.RunSucceeded, w.run().Phase)
	w.noClaims()
}

func TestARestartOfOneIsANewGenerationOfAll(t *testing.T) {
	for rank := range 3 {
		t.Run(fmt.Sprintf("of rank %d", rank), func(t *testing.T) {
			w := newWorld(t, 3)
			tasks := w.startNoting(time.Minute)
			port := w.run().MasterPort
			for _, task := range tasks {
				pidOf(t, task)
			}
			tasks[rank].stopForRestart()
			must.Eq(t, 1, w.claims(rank), must.Sprint("its claim is kept for it"))
			for other, task := range tasks {
				if other != rank {
					task.everTold(fmt.Sprintf("starts again in place: rank %d on node n%d was told to end by Nomad", rank, rank))
					eventually(t, "it waits for the next generation", func() bool {
						member := w.member(other)
						return member.Generation == 2 && member.State == ledger.MemberArrived
					})
					status, err := task.InspectTask(task.cfg.ID)
					must.NoError(t, err)
					must.Eq(t, drivers.TaskStateRunning, status.State)
				}
			}
			tasks[rank] = tasks[rank].startAgain()
			w.everStarted(tasks, "1", "2")
			must.NotEq(t, port, w.run().MasterPort)
			for rank, task := range tasks {
				must.Eq(t, 1, w.claims(rank))
				task.everTold("generation 2, master")
			}
			w.finish(tasks)
		})
	}
}

func TestRestartsOfOneAfterAnother(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Minute)
	for i, generations := range [][]string{{"1", "2"}, {"1", "2", "3"}, {"1", "2", "3", "4"}} {
		rank := i % 2
		tasks[rank].stopForRestart()
		tasks[rank] = tasks[rank].startAgain()
		w.everStarted(tasks, generations...)
	}
	w.finish(tasks)
}

func TestARestartOfAllAtOnce(t *testing.T) {
	w := newWorld(t, 3)
	tasks := w.startNoting(time.Minute)
	for rank, task := range tasks {
		task.stopForRestart()
		tasks[rank] = task.startAgain()
	}
	eventually(t, "all run in one generation", func() bool {
		run := w.run()
		for rank := range tasks {
			if member := w.member(rank); member.State != ledger.MemberRunning || member.Generation != run.Generation {
				return false
			}
		}
		return run.Phase == ledger.RunRunning && run.Generation > 1
	})
	w.finish(tasks)
}

func TestAGangOfOneIsRestarted(t *testing.T) {
	w := newWorld(t, 1)
	tasks := w.startNoting(time.Minute)
	tasks[0].stopForRestart()
	tasks[0] = tasks[0].startAgain()
	w.everStarted(tasks, "1", "2")
	w.finish(tasks)
}

func TestAMemberThatHasFinishedRunsAgainWithTheOthers(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Minute)
	tasks[0].touch("go")
	eventually(t, "one has succeeded", func() bool { return w.member(0).State == ledger.MemberSucceeded })
	tasks[1].stopForRestart()
	eventually(t, "it waits for the next generation", func() bool { return w.member(0).Generation == 2 })
	tasks[1] = tasks[1].startAgain()
	eventually(t, "it has succeeded again", func() bool {
		return w.member(0).State == ledger.MemberSucceeded && strings.Join(tasks[0].starts(), " ") == "1 2"
	})
	w.finish(tasks)
}

// A member that has finished and is restarted at the exit barrier has not finished in the next generation.
func TestARestartAtTheExitBarrier(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Minute)
	tasks[0].touch("go")
	eventually(t, "one has succeeded", func() bool { return w.member(0).State == ledger.MemberSucceeded })
	must.False(t, tasks[0].stopForRestart().Successful())
	tasks[0] = tasks[0].startAgain()
	eventually(t, "both have started again", func() bool {
		return strings.Join(tasks[0].starts(), " ") == "1 2" && strings.Join(tasks[1].starts(), " ") == "1 2"
	})
	w.finish(tasks)
}

func TestARestartWhileWaiting(t *testing.T) {
	for rank := range 2 {
		t.Run(fmt.Sprintf("of rank %d", rank), func(t *testing.T) {
			w := newWorld(t, 2)
			w.comeback = time.Minute
			tasks := make([]*runningTask, 2)
			tasks[rank] = w.client(rank).start(noting)
			eventually(t, "it arrives", func() bool { return w.member(rank).State == ledger.MemberArrived })
			tasks[rank].stopForRestart()
			tasks[rank] = tasks[rank].startAgain()
			tasks[1-rank] = w.client(1 - rank).start(noting)
			w.everStarted(tasks, "2")
			w.finish(tasks)
		})
	}
}

// deaf hears nothing new of the run while it is deaf.
type deaf struct {
	Ledger
	hears atomic.Pointer[chan struct{}]
}

func (d *deaf) WatchRun(ctx context.Context, gang, reservation string, after uint64, wait time.Duration) (ledger.Versioned[ledger.Run], error) {
	run, err := d.Ledger.WatchRun(ctx, gang, reservation, after, wait)
	if hears := d.hears.Load(); wait > 0 && hears != nil {
		<-*hears
	}
	return run, err
}

// What a process makes of the loss of its peers does not fail a gang that starts again.
func TestAPeerThatFailsWhileItsGangStartsAgain(t *testing.T) {
	w := newWorld(t, 2)
	w.comeback = time.Minute
	tasks := []*runningTask{w.client(0).start(noting), nil}
	d := &deaf{}
	w.wrap = func(l Ledger) Ledger { d.Ledger = l; return d }
	tasks[1] = w.client(1).start(`[ $MUSTER_GENERATION -gt 1 ] && rm fail; ` + noting[:len(noting)-len(untilGo)] +
		`while [ ! -e go ]; do [ ! -e fail ] || exit 5; sleep 0.05; done`)
	w.everStarted(tasks, "1")
	hears := make(chan struct{})
	d.hears.Store(&hears)
	tasks[0].stopForRestart()
	tasks[1].touch("fail")
	eventually(t, "it waits for the next generation", func() bool {
		member := w.member(1)
		return member.Generation == 2 && member.State == ledger.MemberArrived
	})
	d.hears.Store(nil)
	close(hears)
	tasks[0] = tasks[0].startAgain()
	w.everStarted(tasks, "1", "2")
	w.finish(tasks)
}

func TestARestartCheckpointsAllFirst(t *testing.T) {
	w := newWorld(t, 2)
	w.comeback = time.Minute
	tasks := []*runningTask{w.client(0).start(saving, saves("")), w.client(1).start(saving, saves(""))}
	for rank, task := range tasks {
		task.everHas("started")
		eventually(t, "it says that it runs", func() bool { return w.member(rank).State == ledger.MemberRunning })
	}
	tasks[1].stopForRestart()
	for _, task := range tasks {
		task.everHas("ckpt/step-1.pt")
	}
	tasks[1] = tasks[1].startAgain()
	eventually(t, "both run again", func() bool {
		return w.member(0).State == ledger.MemberRunning && w.member(0).Generation == 2 &&
			w.member(1).State == ledger.MemberRunning && w.member(1).Generation == 2
	})
	w.finish(tasks)
}

func TestAMemberThatDoesNotComeBackEndsTheGang(t *testing.T) {
	for rank := range 2 {
		t.Run(fmt.Sprintf("rank %d", rank), func(t *testing.T) {
			w := newWorld(t, 2)
			tasks := w.startNoting(time.Second)
			tasks[rank].stopForRestart()
			err := tasks[1-rank].wait().Err
			must.ErrorContains(t, err, fmt.Sprintf("rank %d on node n%d was stopped: stopped on request", rank, rank))
			must.Eq(t, ledger.RunFailed, w.run().Phase)
			must.True(t, w.run().Orderly)
			must.Eq(t, ledger.MemberStopped, w.member(rank).State)
			w.noClaims()
			must.ErrorContains(t, tasks[rank].startAgain().wait().Err, "can't join the run of gang resnet50 on reservation r1, which has failed")
			w.noClaims()
		})
	}
}

// A slot that is closing lets nobody in again, so that nobody is waited for.
func TestNobodyComesBackToAClosingSlot(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Hour)
	tasks[0].stopForRestart()
	eventually(t, "the other waits", func() bool { return w.member(1).Generation == 2 })
	w.close("job resnet was stopped")
	must.ErrorContains(t, tasks[1].wait().Err, "job resnet was stopped")
	w.noClaims()
	eventually(t, "it says so", func() bool { return w.member(0).State == ledger.MemberStopped })
}

// The agent has lost its state and starts an allocation's task beside one that it does not know any more.
func TestASecondStartEndsTheFirst(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Minute)
	pid := pidOf(t, tasks[1])
	tasks[1] = tasks[1].startAgain()
	w.everStarted(tasks, "1", "2")
	must.Error(t, syscall.Kill(pid, 0))
	w.finish(tasks)
}

func TestRestartsThroughRestartsOfThePlugin(t *testing.T) {
	t.Run("of a member that waits for the next generation", func(t *testing.T) {
		w := newWorld(t, 2)
		tasks := w.startNoting(time.Minute)
		tasks[1].stopForRestart()
		eventually(t, "the other waits", func() bool { return w.member(0).Generation == 2 })
		tasks[0].restart()
		must.NoError(t, tasks[0].recover())
		tasks[1] = tasks[1].startAgain()
		w.everStarted(tasks, "1", "2")
		w.finish(tasks)
	})
	t.Run("of the one that comes back", func(t *testing.T) {
		w := newWorld(t, 2)
		tasks := w.startNoting(time.Minute)
		tasks[1].stopForRestart()
		tasks[1].restart()
		must.ErrorContains(t, tasks[1].DestroyTask(tasks[1].cfg.ID, true), drivers.ErrTaskNotFound.Error())
		tasks[1] = tasks[1].startAgain()
		w.everStarted(tasks, "1", "2")
		w.finish(tasks)
	})
	t.Run("of the leading one that comes back, and of it again when it has", func(t *testing.T) {
		w := newWorld(t, 2)
		tasks := w.startNoting(time.Minute)
		tasks[0].stopForRestart()
		tasks[0].restart()
		tasks[0] = tasks[0].startAgain()
		w.everStarted(tasks, "1", "2")
		tasks[0].restart()
		must.NoError(t, tasks[0].recover())
		tasks[1].restart()
		must.NoError(t, tasks[1].recover())
		w.everStarted(tasks, "1", "2")
		must.Eq(t, ledger.RunRunning, w.run().Phase)
		w.finish(tasks)
	})
	t.Run("of a member whose process ends for the next generation", func(t *testing.T) {
		w := newWorld(t, 2)
		w.comeback = time.Minute
		tasks := []*runningTask{
			w.client(0).start(`trap 'touch asked; while [ ! -e end ]; do sleep 0.05; done; exit 0' TERM; ` + noting),
			w.client(1).start(noting),
		}
		w.everStarted(tasks, "1")
		tasks[1].stopForRestart()
		tasks[0].everHas("asked")
		tasks[0].restart()
		must.NoError(t, tasks[0].recover())
		tasks[1] = tasks[1].startAgain()
		must.Eq(t, []string{"1"}, tasks[1].starts())
		tasks[0].touch("end")
		w.everStarted(tasks, "1", "2")
		w.finish(tasks)
	})
}
