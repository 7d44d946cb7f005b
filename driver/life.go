// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/driver/pluginconf"
	"github.com/nomad-muster/muster/placer/ledger"
)

// A task's life: claim the slot, arrive, wait for the gang, run the process, wait for the gang again, leave; from arriving
// on once more for each generation (generation.go). Each part may end it with an outcome. A plugin that comes back after a
// restart goes through the same parts: all of them may be done again, except that a process which has started is found and
// not started twice.

// outcome is how a task ends: for Nomad, and for its gang.
type outcome struct {
	result drivers.ExitResult
	state  ledger.MemberState
	why    string
}

// Reasons why waiting ends early.
var (
	errStopped  = errors.New("stopped on request")
	errTooLate  = errors.New("the gang was not complete in time")
	errGangOver = errors.New("its gang ended")
)

// failing is an outcome without a process's exit status.
func failing(err error) outcome {
	return outcome{result: drivers.ExitResult{ExitCode: 1, Err: err}, state: ledger.MemberFailed, why: err.Error()}
}

// run lives the task's life. It returns early, without an end, when the plugin goes away.
func (t *task) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	release := launch.Hold(t.cfg.StdoutPath, t.cfg.StderrPath)
	end := t.live(ctx)
	release()
	if ctx.Err() != nil {
		return
	}
	if t.member != nil {
		t.member.update(func(m *ledger.Member) { conclude(m, end) })
	}
	if end.why != "" {
		t.tellf("Rank %d of gang %s: %s", t.seat.Rank, t.seat.Gang, end.why)
	}
	t.logger.Info("task ended", "state", end.state, "exit_code", end.result.ExitCode, "signal", end.result.Signal, "reason", end.why)
	t.finish(end.result)
	t.leave(ctx, end.state == ledger.MemberLeaving)
}

// conclude is the member's last word.
func conclude(m *ledger.Member, end outcome) {
	now := time.Now().UTC()
	if m.Ended == nil {
		m.Ended = &now
	}
	m.State, m.Why, m.Lost = end.state, end.why, errors.Is(end.result.Err, launch.ErrLost)
	if m.Started != nil && !m.Lost {
		code := end.result.ExitCode
		if end.result.Signal != 0 {
			code = 128 + end.result.Signal
		}
		m.ExitCode = &code
	}
}

func (t *task) live(ctx context.Context) outcome {
	process, err := launch.Attach(processDir(t.dir))
	if errors.Is(err, launch.ErrNotStarted) {
		return t.generations(ctx, nil)
	}
	if err != nil && !errors.Is(err, launch.ErrLost) {
		return failing(err)
	}
	t.setProcess(process)
	t.logger.Info("found the task's process again", "pid", process.State().Main)
	t.recallGang(ctx)
	t.join(ctx)
	t.generation = t.member.current().Generation
	t.setBack() // nobody has followed the ledger meanwhile
	return t.generations(ctx, process)
}

// recallPatience is how long a task whose process runs may be without care for the sake of the gang's document.
const recallPatience = 2 * time.Second

// recallGang reads the gang's document again, if it is to be had: its process needs it no more.
func (t *task) recallGang(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recallPatience)
	defer cancel()
	if err := t.readGang(ctx); err != nil {
		t.logger.Warn("going on without the gang's document", "error", err)
	}
}

// start waits for the gang, which the task joins first if it has not, and starts the process.
func (t *task) start(ctx context.Context) (*launch.Task, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(time.Until(t.waitsFrom.Add(t.opts.barrierTimeout)), func() { cancel(errTooLate) })
	defer late.Stop()
	go func() {
		select {
		case <-t.stopped:
			cancel(errStopped)
		case <-waiting.Done():
		}
	}()
	run, err := t.gather(ctx, waiting)
	if err != nil {
		return nil, err
	}
	if order, _ := t.orders(); order != nil {
		return nil, errStopped
	}
	process, err := t.launch(ctx, run)
	if err != nil {
		return nil, err
	}
	t.setProcess(process)
	of := ""
	if run.Generation > 1 {
		of = fmt.Sprintf(", generation %d", run.Generation)
	}
	t.tellf("Gang %s is complete: started as rank %d of %d%s, master %s port %d", t.seat.Gang, t.seat.Rank, t.seat.Size, of, run.MasterAddr, run.MasterPort)
	for _, note := range process.State().Notes {
		t.tell("Isolation: " + note)
	}
	return process, nil
}

