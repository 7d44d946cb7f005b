// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/queues"
)

// QueueShowCommand shows all about one queue.
type QueueShowCommand struct{ Meta }

// queueDetail is what `muster queue show -json` prints.
type queueDetail struct {
	queueView
	OpenTo     []string             `json:"open_to"`    // namespaces whose jobs it takes, its own list or that around it; empty: all
	Priorities ledger.PriorityRange `json:"priorities"` // that it takes, its own range or that around it
	Effective  map[string]string    `json:"effective"`  // defaults that hold for its jobs, with those around it
	Gangs      []ledger.Gang        `json:"gangs"`      // its own, those that are over left out
	list       queueList
}

// Synopsis is one line for the list of commands.
func (c *QueueShowCommand) Synopsis() string { return "Show one queue, what holds in it and its gangs" }

// Help is the whole usage.
func (c *QueueShowCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster queue show [options] <queue>

  Shows what was applied for a queue, what it takes over from the queues around it,
  what it uses as 'muster queue list' does, and the gangs that are in it.
` + readHelp)
}

// Run prints the queue.
func (c *QueueShowCommand) Run(args []string) int {
	return c.show("queue show", c, args, 1, func(s ledger.Snapshot, _ string, names []string) (view, error) { return showQueue(s, names[0]) })
}

func showQueue(s ledger.Snapshot, name string) (queueDetail, error) {
	list, err := listQueues(s)
	if err != nil {
		return queueDetail{}, err
	}
	at := slices.IndexFunc(list.Queues, func(v queueView) bool { return v.Name == name })
	if at < 0 {
		return queueDetail{}, fmt.Errorf("no queue named %q; 'muster queue list' shows all", name)
	}
	tree := queues.New(s.Queues.Doc)
	d := queueDetail{
		queueView: list.Queues[at], OpenTo: append([]string{}, tree.OpenTo(name)...), Priorities: tree.Priorities(name),
		Effective: tree.Defaults(name), Gangs: []ledger.Gang{}, list: list,
	}
	for _, g := range listGangs(s).Gangs {
		if g.Spec.Queue == name && (holds(g) > 0 || g.State == ledger.GangWaiting) {
			d.Gangs = append(d.Gangs, g)
		}
	}
	return d, nil
}

func (d queueDetail) text(now time.Time) string {
	var defaults []string
	for _, knob := range slices.Sorted(maps.Keys(d.Effective)) {
		defaults = append(defaults, knob+"="+d.Effective[knob])
	}
	most := "no limit"
	if d.Max > 0 {
		most = strconv.Itoa(d.Max)
	}
	share := ""
	if d.Quota > 0 {
		share = fmt.Sprintf(", %.0f %% of its quota", d.Share*100)
	}
	preempt := "no"
	if d.Preempt {
		preempt = "a gang of higher priority may preempt one of lower priority"
	}
	rows := [][2]string{
		{"Queue", d.Name}, {"Quota", strconv.Itoa(d.Quota)}, {"Max", most}, {"Weight", strconv.FormatFloat(cmp.Or(d.Weight, 1), 'g', -1, 64)},
		{"Namespaces", cmp.Or(strings.Join(d.OpenTo, ", "), "all")}, {"Priorities", fmt.Sprintf("%d to %d", d.Priorities.Min, d.Priorities.Max)},
		{"Preempt", preempt}, {"Defaults", cmp.Or(strings.Join(defaults, " "), "Muster's own")},
		{"Used", fmt.Sprintf("%d, %d of them borrowed", d.Used, d.Borrowed)}, {"Waiting", d.waiting()},
		{"Lately", fmt.Sprintf("%.1f%s", d.Lately, share)},
	}
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%-10s  = %s\n", row[0], row[1])
	}
	b.WriteString("\n" + d.list.footer(now))
	if len(d.Gangs) > 0 {
		b.WriteString("\n\n" + gangList{Gangs: d.Gangs}.text(now))
	}
	return b.String()
}
