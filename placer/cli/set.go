// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
)

// SetCommand changes knobs of a gang without touching its job.
type SetCommand struct{ Meta }

// Synopsis is one line for the list of commands.
func (c *SetCommand) Synopsis() string { return "Change a gang's knobs without restarting it" }

// Help is the whole usage.
func (c *SetCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster set [options] <gang> <knob>=<value>...

  Changes how a gang is scheduled, in place of what its job says, and leaves the
  job alone: Nomad restarts a group whose meta is edited. A gang that runs is not
  disturbed; what was set counts when it waits again. It holds for every version
  of the job until it is taken away with <knob>= or the job is purged.

  Knobs: queue, nvlink, locality, relax_after, comm and max_runtime as in meta
  without "muster_", and priority in place of the job's.

    muster set resnet50 locality=any priority=80
    muster set resnet50 locality=
` + orderHelp)
}

// Run orders the change.
func (c *SetCommand) Run(args []string) int {
	var region string
	fs := c.flags("set")
	addRegion(fs, &region)
	if !c.parse(fs, args, c) {
		return exitFailed
	}
	if fs.NArg() < 2 {
		return c.wrongUse("set", "a name and one knob=value or more")
	}
	values, err := knobs(fs.Args()[1:])
	if err != nil {
		return c.fail(err)
	}
	l, err := c.Open(region)
	if err != nil {
		return c.fail(err)
	}
	name := fs.Arg(0)
	before, err := c.gang(l, name)
	if err != nil {
		return c.fail(err)
	}
	if err := c.give(l, ledger.Order{Gang: name, Kind: ledger.OrderSet, Values: values}); err != nil {
		return c.fail(err)
	}
	g, err := c.gang(l, name)
	if err != nil {
		return c.fail(err)
	}
	c.UI.Output(setText(g, before.State))
	return exitDone
}

// knobs reads knob=value texts. The placer, which knows the cluster, has the last word; what it would refuse for certain
// is refused here.
func knobs(args []string) (map[string]string, error) {
	values, given := map[string]string{}, map[string]string{}
	for _, arg := range args {
		knob, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not knob=value; write %s=... to set it, %s= to take it away", arg, arg, arg)
		}
		if _, twice := values[knob]; twice {
			return nil, fmt.Errorf("%s is given twice", knob)
		}
		values[knob] = value
		if given[knob] = value; value == "" {
			delete(given, knob)
		}
		if !slices.Contains(jobspecs.Knobs(), knob) {
			given[knob] = value // for its message
		}
	}
	if _, err := (&jobspecs.Gang{}).With(given); err != nil {
		return nil, err
	}
	return values, nil
}

// setText says what is set for a gang now. It may have started because of it.
func setText(g ledger.Gang, before ledger.GangState) string {
	if len(g.Set) == 0 {
		return fmt.Sprintf("Gang %s goes by its job again: nothing is set", g.Name)
	}
	text := fmt.Sprintf("Gang %s: %s", g.Name, knobText(g.Set))
	if before != ledger.GangWaiting {
		text += fmt.Sprintf("; it is %s, so this counts when it waits again", before)
	}
	return text
}

// knobText is knobs in order.
func knobText(set map[string]string) string {
	parts := make([]string, 0, len(set))
	for _, knob := range slices.Sorted(maps.Keys(set)) {
		parts = append(parts, knob+"="+set[knob])
	}
	return strings.Join(parts, " ")
}
