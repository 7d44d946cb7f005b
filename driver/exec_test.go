// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/shoenig/test/must"
)

// exec runs a shell script in the task the way `nomad alloc exec` does: over the plugin's protocol.
func (r *runningTask) exec(script, input string, tty bool) (stdout, stderr string, exit *drivers.ExitResult) {
	r.t.Helper()
	raw, ok := r.DriverPlugin.(drivers.ExecTaskStreamingRawDriver)
	must.True(r.t, ok)
	stream := &execStream{in: make(chan *drivers.ExecTaskStreamingRequestMsg, 4)}
	if input != "" {
		stream.in <- &drivers.ExecTaskStreamingRequestMsg{Stdin: &proto.ExecTaskStreamingIOOperation{Data: []byte(input)}}
	}
	if !tty {
		stream.in <- &drivers.ExecTaskStreamingRequestMsg{Stdin: &proto.ExecTaskStreamingIOOperation{Close: true}}
	}
	must.NoError(r.t, raw.ExecTaskStreamingRaw(r.t.Context(), r.cfg.ID, []string{"/bin/sh", "-c", script}, tty, stream))
	must.NotNil(r.t, stream.exit)
	return stream.stdout.String(), stream.stderr.String(), stream.exit
}

func TestExecStreaming(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(untilGo)
	task.everHas("started")
	pidOf(t, task)
	t.Run("output and exit code", func(t *testing.T) {
		stdout, stderr, exit := task.exec(`echo out; echo err >&2; exit 43`, "", false)
		must.Eq(t, "out\n", stdout)
		must.Eq(t, "err\n", stderr)
		must.Eq(t, 43, exit.ExitCode)
	})
	t.Run("input", func(t *testing.T) {
		stdout, _, exit := task.exec(`cat`, "hello\n", false)
		must.Eq(t, "hello\n", stdout)
		must.Eq(t, 0, exit.ExitCode)
	})
	t.Run("the task's own environment, directory and session", func(t *testing.T) {
		stdout, _, _ := task.exec(`echo $MUSTER_GANG $MUSTER_GENERATION; pwd; ls`, "", false)
		must.StrContains(t, stdout, gangName+" 1\n"+task.cfg.TaskDir().Dir+"\n")
		must.StrContains(t, stdout, "started")
	})
	t.Run("a terminal", func(t *testing.T) {
		stdout, _, exit := task.exec(`test -t 0 && test -t 1 && test -t 2 && read line && echo "got $line"; tty < /dev/tty`, "word\n", true)
		must.StrContains(t, stdout, "got word")
		must.StrContains(t, stdout, "/dev/")
		must.Eq(t, 0, exit.ExitCode)
	})
	t.Run("a command that is not there", func(t *testing.T) {
		_, err := task.ExecTask(task.cfg.ID, []string{"no-such-command"}, patience)
		must.ErrorContains(t, err, "not in the task's PATH")
	})
	t.Run("script checks", func(t *testing.T) {
		result, err := task.ExecTask(task.cfg.ID, []string{"/bin/sh", "-c", "echo fine; exit 2"}, patience)
		must.NoError(t, err)
		must.Eq(t, "fine\n", string(result.Stdout))
		must.Eq(t, 2, result.ExitResult.ExitCode)
	})
	t.Run("a script check that hangs", func(t *testing.T) {
		begun := time.Now()
		_, err := task.ExecTask(task.cfg.ID, []string{"/bin/sleep", "600"}, 200*time.Millisecond)
		must.Error(t, err)
		must.Less(t, patience, time.Since(begun))
	})
}

func TestSignalTask(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`trap 'touch hup' HUP; ` + untilGo)
	task.everHas("started")
	pidOf(t, task)
	must.NoError(t, task.SignalTask(task.cfg.ID, "SIGHUP"))
	task.everHas("hup")
	must.ErrorContains(t, task.SignalTask(task.cfg.ID, "SIGNONSENSE"), "not a signal")
	must.ErrorContains(t, task.SignalTask("nobody", "SIGHUP"), drivers.ErrTaskNotFound.Error())
}

func TestSignalWhileWaiting(t *testing.T) {
	w := newWorld(t, 2)
	task := w.client(1).start(untilGo)
	must.ErrorContains(t, task.SignalTask(task.cfg.ID, "SIGHUP"), "waits for its gang")
}

func TestTaskStats(t *testing.T) {
	w := newWorld(t, 1)
	task := w.client(0).start(`touch started; while [ ! -e go ]; do :; done`)
	task.everHas("started")
	pidOf(t, task)
	stats, err := task.TaskStats(t.Context(), task.cfg.ID, 100*time.Millisecond)
	must.NoError(t, err)
	deadline := time.After(patience)
	for {
		select {
		case usage := <-stats:
			cpu, memory := usage.ResourceUsage.CpuStats, usage.ResourceUsage.MemoryStats
			if cpu.Percent > 1 && memory.Usage > 0 {
				return
			}
		case <-deadline:
			t.Fatal("no statistics of a busy task")
		}
	}
}

func TestTaskThatUsesTooMuchMemory(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := newWorld(t, 1)
	c := w.client(0)
	cfg := c.config(`head -c 200m /dev/zero | tail -c 190m > /dev/null`)
	cfg.Resources.LinuxResources.MemoryLimitBytes = 32 << 20
	task := c.startConfig(cfg)
	result := task.wait()
	if !result.OOMKilled && task.told("Isolation: ") {
		t.Skip("no writable cgroups here")
	}
	must.True(t, result.OOMKilled)
	task.everTold("out of memory")
}

// execStream stands for Nomad's client.
type execStream struct {
	in             chan *drivers.ExecTaskStreamingRequestMsg
	stdout, stderr bytes.Buffer
	exit           *drivers.ExitResult
}

func (s *execStream) Send(m *drivers.ExecTaskStreamingResponseMsg) error {
	if m.Stdout != nil {
		s.stdout.Write(m.Stdout.Data)
	}
	if m.Stderr != nil {
		s.stderr.Write(m.Stderr.Data)
	}
	if m.Exited {
		s.exit = &drivers.ExitResult{ExitCode: int(m.Result.ExitCode), Signal: int(m.Result.Signal)}
	}
	return nil
}

func (s *execStream) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	m, ok := <-s.in
	if !ok {
		return nil, io.EOF
	}
	return m, nil
}
