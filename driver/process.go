// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/placer/ledger"
)

// hostsFile is the name of the hosts file in the task's own directory.
const hostsFile = "muster-hosts"

// launch starts the task's process.
func (t *task) launch(ctx context.Context, run ledger.Run) (*launch.Task, error) {
	hosts := filepath.Join(t.cfg.TaskDir().LocalDir, hostsFile)
	if err := writeNew(hosts, gang.Hosts(t.placements)); err != nil {
		return nil, fmt.Errorf("writing the hosts file: %w", err)
	}
	env := maps.Clone(t.cfg.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, t.cfg.DeviceEnv) // over what a template may have written
	maps.Copy(env, gang.Environment(run, hosts))
	user := t.cfg.User
	if user == "" {
		user = t.settings.DefaultUser
	}
	spec := launch.Spec{
		Name: filepath.Base(t.dir), Command: t.command(), Args: t.opts.Args, Env: env, Dir: t.opts.WorkDir, User: user,
		Stdout: t.cfg.StdoutPath, Stderr: t.cfg.StderrPath, Limits: t.limits(),
	}
	if err := os.MkdirAll(processDir(t.dir), 0o700); err != nil {
		return nil, fmt.Errorf("making the process's directory: %w", err)
	}
	process, err := launch.Start(ctx, processDir(t.dir), spec)
	if err != nil {
		return nil, fmt.Errorf("the process did not start: %w", err)
	}
	return process, nil
}

