// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// GangsCommand lists all gangs and the jobs that were refused.
type GangsCommand struct{ Meta }

// gangList is what `muster gangs -json` prints.
type gangList struct {
	Gangs    []ledger.Gang    `json:"gangs"`
	Refusals []ledger.Refusal `json:"refusals"`
}

// Synopsis is one line for the list of commands.
func (c *GangsCommand) Synopsis() string { return "List gangs, and jobs that were refused" }

// Help is the whole usage.
func (c *GangsCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster gangs [options]

  Lists every gang with its state and, where it waits, the reason; then the jobs
  that ask for a gang and were refused.
` + readHelp)
}

// Run prints the list.
func (c *GangsCommand) Run(args []string) int {
	return c.show("gangs", c, args, 0, func(s ledger.Snapshot, _ string, _ []string) (view, error) { return listGangs(s), nil })
}

// listGangs orders gangs as people look for them: by the time they came, then by name.
func listGangs(snapshot ledger.Snapshot) gangList {
	list := gangList{Gangs: []ledger.Gang{}, Refusals: []ledger.Refusal{}}
	for _, g := range snapshot.Gangs {
		list.Gangs = append(list.Gangs, g.Doc)
	}
	slices.SortFunc(list.Gangs, func(a, b ledger.Gang) int {
		if c := a.Submitted.Compare(b.Submitted); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, r := range snapshot.Refusals {
		list.Refusals = append(list.Refusals, r.Doc)
	}
	slices.SortFunc(list.Refusals, func(a, b ledger.Refusal) int {
		return strings.Compare(a.Namespace+"/"+a.Job, b.Namespace+"/"+b.Job)
	})
	return list
}

func (l gangList) text(now time.Time) string {
	if len(l.Gangs)+len(l.Refusals) == 0 {
		return "No gangs"
	}
	rows := [][]string{{"Gang", "State", "For", "Members", "GPUs", "Queue", "Job", "Reason"}}
	for _, g := range l.Gangs {
		rows = append(rows, []string{
			g.Name, string(g.State), age(now, g.Since), shape(g.Spec), strconv.Itoa(g.Spec.GPUs()), g.Spec.Queue,
			jobName(g.Namespace, g.Job), waitText(g, now),
		})
	}
	for _, r := range l.Refusals {
		rows = append(rows, []string{
			dash(r.Gang), refusedState(r), age(now, r.At), "-", "-", "-", jobName(r.Namespace, r.Job), r.Why.Text,
		})
	}
	return table(rows)
}

// refusedState tells refused jobs that were stopped from those that wait to be mended.
func refusedState(r ledger.Refusal) string {
	if r.Ended {
		return "stopped"
	}
	return "refused"
}

// shape is "4 x 8", or "1 x 1 + 8 x 8" for several groups: members x GPUs of each.
func shape(s ledger.Spec) string {
	parts := make([]string, 0, len(s.Groups))
	for _, g := range s.Groups {
		parts = append(parts, fmt.Sprintf("%d x %d", g.Count, g.GPUs))
	}
	return strings.Join(parts, " + ")
}

// jobName leaves out the namespace that nobody chose.
func jobName(namespace, job string) string {
	if namespace == "" || namespace == "default" {
		return job
	}
	return namespace + "/" + job
}

func reasonText(r *ledger.Reason) string {
	if r == nil {
		return "-"
	}
	return r.Text
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// age is how long ago something was, to the unit that matters.
func age(now, then time.Time) string {
	d := max(now.Sub(then), 0)
	switch {
	case then.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}
