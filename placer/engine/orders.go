// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	answerStays = time.Minute        // how long an answer is left for whoever waits for it
	longestHold = 7 * 24 * time.Hour // of an operator; who wants more stops the job
)

// orders does what operators have ordered, or answers why not: one action for each order. What happens to a gang by
// itself comes first: the order is looked at again when that is done.
func (s step) orders(busy map[string]bool) []Action {
	var actions []Action
	for _, name := range slices.Sorted(maps.Keys(s.Ledger.Orders)) {
		o := s.Ledger.Orders[name]
		o.Doc.Gang = name // it is its key that counts
		switch {
		case o.Doc.Answer != nil && s.now.Sub(o.Doc.Answer.At) >= answerStays:
			actions = append(actions, dropped(o, "its answer is old"))
		case o.Doc.Answer == nil && !busy[name]:
			action, refusal, now := s.obey(o)
			switch {
			case refusal != "":
				o.Doc.Answer = &ledger.Answer{Text: refusal, At: s.now}
				actions = append(actions, Action{Kind: Answer, What: refusal, Order: &o})
			case now:
				action.Order = &o
				actions = append(actions, action)
			}
		}
	}
	return actions
}

// dropped removes an order that leaves nothing to do.
func dropped(o ledger.Versioned[ledger.Order], why string) Action {
	return Action{Kind: DropOrder, What: why, Order: &o}
}

// obey is what an order leads to, or why it is refused; neither when that can't be said yet.
func (s step) obey(o ledger.Versioned[ledger.Order]) (action Action, refusal string, now bool) {
	doc, known := s.Ledger.Gangs[o.Doc.Gang]
	g := doc.Doc
	switch {
	case slices.Contains(s.Ledger.Newer, s.rules.Keys.Gang(o.Doc.Gang)):
		return Action{}, fmt.Sprintf("the document of gang %s was written by a newer version of Muster; upgrade the placers", o.Doc.Gang), false
	case o.Doc.Kind == ledger.OrderRelease:
		return s.forceRelease(g, o)
	case !known:
		return Action{}, fmt.Sprintf("there is no gang %s", o.Doc.Gang), false
	case g.State == ledger.GangFinished || g.State == ledger.GangFailed || g.State == ledger.GangClosing && g.After != ledger.GangWaiting:
		return Action{}, isOver(g), false
	case o.Doc.Kind == ledger.OrderPreempt:
		return s.preempt(g, o.Doc)
	case o.Doc.Kind == ledger.OrderSet:
		return s.set(g, o.Doc)
	}
	return Action{}, fmt.Sprintf("this placer knows no order to %s; upgrade it", o.Doc.Kind), false
}

// isOver says in words that a gang will not run again by itself.
func isOver(g ledger.Gang) string {
	text := fmt.Sprintf("gang %s has %s", g.Name, g.State)
	if g.State == ledger.GangClosing {
		text = fmt.Sprintf("gang %s is ending for good", g.Name)
	}
	if g.Why != nil {
		text += ": " + g.Why.Text
	}
	return text
}

// preempt lets a gang give its GPUs back and sends it to the end of the queue, where it is held for as long as the
// operator says. It is no attempt that failed. A gang that waits, or will, only loses its place.
func (s step) preempt(g ledger.Gang, o ledger.Order) (action Action, refusal string, now bool) {
	hold := time.Duration(o.HoldS) * time.Second
	if o.HoldS < 0 || o.HoldS > int64(longestHold/time.Second) {
		return Action{}, fmt.Sprintf("a gang can be held for at most %d days; stop its job instead", longestHold/(24*time.Hour)), false
	}
	g.Submitted, g.HoldUntil = s.now, nil
	if hold > 0 {
		until := s.now.Add(hold)
		g.HoldUntil = &until
	}
	if g.State == ledger.GangWaiting || g.State == ledger.GangClosing {
		return Action{Kind: Put, What: putOrdered, Gang: g}, "", true
	}
	text := "preempted by an operator"
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	closed := s.closing(g, ledger.GangWaiting, resultPreempted, reason(WhyPreempted, text))
	closed.Attempts = max(closed.Attempts-1, 0)
	return Action{Kind: Close, What: WhyPreempted, Gang: closed}, "", true
}

