// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"syscall"
	"time"
)

// stopOrder is Nomad's wish to end a task: until then it must be dead. A zero signal means SIGTERM.
type stopOrder struct {
	until  time.Time
	signal syscall.Signal
}

// ending is the way of a process out: checkpoint, signal, SIGKILL. It is a value; time comes from outside.
type ending struct {
	signal          syscall.Signal
	checkpointUntil time.Time     // zero: the task is not asked to checkpoint
	grace           time.Duration // between the signal and SIGKILL
	limit           time.Time     // SIGKILL at the latest; zero: no limit
	killAt          time.Time     // zero until the signal has been sent
}

const (
	// mostReserve is how much of a stop's time is kept from the checkpoint for the process to end well afterwards.
	mostReserve = 10 * time.Second
	// reserveShare is the same as a part of short stops.
	reserveShare = 4
)

// planEnding plans the end of a process from now on. checkpoint is how long a checkpoint may take, 0: none is asked for;
// order is nil when the driver ends the task by itself.
func planEnding(now time.Time, checkpoint, grace time.Duration, order *stopOrder) ending {
	e := ending{signal: syscall.SIGTERM, grace: grace}
	if checkpoint > 0 {
		e.checkpointUntil = now.Add(checkpoint)
	}
	if order != nil {
		e = e.tighten(now, *order)
	}
	return e
}

// tighten makes an ending that has begun obey an order to stop.
func (e ending) tighten(now time.Time, order stopOrder) ending {
	if order.signal != 0 {
		e.signal = order.signal
	}
	if e.limit.IsZero() || order.until.Before(e.limit) {
		e.limit = order.until
	}
	left := max(e.limit.Sub(now), 0)
	latest := e.limit.Add(-min(left/reserveShare, mostReserve))
	if !e.checkpointUntil.IsZero() && latest.Before(e.checkpointUntil) {
		e.checkpointUntil = latest
	}
	e.grace = left // all that is left, once the checkpoint is over
	if !e.killAt.IsZero() && e.limit.Before(e.killAt) {
		e.killAt = e.limit
	}
	return e
}

// signalled is the ending after the signal was sent.
func (e ending) signalled(now time.Time) ending {
	e.checkpointUntil = time.Time{}
	e.killAt = now.Add(e.grace)
	if !e.limit.IsZero() && e.limit.Before(e.killAt) {
		e.killAt = e.limit
	}
	return e
}

// due is when the next step is due.
func (e ending) due() time.Time {
	if e.killAt.IsZero() {
		return e.checkpointUntil
	}
	return e.killAt
}