// notStarted is the outcome of a task that ended while it waited.
func (t *task) notStarted(err error) outcome {
	end := failing(err)
	switch {
	case errors.Is(err, errStopped):
		end.state = ledger.MemberLeaving
	case errors.Is(err, errGangOver):
		end.state = ledger.MemberStopped
	}
	return end
}

// gather is everything up to the complete gang.
func (t *task) gather(ctx, waiting context.Context) (ledger.Run, error) {
	if t.member == nil {
		if err := t.takeSeat(ctx, waiting); err != nil {
			return ledger.Run{}, err
		}
	}
	return t.awaitGang(waiting)
}

// takeSeat claims the slot and arrives.
func (t *task) takeSeat(ctx, waiting context.Context) error {
	if err := t.plugin.awaitPredecessors(waiting, t); err != nil {
		return t.waitingEnded(waiting, nil)
	}
	slot, err := t.claim(ctx, waiting)
	if err != nil {
		return err
	}
	if slot.Owner.Gang != t.seat.Gang || slot.Size != t.seat.Size {
		return fmt.Errorf("slot %s is of gang %s with %d members, the device's environment says %s with %d",
			slot.ID(), slot.Owner.Gang, slot.Size, t.seat.Gang, t.seat.Size)
	}
	if err := t.readGang(waiting); err != nil {
		return err
	}
	generation, speak, err := t.entry(waiting)
	if speak {
		t.join(ctx)
	}
	if err != nil {
		return err
	}
	t.arrive(generation)
	return nil
}

// newClaim is the claim that the task makes.
func (t *task) newClaim() (ledger.Claim, error) {
	boot, err := pluginconf.ReadID(t.settings.BootIDFile)
	if err != nil {
		return ledger.Claim{}, fmt.Errorf("boot_id_file: %w", err)
	}
	return ledger.Claim{
		Version: ledger.Version, Reservation: t.seat.Reservation, Rank: t.seat.Rank, Allocation: t.cfg.AllocID, Task: t.cfg.Name,
		Namespace: t.cfg.Namespace, Job: t.cfg.JobID, By: "driver", BootID: boot, At: time.Now().UTC(),
	}, nil
}

// claim takes the slot, however long Consul is away.
func (t *task) claim(ctx, waiting context.Context) (ledger.Slot, error) {
	claim, err := t.newClaim()
	if err != nil {
		return ledger.Slot{}, err
	}
	trouble := t.trouble.of("claiming the slot")
	var retry gang.Retry
	for {
		slot, err := t.askForClaim(ctx, waiting, claim)
		var refused *ledger.SlotError
		var claimed *ledger.ClaimedError
		var owner *ownerError
		switch {
		case err == nil:
			trouble(nil)
			return slot, nil
		case errors.As(err, &refused), errors.As(err, &claimed), errors.As(err, &owner):
			return slot, err
		case waiting.Err() != nil:
			return slot, t.waitingEnded(waiting, nil)
		}
		trouble(err)
		if retry.Wait(waiting) != nil {
			return slot, t.waitingEnded(waiting, nil)
		}
	}
}

// askForClaim tries once. A request that is on its way is not broken off when waiting ends: it could arrive after the claim
// has been ended, and nobody would end it again. leave waits for it.
func (t *task) askForClaim(ctx, waiting context.Context, claim ledger.Claim) (ledger.Slot, error) {
	var slot ledger.Slot
	var err error
	claiming := make(chan struct{})
	t.claiming = claiming
	go func() {
		defer close(claiming)
		slot, err = t.ledger.Claim(ctx, t.seat.Node, claim, func(s ledger.Slot) error { return owns(t.cfg, s) })
	}()
	select {
	case <-claiming:
		return slot, err
	case <-waiting.Done():
		return ledger.Slot{}, waiting.Err()
	}
}

