// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// mostNamed is how many nodes or gangs a line names.
const mostNamed = 6

// outlookRows say what is known of a gang's wait: what the time went to, its place in the queue, when it is to start, what
// is kept for it, and what could be done for it.
func outlookRows(g ledger.Gang, now time.Time) [][]string {
	var rows [][]string
	if delay := g.Delay.At(now); delay.Total() > 0 {
		rows = append(rows, []string{"Waited", "= " + delayText(delay)})
	}
	if o := g.Outlook; o != nil && g.State == ledger.GangWaiting {
		if o.Position > 0 {
			rows = append(rows, []string{"Position", fmt.Sprintf("= %d in the order in which gangs are tried", o.Position)})
		}
		if o.Planned != nil {
			rows = append(rows, []string{"Start", "= " + plannedText(*o.Planned, now)})
		}
		if o.Move != nil {
			rows = append(rows, []string{"Proposal", "= " + moveText(*o.Move)})
		}
	}
	if len(g.Earmarks) > 0 {
		text := "= " + earmarksText(g.Earmarks)
		if g.EarmarkedAt != nil {
			text += ", for " + age(now, *g.EarmarkedAt)
		}
		rows = append(rows, []string{"Kept for it", text})
	}
	if n := len(g.Evicted); n > 0 {
		rows = append(rows, []string{"Evicted", fmt.Sprintf("= %s for others, last %s ago", times(n), age(now, g.Evicted[n-1]))})
	}
	return rows
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// delayText is "12m05s: fair share 10m, fragmentation 2m05s".
func delayText(d ledger.Delay) string {
	var parts []string
	for _, label := range []struct {
		name string
		ms   int64
	}{{"fair share", d.FairShareMS}, {"fragmentation", d.FragmentationMS}, {"of its own", d.OwnMS}} {
		if label.ms > 0 {
			parts = append(parts, label.name+" "+lasts(time.Duration(label.ms)*time.Millisecond))
		}
	}
	return lasts(d.Total()) + ": " + strings.Join(parts, ", ")
}

// lasts is a length of time, to the unit that matters.
func lasts(d time.Duration) string { return age(time.Unix(0, 0).Add(d), time.Unix(0, 0)) }

// plannedText is "about 14:20 on n1 and n2 (if estimates hold)".
func plannedText(p ledger.Planned, now time.Time) string {
	on := ""
	if len(p.Nodes) > 0 {
		on = " on " + namesText(p.Nodes, p.MoreNodes)
	}
	switch {
	case p.At.IsZero():
		return "as soon as its place" + on + " is free; nobody knows when that is"
	case p.Sure:
		return "at " + clock(p.At, now) + " at the latest" + on + ", if gangs keep to their muster_max_runtime"
	}
	return "about " + clock(p.At, now) + on + " (if estimates hold)"
}

// clock is a time of day where now is, with the day if it is another one.
func clock(at, now time.Time) string {
	at = at.In(now.Location())
	if at.YearDay() == now.YearDay() && at.Year() == now.Year() {
		return at.Format("15:04")
	}
	return at.Format("15:04 on January 2")
}

// moveText is a proposal in words.
func moveText(m ledger.Move) string {
	names, verb := "gang "+namesText(m.Gangs, 0), "started"
	if len(m.Gangs)+m.MoreGangs > 1 {
		names = "gangs " + namesText(m.Gangs, m.MoreGangs)
	}
	return fmt.Sprintf("it could start if %s %s again elsewhere: %.1f GPU-hours lost, %.1f saved",
		names, verb, m.LostGPUSeconds/3600, m.SavedGPUSeconds/3600)
}

// earmarksText is "8 GPUs on n1 and n2".
func earmarksText(earmarks []ledger.Earmark) string {
	gpus, nodes := 0, make([]string, 0, len(earmarks))
	for _, e := range earmarks {
		if set, err := gpu.ParseSet(e.GPUs); err == nil {
			gpus += set.Len()
		}
		nodes = append(nodes, e.Node)
	}
	return countOf(gpus, "GPU") + " on " + namesText(nodes, 0)
}

// namesText lists some names and says how many more there are.
func namesText(names []string, more int) string {
	if n := len(names); n > mostNamed {
		names, more = names[:mostNamed], more+n-mostNamed
	}
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// waitText is why a gang is as it is, with its start if a time is planned: for lists.
func waitText(g ledger.Gang, now time.Time) string {
	text := reasonText(g.Why)
	if o := g.Outlook; o != nil && o.Planned != nil && !o.Planned.At.IsZero() && g.State == ledger.GangWaiting {
		text += "; starts " + plannedText(*o.Planned, now)
	}
	return text
}
