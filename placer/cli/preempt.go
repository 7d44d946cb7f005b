// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
)

// PreemptCommand takes a gang's GPUs away, after a checkpoint, and sends it to the end of the queue.
type PreemptCommand struct{ Meta }

// Synopsis is one line for the list of commands.
func (c *PreemptCommand) Synopsis() string { return "Take a gang's GPUs and let it wait again" }

// Help is the whole usage.
func (c *PreemptCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster preempt [options] <gang>

  Takes the GPUs of a gang: its members checkpoint and end, and the gang waits
  again, last in its queue. A gang that waits only loses its place. This counts
  neither as a failure nor as an attempt. Returns when the leading placer has
  taken the order.

Preempt Options:

  -hold=<duration>
    Grant the gang nothing for so long, for example 10m; at most 7 days. 0 lets
    a gang go that is held. Default: 0.

  -reason=<text>
    Why, for the gang's users.

  -wait
    Return when the GPUs are free.
` + orderHelp)
}

// Run orders the preemption.
func (c *PreemptCommand) Run(args []string) int {
	var region, reason string
	var hold time.Duration
	var wait bool
	fs := c.flags("preempt")
	addRegion(fs, &region)
	fs.DurationVar(&hold, "hold", 0, "")
	fs.StringVar(&reason, "reason", "", "")
	fs.BoolVar(&wait, "wait", false, "")
	if !c.parse(fs, args, c) {
		return exitFailed
	}
	switch {
	case fs.NArg() != 1:
		return c.wrongUse("preempt", "one name")
	case hold < 0:
		return c.wrongUse("preempt", "a -hold that is not negative")
	}
	l, err := c.Open(region)
	if err != nil {
		return c.fail(err)
	}
	before, err := c.gang(l, fs.Arg(0))
	if err != nil {
		return c.fail(err)
	}
	order := ledger.Order{Gang: before.Name, Kind: ledger.OrderPreempt, HoldS: int64(hold / time.Second), Reason: reason}
	if err := c.give(l, order); err != nil {
		return c.fail(err)
	}
	c.UI.Output(preempted(before, hold))
	if !wait || before.Reservation == nil {
		return exitDone
	}
	return c.awaitFree(l, before)
}

// preempted says what the order has led to.
func preempted(before ledger.Gang, hold time.Duration) string {
	text := fmt.Sprintf("Gang %s is closing: its members checkpoint and end, then it waits at the end of its queue", before.Name)
	if before.State == ledger.GangWaiting {
		text = fmt.Sprintf("Gang %s waits at the end of its queue", before.Name)
	}
	if hold > 0 {
		text += ", held back for " + jobspecs.ShortDuration(hold)
	}
	return text
}

// awaitFree waits until a gang's reservation is gone.
func (c *PreemptCommand) awaitFree(l *ledger.Ledger, before ledger.Gang) int {
	started := c.Now()
	for after := uint64(0); ; {
		g, err := l.WatchGang(c.Context, before.Name, after, time.Minute)
		switch {
		case c.Context.Err() != nil:
			c.UI.Error("interrupted; the gang goes on closing")
			return exitInterrupted
		case err != nil && !errors.Is(err, ledger.ErrNotFound):
			return c.fail(err)
		case err != nil || g.Doc.Reservation == nil || g.Doc.Reservation.ID != before.Reservation.ID:
			c.UI.Output(fmt.Sprintf("Its GPUs are free after %s", age(c.Now(), started)))
			return exitDone
		}
		after = g.Index
	}
}
