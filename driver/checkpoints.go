// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/checkpoint"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/driver/launch/proc"
	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	// scanEvery is between two looks at the checkpoint path while one is being written.
	scanEvery = 100 * time.Millisecond
	// scanShare is how many times longer than a look itself the pause after it is: a path may hold many thousand files on
	// a file system that others use as well.
	scanShare = 4
	// baselinePatience is how long a checkpoint is held up to see what was there before it.
	baselinePatience = 500 * time.Millisecond
)

// checkpointer asks one process for checkpoints, one at a time: on the declared interval, and when its end comes.
type checkpointer struct {
	task    *task
	process *launch.Task
	want    checkpointSettings
	asks    chan chan struct{}
	stop    func() // asks for nothing more
}

// newCheckpointer begins to ask, until stop or the end of ctx.
func newCheckpointer(ctx context.Context, t *task, process *launch.Task) *checkpointer {
	ctx, stop := context.WithCancel(ctx)
	c := &checkpointer{task: t, process: process, want: *t.opts.checkpoint, asks: make(chan chan struct{}, 1), stop: stop}
	go c.run(ctx)
	return c
}

// ask asks for a checkpoint now and returns a channel that is closed when it is over, well or not. One that is on its way
// already is waited for first: its content may be older than the request.
func (c *checkpointer) ask() <-chan struct{} {
	over := make(chan struct{})
	c.asks <- over
	return over
}

// run lives until the process ends, or is told to.
func (c *checkpointer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if c.want.interval > 0 {
			timer.Reset(time.Until(checkpoint.Next(c.process.State().Started, c.want.interval, time.Now())))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
			c.checkpoint(ctx)
		case over := <-c.asks:
			if c.checkpoint(ctx) && c.want.path == "" {
				pause(ctx, c.want.timeout) // it may be finished then
			}
			close(over)
		}
	}
}

// checkpoint does one, from the signal to the finished entry where a path is declared, and says whether it asked for one.
func (c *checkpointer) checkpoint(ctx context.Context) (asked bool) {
	before := c.scanAside()
	targets, why := c.targets(ctx)
	if why != "" {
		c.task.tellf("Checkpoint not asked for: %s", why)
		c.task.member.update(func(m *ledger.Member) { m.Checkpoint = problem(m.Checkpoint, why) })
		return false
	}
	var baseline []checkpoint.Entry
	if before != nil {
		baseline = before.within(baselinePatience)
	}
	if err := c.process.Signal(ctx, c.want.signal, targets...); err != nil {
		c.task.logger.Warn("some processes did not get the checkpoint signal", "error", err)
	}
	at := time.Now().UTC()
	count := 1
	c.task.member.update(func(m *ledger.Member) {
		if m.Checkpoint != nil {
			count = m.Checkpoint.Count + 1
		}
		m.Checkpoint = &ledger.Checkpoint{Count: count, Requested: at}
	})
	if c.want.path == "" {
		c.task.tellf("Checkpoint %d asked for; no path is declared, so nobody can see whether it is finished", count)
		return true
	}
	if baseline == nil {
		baseline = before.wait(ctx)
	}
	c.await(ctx, count, at, baseline)
	return true
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// await watches the checkpoint path until a new checkpoint is finished there, or the timeout.
func (c *checkpointer) await(ctx context.Context, count int, asked time.Time, baseline []checkpoint.Entry) {
	watch := checkpoint.NewWatch(baseline)
	timeout := time.NewTimer(time.Until(asked.Add(c.want.timeout)))
	defer timeout.Stop()
	look := time.NewTimer(scanEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timeout.C:
			text := fmt.Sprintf("not seen within %s", c.want.timeout)
			c.task.tellf("Checkpoint %d %s", count, text)
			c.task.member.update(func(m *ledger.Member) { m.Checkpoint = problem(m.Checkpoint, text) })
			return
		case <-look.C:
		}
		began := time.Now()
		entries, err := checkpoint.Scan(c.want.path)
		look.Reset(max(scanEvery, scanShare*time.Since(began)))
		if err != nil {
			c.task.logger.Warn("the checkpoint path can't be read", "path", c.want.path, "error", err)
			continue
		}
		if finished, ok := watch.Observe(time.Now(), entries); ok {
			c.finished(count, asked, finished)
			return
		}
	}
}

func (c *checkpointer) finished(count int, asked time.Time, finished checkpoint.Finished) {
	took, at := finished.At.Sub(asked), finished.At.UTC()
	c.task.member.update(func(m *ledger.Member) {
		m.Checkpoint = &ledger.Checkpoint{Count: count, Requested: asked, Completed: &at, TookMS: took.Milliseconds(), Entry: finished.Entry}
	})
	c.task.tellf("Checkpoint %d finished in %.1fs: %s", count, took.Seconds(), finished.Entry)
}

// problem is the last checkpoint with what went wrong.
func problem(last *ledger.Checkpoint, why string) *ledger.Checkpoint {
	next := ledger.Checkpoint{Requested: time.Now().UTC()}
	if last != nil {
		next = *last
	}
	next.Problem = why
	return &next
}

// targets are the processes to signal, or why there are none.
func (c *checkpointer) targets(ctx context.Context) ([]int, string) {
	processes, err := c.process.Processes(ctx)
	if err != nil {
		return nil, "the task's processes are not known: " + err.Error()
	}
	if chosen := checkpoint.Targets(processes, c.want.signal, c.users()); len(chosen) > 0 {
		return chosen, ""
	}
	return nil, fmt.Sprintf("no process of the task catches %s (it would be killed by it): %s", unix.SignalName(c.want.signal), commands(processes))
}

func commands(processes []proc.Process) string {
	const most = 3
	const words = 2 // the program and its script; what follows may be secret
	var texts []string
	for _, p := range processes[:min(len(processes), most)] {
		texts = append(texts, fmt.Sprintf("%d %s", p.PID, strings.Join(p.Args[:min(len(p.Args), words)], " ")))
	}
	if len(processes) > most {
		texts = append(texts, fmt.Sprintf("%d more", len(processes)-most))
	}
	return strings.Join(texts, ", ")
}

// users are the processes that use the task's GPUs; none where NVML does not say.
func (c *checkpointer) users() []int {
	hardware := c.task.plugin.nvml()
	if hardware == nil {
		return nil
	}
	var pids []int
	for uuid := range strings.SplitSeq(c.task.cfg.DeviceEnv["MUSTER_GPUS"], ",") {
		processes, err := hardware.Processes(uuid)
		if err != nil {
			c.task.logger.Debug("the users of a GPU are not known", "gpu", uuid, "error", err)
		}
		for _, p := range processes {
			pids = append(pids, p.PID)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// scan is a look at the checkpoint path that may take its time: a file system that hangs holds up nobody.
type scan chan []checkpoint.Entry

func (c *checkpointer) scanAside() scan {
	if c.want.path == "" {
		return nil
	}
	result := make(scan, 1)
	go func() {
		entries, err := checkpoint.Scan(c.want.path)
		if err != nil {
			c.task.logger.Warn("the checkpoint path can't be read", "path", c.want.path, "error", err)
		}
		if entries == nil {
			entries = []checkpoint.Entry{}
		}
		result <- entries
	}()
	return result
}

// within is what was seen within a time, nil if nothing was.
func (s scan) within(patience time.Duration) []checkpoint.Entry {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case entries := <-s:
		return entries
	case <-timer.C:
		return nil
	}
}

func (s scan) wait(ctx context.Context) []checkpoint.Entry {
	select {
	case entries := <-s:
		return entries
	case <-ctx.Done():
		return nil
	}
}
