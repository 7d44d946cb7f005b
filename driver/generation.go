// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/placer/ledger"
)

// Restarts in place. Nomad stops one member's task and starts it again for the same allocation: by `nomad alloc restart`,
// or for a template. It tells nobody whether it will: the member is leaving, which makes the gang gather for its next
// generation. All other members end their processes, and wait with their tasks open. If the task comes back, all start
// again; if it does not, it was stopped and the gang ends.

// generations lives through one start of the gang after another, until the gang has ended or this member leaves it.
func (t *task) generations(ctx context.Context, process *launch.Task) outcome {
	for {
		if process == nil {
			var err error
			if process, err = t.start(ctx); err != nil {
				return t.notStarted(err)
			}
		}
		end, again := t.accompany(ctx, process)
		if !again {
			return end
		}
		if err := t.startAgain(ctx, process); err != nil {
			return failing(err)
		}
		process = nil
	}
}

// startAgain enters the run's generation when nothing of the process is left.
func (t *task) startAgain(ctx context.Context, process *launch.Task) error {
	t.setProcess(nil)
	if err := process.Kill(ctx); err != nil {
		return err
	}
	if err := process.Gone(ctx); err != nil {
		return err
	}
	if err := removeProcess(t.dir); err != nil {
		return err
	}
	t.waitsFrom = time.Now()
	t.arrive(t.lastRun.Generation)
	return nil
}

// arrive enters a generation.
func (t *task) arrive(generation int) {
	t.generation = generation
	t.member.arrive(generation)
}

// entry is the generation that a task enters when it takes its seat: the run's, but never one in which its rank has been
// before. A run that has ended lets nobody in. speak says whether the task may write the member's document: not where the
// one that is there says that the rank has succeeded.
func (t *task) entry(waiting context.Context) (generation int, speak bool, err error) {
	if t.before != nil && t.before.State == ledger.MemberArrived {
		return t.before.Generation, true, nil // it was waiting when the plugin was restarted
	}
	generation = 1
	for _, was := range []*ledger.Member{t.before, memberIn(t.dir, earlierFile)} {
		if was != nil {
			generation = max(generation, was.Generation+1)
		}
	}
	trouble := t.trouble.of("reading the run")
	var retry gang.Retry
	for {
		run, own, err := t.readRun(waiting)
		if err == nil {
			trouble(nil)
			if run.Phase == ledger.RunSucceeded || run.Phase == ledger.RunFailed {
				return 0, own == nil || own.State != ledger.MemberSucceeded,
					fmt.Errorf("rank %d can't join the run of gang %s on reservation %s, which has %s: the gang starts again on a new reservation",
						t.seat.Rank, t.seat.Gang, t.seat.Reservation, run.Phase)
			}
			if own != nil {
				generation = max(generation, own.Generation+1)
			}
			return max(generation, run.Generation), true, nil
		}
		trouble(err)
		if retry.Wait(waiting) != nil {
			return 0, false, t.waitingEnded(waiting, nil)
		}
	}
}

// readRun reads the run, zero if there is none, and what its members' documents say of this rank, nil if nothing.
func (t *task) readRun(ctx context.Context) (ledger.Run, *ledger.Member, error) {
	run, err := t.ledger.WatchRun(ctx, t.seat.Gang, t.seat.Reservation, 0, 0)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return ledger.Run{}, nil, err
	}
	members, _, err := t.ledger.WatchMembers(ctx, t.seat.Gang, t.seat.Reservation, 0, 0)
	if err != nil {
		return ledger.Run{}, nil, err
	}
	if own, there := members[t.seat.Rank]; there {
		return run.Doc, &own.Doc, nil
	}
	return run.Doc, nil, nil
}

const (
	// hearPatience is how long a member that Nomad ends waits until its gang has heard of it, so that all checkpoint and
	// end together, and none takes the loss of its peers for a failure.
	hearPatience = 2 * time.Second
	// hearShare is the same as a part of the time that Nomad gives.
	hearShare = 4
)

// awaitHeard waits until the run has taken notice of this member's leaving.
func (t *task) awaitHeard(ctx context.Context) {
	if t.seat.Size == 1 {
		return
	}
	patience := hearPatience
	if order, _ := t.orders(); order != nil {
		patience = min(patience, time.Until(order.until)/hearShare)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for gang.Hear(t.lastRun, t.generation) <= gang.Start && t.closes == nil {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case why, ok := <-t.closing:
			if !ok {
				return
			}
			t.hearClosing(why)
		case run, ok := <-t.runs:
			if !ok {
				return
			}
			t.lastRun = run
		}
	}
}

// startsAgain says whether the gang has left this member's generation behind.
func (t *task) startsAgain(ctx context.Context) bool {
	if t.seat.Size == 1 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, hearPatience)
	defer cancel()
	run, err := t.ledger.WatchRun(ctx, t.seat.Gang, t.seat.Reservation, 0, 0)
	if err != nil || gang.Hear(run.Doc, t.generation) != gang.Again {
		return false
	}
	t.lastRun = run.Doc
	return true
}

// comesBack waits whether Nomad starts the allocation's task again, which takes over the seat then.
func (t *task) comesBack(ctx context.Context) bool {
	timer := time.NewTimer(t.plugin.comeback)
	defer timer.Stop()
	for t.closes == nil && gang.Hear(t.lastRun, t.generation) <= gang.Again {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return t.isSuperseded()
		case <-t.superseded:
			return true
		case why, ok := <-t.closing:
			if !ok {
				return false
			}
			t.hearClosing(why)
		case run, ok := <-t.runs:
			if !ok {
				return false
			}
			t.lastRun = run
		}
	}
	return t.isSuperseded()
}