// set lays knobs over what the job's meta says, or takes them away again. What the gang holds stays as it is.
func (s step) set(g ledger.Gang, o ledger.Order) (action Action, refusal string, now bool) {
	w, how, why := s.owner(g)
	switch {
	case how == unknown || s.Nomad.Stale != "":
		return Action{}, "", false
	case how != owns:
		return Action{}, why, false
	case len(o.Values) == 0:
		return Action{}, "nothing to set; name knobs as key=value", false
	}
	knobs := maps.Clone(g.Set)
	if knobs == nil {
		knobs = map[string]string{}
	}
	maps.Copy(knobs, o.Values)
	maps.DeleteFunc(knobs, func(_, value string) bool { return value == "" })
	if _, err := w.gang.With(knobs, w.options); err != nil {
		return Action{}, err.Error(), false
	}
	_, queue := o.Values["queue"]
	_, priority := o.Values["priority"]
	if why := s.unwelcome(g.Namespace, w.specWith(knobs)); why != nil && (queue || priority) {
		return Action{}, why.Text, false
	}
	if g.Set = knobs; len(knobs) == 0 {
		g.Set = nil
	}
	if g.JobVersion == w.job.Version {
		g.Spec = w.specWith(g.Set)
	}
	return Action{Kind: Put, What: putOrdered, Gang: g}, "", true
}

// forceRelease takes closing slots out of the ledger although their nodes have not vouched for them: the operator does.
// Slots of any other reservation than the one that the operator has looked at are left alone. Where tables and claims are
// too many for one transaction, claims go first, step by step.
func (s step) forceRelease(g ledger.Gang, o ledger.Versioned[ledger.Order]) (action Action, refusal string, now bool) {
	switch {
	case o.Doc.Reservation == "":
		return Action{}, "an order to release slots must name their reservation", false
	case g.Reservation == nil || g.Reservation.ID != o.Doc.Reservation:
		return s.forceSweep(o)
	case g.State != ledger.GangClosing:
		return Action{}, fmt.Sprintf("gang %s is %s, not closing; preempt it first", g.Name, g.State), false
	}
	for _, p := range g.Reservation.Placements {
		if refusal := s.mayAnswer(p.Node); refusal != "" {
			return Action{}, refusal, false
		}
	}
	action = s.release(g, ledger.Release{Vouched: true})
	c, err := change(s.Ledger, action)
	if err != nil {
		return Action{}, err.Error(), false
	}
	if first := c.Surplus(); len(first) > 0 {
		return Action{Kind: EndClaims, What: "ordered", Gang: g, Claims: first}, "", true
	}
	return action, "", true
}

// mayAnswer says why nobody vouches for a node yet; empty: it has said itself what it remembers, or nobody waits for that.
func (s step) mayAnswer(node string) string {
	if !s.Ledger.Unheard(node) || !s.patient() {
		return ""
	}
	return fmt.Sprintf("node %s has not said yet what it remembers of its slots, which a new leader asks first and waits %s for; order it again then",
		node, jobspecs.ShortDuration(s.rules.FenceTime))
}

// forceSweep is forceRelease for slots that no gang holds any more, one node after the other.
func (s step) forceSweep(o ledger.Versioned[ledger.Order]) (action Action, refusal string, now bool) {
	orphans := s.Ledger.Orphans()
	for _, node := range slices.Sorted(maps.Keys(orphans)) {
		if !slices.ContainsFunc(orphans[node], func(slot ledger.Slot) bool { return slot.Reservation == o.Doc.Reservation }) {
			continue
		}
		if refusal := s.mayAnswer(node); refusal != "" {
			return Action{}, refusal, false
		}
		if _, _, err := ledger.BuildSweep(s.Ledger, node, o.Doc.Reservation); err != nil {
			return Action{}, err.Error(), false
		}
		return Action{Kind: Sweep, What: "ordered", Node: node, Vouched: o.Doc.Reservation}, "", true
	}
	return dropped(o, "the reservation is gone"), "", true
}

// knobText is what an operator has set, for the log.
func knobText(values map[string]string) string {
	parts := make([]string, 0, len(values))
	for _, knob := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, knob+"="+values[knob])
	}
	return strings.Join(parts, " ")
}
