// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"fmt"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// Explain says why a gang that Fit did not place waits, and when its locality widens next (zero: it does not, or
// that would not help). The reason is true of what is free now; call it after the last Take of a round, so that all
// reasons speak of the same state. What stands in the way for ever comes first, then the back-off, then what has to
// change for the gang to start.
func (c *Cluster) Explain(g model.Gang, now time.Time) (model.Reason, time.Time) {
	widest, relaxAt := c.permitted(&g, now)
	e := explanation{c: c, g: &g, widest: widest}
	if text := e.never(); text != "" {
		return model.Reason{Code: model.WaitNever, Text: text}, time.Time{}
	}
	if g.NotBefore.After(now) && g.Held {
		return model.Reason{Code: model.WaitHeld, Text: "held back by an operator for " + roughly(g.NotBefore.Sub(now)) + " more"}, relaxAt
	}
	if g.NotBefore.After(now) {
		return model.Reason{
			Code: model.WaitBackoff,
			Text: "the last attempt failed; tries again in " + roughly(g.NotBefore.Sub(now)),
		}, relaxAt
	}
	if t, found := c.trade(&g, now); found && t.declines {
		return model.Reason{Code: model.WaitLocality, Text: t.text(c, now)}, t.until
	}
	said := e.remembered()
	if said.relaxes {
		said.Text += "; " + c.relaxes(widest, relaxAt, now)
	}
	return said.Reason, relaxAt
}

func (c *Cluster) relaxes(widest int, relaxAt, now time.Time) string {
	if relaxAt.IsZero() {
		return "muster_relax_after is never"
	}
	return fmt.Sprintf("relaxes to %s in %s", c.rungs[widest+1].name, roughly(relaxAt.Sub(now)))
}

// explanation is the search for the reason of one gang.
type explanation struct {
	c      *Cluster
	g      *model.Gang
	widest int

	full *attempt // by all rules of the gang
	gpus *attempt // by free GPUs alone
}

// remembered returns the reason that was found for a gang of the same shape since the cluster last changed, or finds it.
func (e *explanation) remembered() said {
	shape := e.c.shapeOf(e.g, e.widest, true)
	if known, some := e.c.memo.reasons[string(shape)]; some && known.changes == e.c.memo.changes {
		return known
	}
	e.look()
	reason := e.reason()
	found := said{changes: e.c.memo.changes, Reason: reason, relaxes: reason.Code == model.WaitLocality}
	put(e.c.memo.reasons, shape, found)
	return found
}

// look makes the attempts that a reason is found by.
func (e *explanation) look() {
	if e.full == nil {
		e.full = e.c.newAttempt(e.g, rules{nvlink: e.g.NVLinkRequired})
		e.gpus = e.c.newAttempt(e.g, rules{anyNode: true, anyResources: true})
	}
}

// reason finds what has to change. The first that holds is told: no node accepts a group; it would fit, but not within
// the permitted domain; it would fit but for something other than GPUs; there are GPUs, but in pieces; there are too few.
func (e *explanation) reason() model.Reason {
	if len(e.c.nodes) == 0 {
		return model.Reason{Code: model.WaitCapacity, Text: "the cluster has no GPU nodes"}
	}
	for k := range e.full.asks {
		if text, none := e.noNode(k); none {
			return model.Reason{Code: model.WaitConstraints, Text: text}
		}
	}
	everywhere := e.c.all()
	switch {
	case e.widest < len(e.c.rungs)-1 && e.full.holds(everywhere):
		return model.Reason{Code: model.WaitLocality, Text: e.locality()}
	case e.gpus.holds(everywhere):
		return e.obstacle()
	}
	return e.shortage()
}

// holds says whether the gang goes somewhere in a domain, in whatever way.
func (a *attempt) holds(d *domain) bool {
	if !a.possible(d) {
		return false
	}
	if len(a.asks) == 1 {
		return true
	}
	_, found := a.anyhow(d)
	return found
}

// noNode says why no node at all is open to ask k, if so.
func (e *explanation) noNode(k int) (string, bool) {
	var why []string
	for i := range e.c.nodes {
		if e.full.accepts(k, i) {
			return "", false
		}
		why = append(why, e.refusal(k, i))
	}
	return fmt.Sprintf("no node accepts group %s: %s", e.full.asks[k].Name, mostOften(why)), true
}

// refusal is why a node is not open to ask k.
func (e *explanation) refusal(k, i int) string {
	if closed := e.c.nodes[i].Closed; closed != "" {
		return closed
	}
	return e.full.asks[k].Refused[e.c.nodes[i].Name]
}

// shortage explains that there are not enough free GPUs, or not enough of them together.
func (e *explanation) shortage() model.Reason {
	everywhere := e.c.all()
	free, closed := 0, 0
	for at, t := range e.c.summary(everywhere).grades {
		free += t.open * e.c.grades[at].free
		closed += t.closed * e.c.grades[at].free
	}
	k := e.gpus.short(everywhere)
	need := e.g.GPUs()
	if k >= 0 {
		need = e.gpus.asks[k].Count * e.gpus.asks[k].GPUs
	}
	parts := []string{e.needs(k, "free "), e.freeText(free, closed)}
	if free+closed < need {
		if n := e.startable(e.full, k, everywhere); n > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d members could start now", n, e.sizeOf(k)))
		}
		return model.Reason{Code: model.WaitCapacity, Text: strings.Join(parts, "; ")}
	}
	return model.Reason{Code: model.WaitFragmented, Text: strings.Join(parts, "; ") + ", but " + e.pieces(k)}
}

func (e *explanation) freeText(free, closed int) string {
	total := e.c.all().usable
	text := fmt.Sprintf("%d of %s %s free", free, count(total, "GPU"), verb(free, "is", "are"))
	if free == 0 {
		text = fmt.Sprintf("none of %s is free", count(total, "GPU"))
	}
	if closed > 0 {
		text += fmt.Sprintf(", %d more on closed nodes", closed)
	}
	return text
}

// pieces says how the free GPUs are scattered.
func (e *explanation) pieces(k int) string {
	everywhere := e.c.all()
	if k < 0 {
		return fmt.Sprintf("in pieces for only %d of %d members", e.startable(e.gpus, k, everywhere), e.g.Size())
	}
	want := &e.gpus.asks[k]
	switch room := e.gpus.count(k, everywhere); {
	case e.gpus.roomsOf(k, everywhere).members() >= want.Count:
		return fmt.Sprintf("the %d fullest nodes hold only %d members, and a gang may span no more", e.c.span, room)
	case room == 0:
		most := 0
		for at, t := range e.c.summary(everywhere).grades {
			if t.open+t.closed > 0 {
				most = max(most, e.c.grades[at].free)
			}
		}
		return fmt.Sprintf("at most %d on one node", most)
	case e.byNode(k):
		return fmt.Sprintf("only %s %s %d", count(room, "node"), verb(room, "has", "have"), want.GPUs)
	default:
		return fmt.Sprintf("in pieces for only %d of %d members", room, want.Count)
	}
}

// startable returns how many members could be placed, of ask k, or in the obvious order of all if k is -1.
func (e *explanation) startable(a *attempt, k int, d *domain) int {
	if k >= 0 {
		return a.count(k, d)
	}
	_, placed := a.greedy(a.fullestFirst([]*domain{d}, false), false)
	return placed
}

func (e *explanation) sizeOf(k int) int {
	if k >= 0 {
		return e.full.asks[k].Count
	}
	return e.g.Size()
}