// writeNew writes a file that everybody may read into a directory that others may write to: through nothing that they have
// put there under its name.
func writeNew(path, text string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// command is the program: one that came with the task, in its local directory or the task's own, goes before the PATH's.
func (t *task) command() string {
	dir := t.cfg.TaskDir()
	if filepath.IsAbs(t.opts.Command) {
		return t.opts.Command
	}
	for _, base := range []string{dir.LocalDir, dir.Dir} {
		path := filepath.Join(base, t.opts.Command)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	return t.opts.Command
}

// limits are the task's resources, and the device nodes of its GPUs. Nomad gives Devices only when it has just reserved
// them, the device plugin's environment always.
func (t *task) limits() launch.Limits {
	root := t.settings.DevRoot
	limits := launch.Limits{
		Parent: t.settings.CgroupParent, RestrictDevices: true,
		DeviceNodes: []string{
			filepath.Join(root, "nvidiactl"), filepath.Join(root, "nvidia-uvm"), filepath.Join(root, "nvidia-uvm-tools"), filepath.Join(root, "nvidia-modeset"),
		},
		DeviceNodeMatches: append([]string{filepath.Join(root, "nvidia-caps", "*")}, t.settings.DeviceNodes...),
	}
	if nodes := t.cfg.DeviceEnv["MUSTER_GPU_DEVICES"]; nodes != "" {
		limits.DeviceNodes = append(limits.DeviceNodes, strings.Split(nodes, ",")...)
	}
	for _, device := range t.cfg.Devices {
		limits.DeviceNodes = append(limits.DeviceNodes, device.HostPath)
	}
	if t.cfg.Resources == nil {
		return limits
	}
	if linux := t.cfg.Resources.LinuxResources; linux != nil {
		limits.CPUShares, limits.MemoryBytes = uint64(max(linux.CPUShares, 0)), linux.MemoryLimitBytes //nolint:gosec // not negative
	}
	if nomad := t.cfg.Resources.NomadResources; nomad != nil && nomad.Memory.MemoryMaxMB > nomad.Memory.MemoryMB {
		limits.MemoryBytes, limits.MemorySoftBytes = nomad.Memory.MemoryMaxMB<<20, nomad.Memory.MemoryMB<<20
	}
	return limits
}

// exited is how waiting for the process ended.
type exited struct {
	exit launch.Exit
	err  error
}

// accompany is the task's life from the running process to the end of its gang, or until the gang starts again.
func (t *task) accompany(ctx context.Context, process *launch.Task) (end outcome, again bool) {
	started := process.State().Started
	t.member.update(func(m *ledger.Member) {
		if m.State == "" || m.State == ledger.MemberArrived {
			m.State, m.Started = ledger.MemberRunning, &started
		}
	})
	exits := make(chan exited, 1)
	go func() {
		exit, err := process.Wait(ctx)
		exits <- exited{exit, err}
	}()
	if t.opts.checkpoint != nil {
		t.checkpoints = newCheckpointer(ctx, t, process)
		defer t.checkpoints.stop()
	}
	if was := t.member.current(); was.State == ledger.MemberStopped || was.State == ledger.MemberLeaving {
		// An earlier process of the plugin had begun to end it: whatever it exits with now, it has not finished.
		return t.endProcess(ctx, process, exits, cause{err: errors.New(was.Why), why: was.Why, orderly: true, as: was.State})
	}
	exit, cause := t.watch(ctx, exits)
	if cause != nil {
		return t.endProcess(ctx, process, exits, *cause)
	}
	if t.checkpoints != nil {
		t.checkpoints.stop()
	}
	return t.afterExit(ctx, exit)
}

// cause is why the driver ends a process.
type cause struct {
	err     error // nil: Nomad wants it
	why     string
	orderly bool               // the process is well, so it is asked to checkpoint first
	as      ledger.MemberState // how the member leaves; empty: it does not, since its gang starts again
}

// watch waits until the process has ended by itself, or there is a cause to end it.
func (t *task) watch(ctx context.Context, exits <-chan exited) (exited, *cause) {
	for {
		var found *cause
		select {
		case <-ctx.Done():
			return exited{err: ctx.Err()}, nil
		case end := <-exits:
			return end, nil
		case <-t.stopped:
			found = &cause{why: errStopped.Error(), orderly: true, as: ledger.MemberLeaving}
		case why, ok := <-t.closing:
			if ok {
				t.hearClosing(why)
				found = &cause{
					err: fmt.Errorf("%w: its slots are closing: %s", errGangOver, why), why: "its slot is closing: " + why,
					orderly: true, as: ledger.MemberStopped,
				}
			}
		case t.lastRun = <-t.runs:
			found = t.heard(t.lastRun)
		}
		if found == nil {
			continue
		}
		select {
		case end := <-exits: // it was faster; what follows its exit comes back to what was found
			return end, nil
		default:
			return exited{}, found
		}
	}
}

// heard is the cause to end a process that is in a run's document, if there is one.
func (t *task) heard(run ledger.Run) *cause {
	switch gang.Hear(run, t.generation) {
	case gang.Failure:
		return &cause{
			err: fmt.Errorf("%w: %s", errGangOver, run.Why), why: "its gang ended: " + run.Why,
			orderly: run.Orderly, as: ledger.MemberStopped,
		}
	case gang.Again:
		return &cause{why: "its gang starts again in place: " + run.Why, orderly: run.Orderly}
	case gang.Wait, gang.Start, gang.Success:
	}
	return nil
}

// killEvery is how often SIGKILL is sent again.
const killEvery = 2 * time.Second

// endProcess takes the process down: a checkpoint, a signal, SIGKILL, each with its time.
func (t *task) endProcess(ctx context.Context, process *launch.Task, exits <-chan exited, why cause) (outcome, bool) {
	if why.as != "" {
		t.member.update(func(m *ledger.Member) { m.State, m.Why = why.as, why.why })
	}
	t.tellf("Ending rank %d of gang %s: %s", t.seat.Rank, t.seat.Gang, why.why)
	if why.as == ledger.MemberLeaving {
		t.awaitHeard(ctx)
	}
	var patience time.Duration
	var asked <-chan struct{}
	if t.checkpoints != nil && why.orderly {
		patience, asked = t.opts.checkpoint.timeout, t.checkpoints.ask()
	}
	order, ordered := t.orders()
	plan := planEnding(time.Now(), patience, t.settings.termGrace, order)
	if asked == nil {
		plan = t.signalEnd(ctx, process, plan)
	}
	for {
		timer := time.NewTimer(time.Until(plan.due()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return outcome{}, false
		case end := <-exits:
			timer.Stop()
			return endedBy(end, why)
		case <-ordered:
			order, ordered = t.orders()
			plan = plan.tighten(time.Now(), *order)
		case <-asked:
			asked = nil
			plan = t.signalEnd(ctx, process, plan)
		case now := <-timer.C:
			if plan.killAt.IsZero() {
				asked = nil
				plan = t.signalEnd(ctx, process, plan)
				break
			}
			if err := process.Kill(ctx); err != nil {
				t.logger.Warn("killing the task's processes; trying on", "error", err)
			}
			plan.killAt = now.Add(killEvery)
		}
		timer.Stop()
	}
}

func (t *task) signalEnd(ctx context.Context, process *launch.Task, plan ending) ending {
	if t.checkpoints != nil {
		t.checkpoints.stop() // from here on nobody may be left to ask
	}
	plan = plan.signalled(time.Now())
	if time.Until(plan.killAt) > 0 {
		if err := process.Signal(ctx, plan.signal); err != nil {
			t.logger.Warn("the task's command did not get its signal", "signal", plan.signal, "error", err)
		}
	}
	return plan
}

// endedBy is the outcome of a process that the driver has ended.
func endedBy(end exited, why cause) (outcome, bool) {
	if why.as == "" {
		return outcome{}, true
	}
	result := exitResult(end)
	if why.err != nil {
		result.Err = why.err
	}
	return outcome{result: result, state: why.as, why: why.why}, false
}

func exitResult(end exited) drivers.ExitResult {
	if end.err != nil {
		return drivers.ExitResult{ExitCode: 1, Err: end.err}
	}
	return drivers.ExitResult{ExitCode: end.exit.Code, Signal: end.exit.Signal, OOMKilled: end.exit.OOMKilled}
}

// afterExit is the exit barrier: a process that ended well waits for the others. One that failed while its gang starts
// again has only lost its peers.
func (t *task) afterExit(ctx context.Context, end exited) (last outcome, again bool) {
	if end.err != nil {
		return failing(end.err), false
	}
	if !end.exit.Success() {
		if t.startsAgain(ctx) {
			return outcome{}, true
		}
		return outcome{result: exitResult(end), state: ledger.MemberFailed, why: end.exit.String()}, false
	}
	at, code := end.exit.At, 0
	t.member.update(func(m *ledger.Member) { m.State, m.Ended, m.ExitCode, m.Why = ledger.MemberSucceeded, &at, &code, "" })
	if t.seat.Size > 1 {
		t.tellf("Rank %d of gang %s has finished; waiting for the other members", t.seat.Rank, t.seat.Gang)
	}
	return t.awaitOthers(ctx)
}

// verdictPatience is how long a member that finished, and whose slot is closing, waits for rank 0 to say how the run ended.
const verdictPatience = 10 * time.Second

// awaitOthers waits for the end of the run. The run's document alone says whether it succeeded: a closing slot says only
// that it is about to be decided, since a gang that has succeeded is closed as well.
func (t *task) awaitOthers(ctx context.Context) (last outcome, again bool) {
	left := func(as ledger.MemberState, err error) (outcome, bool) {
		return outcome{result: drivers.ExitResult{ExitCode: 1, Err: err}, state: as, why: err.Error()}, false
	}
	var verdict <-chan time.Time
	for {
		switch gang.Hear(t.lastRun, t.generation) {
		case gang.Success:
			return outcome{state: ledger.MemberSucceeded}, false
		case gang.Failure:
			return left(ledger.MemberStopped, fmt.Errorf("%w after this member had finished: %s", errGangOver, t.lastRun.Why))
		case gang.Again:
			return outcome{}, true
		case gang.Wait, gang.Start:
		}
		if t.closes != nil && verdict == nil {
			verdict = time.After(verdictPatience)
		}
		select {
		case <-ctx.Done():
			return outcome{}, false
		case t.lastRun = <-t.runs:
		case why, ok := <-t.closing:
			if ok {
				t.hearClosing(why)
			}
		case <-verdict:
			return left(ledger.MemberStopped, fmt.Errorf("%w after this member had finished: its slots are closing: %s", errGangOver, *t.closes))
		case <-t.stopped:
			return left(ledger.MemberLeaving, errors.New("stopped on request before all members of the gang had finished"))
		}
	}
}

// hearClosing notes that the slot is closing, which is told once.
func (t *task) hearClosing(why string) {
	t.closes = &why
	t.abort(why)
}