// waitingEnded says why waiting ended.
func (t *task) waitingEnded(waiting context.Context, missing []int) error {
	cause := context.Cause(waiting)
	if !errors.Is(cause, errTooLate) {
		return cause
	}
	if len(missing) == 0 {
		return fmt.Errorf("%w (barrier_timeout %s)", cause, t.opts.barrierTimeout)
	}
	return fmt.Errorf("%w (barrier_timeout %s): %s", cause, t.opts.barrierTimeout, gang.Waiting(t.seat, missing, t.placements))
}

// readGang learns from the gang's document where the members are.
func (t *task) readGang(ctx context.Context) error {
	trouble := t.trouble.of("reading the gang")
	var retry gang.Retry
	for {
		doc, err := t.ledger.GetGang(ctx, t.seat.Gang)
		if err == nil {
			trouble(nil)
			grant := doc.Doc.Reservation
			if grant == nil || grant.ID != t.seat.Reservation {
				return fmt.Errorf("gang %s does not stand on reservation %s any more", t.seat.Gang, t.seat.Reservation)
			}
			t.placements, t.masterPort = grant.Placements, grant.MasterPort
			_, t.seat.Address = gang.NodeOf(grant.Placements, t.seat.Rank)
			return nil
		}
		trouble(err)
		if retry.Wait(ctx) != nil {
			return t.waitingEnded(ctx, nil)
		}
	}
}

// tellEvery is the least time between two events that say who is missing.
const tellEvery = 10 * time.Second

// awaitGang is the entry barrier.
func (t *task) awaitGang(waiting context.Context) (ledger.Run, error) {
	if t.closes != nil {
		return ledger.Run{}, fmt.Errorf("%w: its slot is closing: %s", errGangOver, *t.closes)
	}
	missing := []int{0} // as far as we know: rank 0 has not said anything yet
	if t.seat.Rank == 0 {
		missing = nil
	}
	told := ""
	ticker := time.NewTicker(tellEvery)
	defer ticker.Stop()
	first := time.NewTimer(time.Second)
	defer first.Stop()
	for {
		select {
		case <-waiting.Done():
			return ledger.Run{}, t.waitingEnded(waiting, missing)
		case run, ok := <-t.runs:
			if !ok {
				return ledger.Run{}, context.Cause(waiting)
			}
			if complete, err := t.hearWaiting(run); complete || err != nil {
				return run, err
			}
			missing = run.Missing
		case why, ok := <-t.closing:
			if ok {
				t.hearClosing(why)
				return ledger.Run{}, fmt.Errorf("%w: its slot is closing: %s", errGangOver, why)
			}
		case <-first.C:
			told = t.tellMissing(told, missing)
		case <-ticker.C:
			told = t.tellMissing(told, missing)
		}
	}
}

// hearWaiting says whether a run's document completes the gang.
func (t *task) hearWaiting(run ledger.Run) (complete bool, err error) {
	t.lastRun = run
	switch gang.Hear(run, t.generation) {
	case gang.Start:
		return true, nil
	case gang.Failure:
		return false, fmt.Errorf("%w before it started: %s", errGangOver, run.Why)
	case gang.Success:
		return false, fmt.Errorf("%w already, on this reservation", errGangOver)
	case gang.Again:
		t.arrive(run.Generation)
	case gang.Wait:
	}
	return false, nil
}

func (t *task) tellMissing(told string, missing []int) string {
	if len(missing) == 0 {
		return told
	}
	text := gang.Waiting(t.seat, missing, t.placements)
	if text != told {
		t.tell("Waiting: " + text)
	}
	return text
}
