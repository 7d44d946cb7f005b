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

// A task's life: claim the slot, arrive, wait for the gang, run the process, wait for the gang again, leave. Each part
// may end it with an outcome. A plugin that comes back after a restart goes through the same parts: all of them may be done
// again, except that a process which has started is found and not started twice.

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
	end := t.live(ctx)
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
	t.leave(ctx)
}

// conclude is the member's last word.
func conclude(m *ledger.Member, end outcome) {
	now := time.Now().UTC()
	if m.Ended == nil {
		m.Ended = &now
	}
	m.State, m.Why = end.state, end.why
	if m.Started != nil {
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
		return t.fromTheStart(ctx)
	}
	if err != nil && !errors.Is(err, launch.ErrLost) {
		return failing(err)
	}
	t.setProcess(process)
	t.logger.Info("found the task's process again", "pid", process.State().Main)
	t.recallGang(ctx)
	t.join(ctx)
	return t.accompany(ctx, process)
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

// fromTheStart claims, waits for the gang and starts the process.
func (t *task) fromTheStart(ctx context.Context) outcome {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(time.Until(t.begun.Add(t.opts.barrierTimeout)), func() { cancel(errTooLate) })
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
		return t.notStarted(err)
	}
	if order, _ := t.orders(); order != nil {
		return t.notStarted(errStopped)
	}
	process, err := t.launch(ctx, run)
	if err != nil {
		return failing(err)
	}
	t.setProcess(process)
	t.tellf("Gang %s is complete: started as rank %d of %d, master %s port %d", t.seat.Gang, t.seat.Rank, t.seat.Size, run.MasterAddr, run.MasterPort)
	for _, note := range process.State().Notes {
		t.tell("Isolation: " + note)
	}
	return t.accompany(ctx, process)
}

// notStarted is the outcome of a task that ended while it waited.
func (t *task) notStarted(err error) outcome {
	end := failing(err)
	if errors.Is(err, errStopped) || errors.Is(err, errGangOver) {
		end.state = ledger.MemberStopped
	}
	return end
}

// gather is everything up to the complete gang.
func (t *task) gather(ctx, waiting context.Context) (ledger.Run, error) {
	if err := t.plugin.awaitPredecessors(waiting, t); err != nil {
		return ledger.Run{}, t.waitingEnded(waiting, nil)
	}
	slot, err := t.claim(ctx, waiting)
	if err != nil {
		return ledger.Run{}, err
	}
	if slot.Owner.Gang != t.seat.Gang || slot.Size != t.seat.Size {
		return ledger.Run{}, fmt.Errorf("slot %s is of gang %s with %d members, the device's environment says %s with %d",
			slot.ID(), slot.Owner.Gang, slot.Size, t.seat.Gang, t.seat.Size)
	}
	if err := t.readGang(waiting); err != nil {
		return ledger.Run{}, err
	}
	speak, err := t.mayArrive(waiting)
	if speak {
		t.join(ctx)
	}
	if err != nil {
		return ledger.Run{}, err
	}
	t.member.update(func(m *ledger.Member) { m.State = ledger.MemberArrived })
	return t.awaitGang(waiting)
}

// claim takes the slot, however long Consul is away.
func (t *task) claim(ctx, waiting context.Context) (ledger.Slot, error) {
	boot, err := pluginconf.ReadID(t.settings.BootIDFile)
	if err != nil {
		return ledger.Slot{}, fmt.Errorf("boot_id_file: %w", err)
	}
	claim := ledger.Claim{
		Version: ledger.Version, Reservation: t.seat.Reservation, Rank: t.seat.Rank, Allocation: t.cfg.AllocID, Task: t.cfg.Name,
		Namespace: t.cfg.Namespace, Job: t.cfg.JobID, By: "driver", BootID: boot, At: time.Now().UTC(),
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

// mayArrive refuses a member that has run in this reservation before: its gang goes on without it or has ended, and a
// second start of one rank would run beside another generation of itself. speak says whether this task may write the
// member's document: not where the one that is there says that the rank has succeeded.
func (t *task) mayArrive(waiting context.Context) (speak bool, err error) {
	trouble := t.trouble.of("reading the run")
	var retry gang.Retry
	for {
		run, err := t.ledger.WatchRun(waiting, t.seat.Gang, t.seat.Reservation, 0, 0)
		if errors.Is(err, ledger.ErrNotFound) || err == nil && run.Doc.Phase == ledger.RunGathering {
			return true, nil
		}
		if err == nil {
			var members map[int]ledger.Versioned[ledger.Member]
			if members, _, err = t.ledger.WatchMembers(waiting, t.seat.Gang, t.seat.Reservation, 0, 0); err == nil {
				trouble(nil)
				own, there := members[t.seat.Rank]
				if there && own.Doc.State == ledger.MemberArrived && run.Doc.Phase == ledger.RunRunning {
					return true, nil // it was arriving when the plugin was restarted
				}
				return !there || own.Doc.State != ledger.MemberSucceeded, fmt.Errorf("rank %d can't join the run of gang %s on reservation %s, which is %s: the gang starts again on a new reservation",
					t.seat.Rank, t.seat.Gang, t.seat.Reservation, run.Doc.Phase)
			}
		}
		trouble(err)
		if retry.Wait(waiting) != nil {
			return false, t.waitingEnded(waiting, nil)
		}
	}
}

// join begins to follow the gang and to speak in it.
func (t *task) join(ctx context.Context) {
	t.member = newMember(t)
	go t.member.write(ctx)
	t.runs = gang.FollowRun(ctx, t.ledger, t.seat, t.trouble.of("following the run"))
	t.closing = gang.FollowClosing(ctx, t.ledger, t.seat, t.trouble.of("following the slot"))
	if t.seat.Rank == 0 {
		t.leader = gang.NewLeader(t.ledger, t.seat, t.ports, t.trouble.of("leading the gang"))
		t.leader.Start(ctx)
	}
}

func (t *task) ports() (int, error) { return gang.FreePorts(t.seat, 1, t.masterPort) }

// tellEvery is the least time between two events that say who is missing.
const tellEvery = 10 * time.Second

// awaitGang is the entry barrier.
func (t *task) awaitGang(waiting context.Context) (ledger.Run, error) {
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
			switch {
			case !ok:
				return ledger.Run{}, context.Cause(waiting)
			case run.Phase == ledger.RunRunning:
				return run, nil
			case run.Phase == ledger.RunFailed:
				return run, fmt.Errorf("%w before it started: %s", errGangOver, run.Why)
			case run.Phase == ledger.RunSucceeded:
				return run, fmt.Errorf("%w already, on this reservation", errGangOver)
			}
			missing = run.Missing
		case why := <-t.closing:
			t.abort(why)
			return ledger.Run{}, fmt.Errorf("%w: its slot is closing: %s", errGangOver, why)
		case <-first.C:
			told = t.tellMissing(told, missing)
		case <-ticker.C:
			told = t.tellMissing(told, missing)
		}
	}
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

// abort fails the run if this is rank 0: its slot is closing, and so are those of all others.
func (t *task) abort(why string) {
	if t.leader != nil {
		t.leader.Abort("the gang's slots are closing: " + why)
	}
}
