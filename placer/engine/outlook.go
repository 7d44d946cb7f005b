// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
)

const (
	explainEvery  = 5 * time.Second // how often a reason is written whose figures have changed, but not its kind
	positionEvery = time.Minute     // how often a place in the queue is written if that is all that has changed
	plannedWithin = time.Minute     // by so much a planned start may move before that is news, or by a tenth of what it is away
)

// news is what a decision says about a gang that waits.
type news struct {
	why      *ledger.Reason
	cause    model.Cause
	outlook  ledger.Outlook
	earmarks []ledger.Earmark
}

// newsOf gathers what a decision says about the gangs that wait.
func newsOf(d model.Decision) map[string]news {
	out := map[string]news{}
	for _, w := range d.Waits {
		out[w.Gang] = news{
			why: reason(w.Reason.Code, w.Reason.Text), cause: cmp.Or(w.Cause, model.CauseOwn),
			outlook: ledger.Outlook{Position: w.Position, Planned: planned(w.Planned)}, earmarks: earmarked(w.Earmarks),
		}
	}
	for _, m := range d.Moves {
		if n, waits := out[m.For]; waits {
			gangs := slices.Sorted(slices.Values(m.Gangs))
			n.outlook.Move = &ledger.Move{
				Gangs: gangs[:min(len(gangs), ledger.MaxMovedGangs)], MoreGangs: max(len(gangs)-ledger.MaxMovedGangs, 0),
				LostGPUSeconds: m.LostGPUSeconds, SavedGPUSeconds: m.SavedGPUSeconds,
			}
			out[m.For] = n
		}
	}
	return out
}

func planned(p *model.Planned) *ledger.Planned {
	if p == nil {
		return nil
	}
	return &ledger.Planned{
		At: p.At, Sure: p.Sure, Nodes: slices.Clone(p.Nodes[:min(len(p.Nodes), ledger.MaxPlannedNodes)]),
		MoreNodes: max(len(p.Nodes)-ledger.MaxPlannedNodes, 0),
	}
}

// explain writes why gangs wait and what can be said about their start, where that has changed: at once where it is another
// kind of reason or other GPUs are kept for the gang, and not too often where only figures are others. The account of the
// time that they have waited is brought up to date on the way, never for itself.
func (s step) explain(waiting map[string]ledger.Gang, about map[string]news) []Action {
	var actions []Action
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		n, some := about[name]
		if some && n.why != nil && s.explainNow(waiting[name], n) {
			actions = append(actions, s.explained(waiting[name], n))
		}
	}
	return actions
}

// explainNow says whether what is new about a gang is to be written now.
func (s step) explainNow(g ledger.Gang, n news) bool {
	passed := func(written map[string]time.Time, d time.Duration) bool {
		last, some := written[g.Name]
		return !some || s.now.Sub(last) >= d
	}
	before := ledger.Outlook{}
	if g.Outlook != nil {
		before = *g.Outlook
	}
	switch {
	case g.Why == nil || g.Why.Code != n.why.Code, !slices.Equal(g.Earmarks, n.earmarks), !sameMove(before.Move, n.outlook.Move):
		return true
	case *g.Why != *n.why:
		return passed(s.Memory.Explained, explainEvery)
	case g.Delay.Cause != string(n.cause), !s.samePlan(before.Planned, n.outlook.Planned):
		return passed(s.Memory.Outlined, explainEvery)
	}
	return before.Position != n.outlook.Position && passed(s.Memory.Outlined, positionEvery)
}

func (s step) explained(g ledger.Gang, n news) Action {
	action := Action{Kind: Put, What: putReason}
	if sameReason(g.Why, n.why) {
		action.What = putOutlook
	}
	if n.outlook.Move != nil && (g.Outlook == nil || !sameMove(g.Outlook.Move, n.outlook.Move)) {
		action.Proposed = n.outlook.Move
	}
	if !slices.Equal(g.Earmarks, n.earmarks) {
		g.Earmarks, g.EarmarkedAt = n.earmarks, nil
		if len(n.earmarks) > 0 {
			g.EarmarkedAt = &s.now
		}
	}
	if g.Delay.Since == nil { // written by an earlier version
		g.Delay = g.Delay.From(g.Since)
	}
	g.Why, g.Delay = n.why, g.Delay.Becoming(string(n.cause), s.now)
	g.Outlook = nil
	if n.outlook != (ledger.Outlook{}) {
		n.outlook.At = s.now
		g.Outlook = &n.outlook
	}
	action.Gang = g
	return action
}

// sameMove says whether two proposals are about the same gangs.
func sameMove(a, b *ledger.Move) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.MoreGangs == b.MoreGangs && slices.Equal(a.Gangs, b.Gangs)
}

// samePlan says whether two planned starts are the same for people.
func (s step) samePlan(a, b *ledger.Planned) bool {
	if a == nil || b == nil {
		return a == b
	}
	moved := b.At.Sub(a.At).Abs()
	return a.Sure == b.Sure && a.MoreNodes == b.MoreNodes && slices.Equal(a.Nodes, b.Nodes) &&
		moved < max(plannedWithin, b.At.Sub(s.now)/10)
}

// waitsNoMore is a gang's document without what only a gang that waits has.
func (s step) waitsNoMore(g ledger.Gang) ledger.Gang {
	g.Delay = g.Delay.Ended(s.now)
	g.Outlook, g.Earmarks, g.EarmarkedAt = nil, nil, nil
	return g
}
