// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/placer/ledger"
)

// join begins to follow the gang and to speak in it, until leave.
func (t *task) join(ctx context.Context) {
	following, cancel := context.WithCancel(ctx)
	t.follows = cancel
	t.member = newMember(t)
	if t.seat.Rank == 0 {
		t.leader = gang.NewLeader(t.ledger, t.seat, t.ports, t.trouble.of("leading the gang"))
		t.leader.Start(following)
	}
	go t.member.write(following)
	go t.keepClaim(ctx, following)
	t.runs = gang.FollowRun(following, t.ledger, t.seat, t.trouble.of("following the run"), t.setBack)
	t.closing = gang.FollowClosing(following, t.ledger, t.seat, t.trouble.of("following the slot"), t.setBack)
}

// ports finds a generation's ports. Those of the grant are for the first one: its processes may have left them busy.
func (t *task) ports(generation int) (int, error) {
	if generation > 1 {
		return gang.FreePorts(t.seat, generation, 0)
	}
	return gang.FreePorts(t.seat, generation, t.masterPort)
}

// abort fails the run if this is rank 0: its slot is closing, and so are those of all others.
func (t *task) abort(why string) {
	if t.leader != nil {
		t.leader.Abort("the gang's slots are closing: " + why)
	}
}

// setBack writes all that this task has written to a ledger that may have lost it: the claim, the member's document and,
// where it leads, the run's.
func (t *task) setBack() {
	t.member.again()
	if t.leader != nil {
		t.leader.Look()
	}
	select {
	case t.rewritten <- struct{}{}:
	default: // it is about to
	}
}

// keepClaim makes the claim again whenever it may be lost, until following ends. A request that is on its way is not broken
// off: it could arrive after the claim has been ended.
func (t *task) keepClaim(ctx, following context.Context) {
	defer close(t.kept)
	for {
		select {
		case <-following.Done():
			return
		case <-t.rewritten:
			t.claimAgain(ctx, following)
		}
	}
}

// claimAgain makes the claim again. A refusal ends nothing: the task's processes are on the GPUs, which is what their node
// says of its slot.
func (t *task) claimAgain(ctx, following context.Context) {
	claim, err := t.newClaim()
	if err != nil {
		t.logger.Error("the claim can't be made again", "error", err)
		return
	}
	trouble := t.trouble.of("claiming the slot again")
	var retry gang.Retry
	for {
		_, err := t.ledger.Claim(ctx, t.seat.Node, claim, func(s ledger.Slot) error { return owns(t.cfg, s) })
		if err == nil {
			trouble(nil)
			return
		}
		var refused *ledger.SlotError
		var claimed *ledger.ClaimedError
		var owner *ownerError
		if errors.As(err, &refused) || errors.As(err, &claimed) || errors.As(err, &owner) {
			trouble(nil)
			t.logger.Warn("the claim can't be made again", "error", err)
			return
		}
		trouble(err)
		if retry.Wait(following) != nil {
			return
		}
	}
}

// unfollow ends what join has begun, and returns when nothing of it is on its way to the ledger any more.
func (t *task) unfollow(ctx context.Context) error {
	t.follows()
	waits := []<-chan struct{}{t.member.silent, t.kept}
	if t.leader != nil {
		waits = append(waits, t.leader.Done())
	}
	for _, ended := range waits {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
		}
	}
	return nil
}
