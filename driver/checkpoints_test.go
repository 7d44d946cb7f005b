// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// saving is a program that saves at each SIGUSR1 and notes when.
const saving = `
	trap 'n=$((n+1)); date +%s.%N >> asked; mkdir -p ckpt; echo data > ckpt/.step-$n.pt; mv ckpt/.step-$n.pt ckpt/step-$n.pt' USR1
	touch started
	while [ ! -e go ]; do sleep 0.02; done
`

func saves(interval string) func(*TaskConfig) {
	return func(c *TaskConfig) {
		c.Checkpoint = &CheckpointConfig{Interval: interval, Signal: "SIGUSR1", Timeout: "1m", Path: "ckpt"}
	}
}

func TestCheckpointsOnTheInterval(t *testing.T) {
	const interval = 3 * time.Second
	w := newWorld(t, 1)
	task := w.client(0).start(saving, saves(interval.String()))
	task.everTold("Checkpoint 2 finished in ")
	last := w.member(0)
	must.NotNil(t, last.Checkpoint)
	must.GreaterEq(t, 2, last.Checkpoint.Count)
	must.StrHasPrefix(t, "step-", last.Checkpoint.Entry)
	must.Positive(t, last.Checkpoint.TookMS)
	// Two in a row within a second of when they are due: a machine that is busy with other things may be late for others.
	eventually(t, "checkpoints are asked for when they are due", func() bool {
		inTime := 0
		for _, text := range strings.Fields(task.read("asked")) {
			seconds, err := strconv.ParseFloat(text, 64)
			must.NoError(t, err)
			late := time.UnixMicro(int64(seconds * 1e6)).Sub(*last.Started)
			if late -= late.Round(interval); late.Abs() < time.Second {
				inTime++
			} else {
				inTime = 0
			}
			if inTime == 2 {
				return true
			}
		}
		return false
	})
	task.touch("go")
	must.True(t, task.wait().Successful())
}

func TestAnEndCheckpointsFirst(t *testing.T) {
	cases := map[string]func(*world, *runningTask){
		"stopped by Nomad": func(w *world, r *runningTask) {
			must.NoError(w.t, r.StopTask(r.cfg.ID, patience, ""))
		},
		"its slot is closing": func(w *world, _ *runningTask) { w.close("preempted") },
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			task := w.client(0).start(saving, saves(""))
			task.everHas("started")
			pidOf(t, task)
			end(w, task)
			must.False(t, task.wait().Successful())
			task.everTold("Checkpoint 1 finished in ")
			must.True(t, task.has("ckpt/step-1.pt"))
			eventually(t, "the ledger says so", func() bool { return w.member(0).State == ledger.MemberStopped })
			must.Eq(t, "step-1.pt", w.member(0).Checkpoint.Entry)
			w.noClaims()
		})
	}
}

func TestACrashedGangIsNotAskedToCheckpoint(t *testing.T) {
	w := newWorld(t, 2)
	tasks := []*runningTask{w.client(0).start(saving, saves("")), w.client(1).start(untilGo + `exit 1`)}
	tasks[0].everHas("started")
	tasks[1].everHas("started")
	tasks[1].touch("go")
	must.False(t, tasks[0].wait().Successful())
	must.False(t, tasks[0].has("asked"))
}

func TestAnUncaughtSignalIsNotSent(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo, saves("1s"))
	task.everTold("Checkpoint not asked for: no process of the task catches SIGUSR1 (it would be killed by it)")
	must.StrContains(t, w.member(0).Checkpoint.Problem, "no process")
	task.touch("go")
	must.True(t, task.wait().Successful())
}

func TestACheckpointThatIsNotSeen(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`trap : USR1; `+untilGo, func(c *TaskConfig) {
		c.Checkpoint = &CheckpointConfig{Interval: "1s", Signal: "SIGUSR1", Timeout: "1s", Path: "ckpt"}
	})
	task.everTold("Checkpoint 1 not seen within 1s")
	eventually(t, "the ledger says so", func() bool {
		last := w.member(0).Checkpoint
		return last != nil && last.Problem == "not seen within 1s"
	})
	task.touch("go")
	must.True(t, task.wait().Successful())
}

// A launcher that dies of the signal, with workers that catch it: only they get it.
func TestALauncherIsNeverTheTarget(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	w := newWorld(t, 1)
	c := w.client(0)
	cfg := c.config("", saves("1s"), func(c *TaskConfig) { c.Command, c.Args = python, []string{"torchrun"} })
	dir := cfg.TaskDir().Dir + "/"
	must.NoError(t, os.WriteFile(dir+"torchrun", []byte(`
import os, subprocess, sys, time
workers = [subprocess.Popen([sys.executable, "worker.py", str(i)]) for i in range(2)]
sys.exit(max(w.wait() for w in workers))
`), 0o600))
	must.NoError(t, os.WriteFile(dir+"worker.py", []byte(`
import os, signal, sys, time
def save(*_):
    os.makedirs("ckpt", exist_ok=True)
    open("ckpt/rank-%s.pt" % sys.argv[1], "a").write("data")
signal.signal(signal.SIGUSR1, save)
open("started-%s" % sys.argv[1], "w")
while not os.path.exists("go"):
    time.sleep(0.05)
`), 0o600))
	task := c.startConfig(cfg)
	task.everTold("Checkpoint 1 finished in ")
	task.everHas("ckpt/rank-0.pt")
	task.everHas("ckpt/rank-1.pt")
	task.touch("go")
	result := task.wait()
	must.True(t, result.Successful(), must.Sprint(result))
}

// Without a path nobody can see when a checkpoint is finished, so nothing waits for it but an end.
func TestCheckpointsWithoutAPath(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`trap 'echo . >> asked' USR1; `+untilGo, func(c *TaskConfig) {
		c.Checkpoint = &CheckpointConfig{Interval: "1s", Signal: "SIGUSR1", Timeout: "1h"}
	})
	eventually(t, "it is asked on the interval", func() bool { return task.has("asked") && len(strings.Fields(task.read("asked"))) >= 2 })
	must.NoError(t, task.StopTask(task.cfg.ID, 4*time.Second, ""))
	last := w.member(0).Checkpoint
	must.NotNil(t, last)
	must.Eq(t, last.Count, len(strings.Fields(task.read("asked"))))
	task.everTold("Checkpoint 3 asked for")
}
