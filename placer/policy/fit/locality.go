// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/placer/model"
)

// maxListed is how many domains a reason names before it says "and 12 more".
const maxListed = 3

// locality explains that the gang would fit, but not within one domain of the permitted level.
func (e *explanation) locality() string {
	level := &e.c.rungs[e.widest]
	k := -1
	if len(e.full.asks) == 1 {
		k = 0
	}
	where := "on one node"
	if level.name != model.LocalityNode {
		where = "in one " + level.name
	}
	parts := []string{e.needs(k, "free ") + " " + where}
	if level.name == model.LocalityNode && !e.anyHolds(e.gpus, level) {
		parts = []string{fmt.Sprintf("needs %s %s", count(e.g.GPUs(), "free GPU"), where), e.listFree(level)}
	} else if text := e.listRoom(level, k); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(append(parts, e.relaxes()), "; ")
}

func (e *explanation) anyHolds(a *attempt, level *rung) bool {
	return slices.ContainsFunc(level.domains, func(d domain) bool { return a.holds(d.nodes) })
}

func (e *explanation) relaxes() string {
	if e.relaxAt.IsZero() {
		return "muster_relax_after is never"
	}
	return fmt.Sprintf("relaxes to %s in %s", e.c.rungs[e.widest+1].name, roughly(e.relaxAt.Sub(e.now)))
}

// listed is a domain with the number that a reason tells of it.
type listed struct {
	name   string
	number int
	text   string
}

// listFree lists the nodes with the most free GPUs.
func (e *explanation) listFree(level *rung) string {
	var items []listed
	for _, d := range level.domains {
		n := &e.c.nodes[d.nodes[0]]
		if e.full.accepts(0, d.nodes[0]) {
			text := "none"
			if n.free != 0 {
				text = strconv.Itoa(n.free.Len())
			}
			items = append(items, listed{name: n.Name, number: n.free.Len(), text: text})
		}
	}
	return enumerate(items)
}

// listRoom lists the domains with the most room: nodes where a node holds one member, else members.
func (e *explanation) listRoom(level *rung, k int) string {
	if len(level.domains) == 0 {
		return fmt.Sprintf("no node has a %s label", level.name)
	}
	var items []listed
	for _, d := range level.domains {
		room := e.startable(e.full, k, d.nodes)
		text := strconv.Itoa(room)
		switch {
		case room == 0:
			text = "none"
		case k < 0:
			text = fmt.Sprintf("room for %d of %d members", room, e.g.Size())
		case !e.byNode(k):
			text = "room for " + text
		}
		items = append(items, listed{name: d.name, number: room, text: text + e.lacking(k, d.nodes)})
	}
	return enumerate(items)
}

// lacking says what keeps GPUs that are free in a domain from counting.
func (e *explanation) lacking(k int, nodes []int) string {
	if k < 0 {
		return ""
	}
	b := e.blocked(k, nodes)
	if len(b) == 0 {
		return ""
	}
	who := count(len(b[0].nodes), "node")
	switch {
	case len(nodes) == 1:
		who = "it"
	case e.byNode(k):
		who = strconv.Itoa(len(b[0].nodes)) + " more"
	}
	return fmt.Sprintf(" (%s %s)", who, b[0].short())
}

// enumerate tells the largest items one by one and the rest in one number, those with nothing too.
func enumerate(items []listed) string {
	slices.SortStableFunc(items, func(a, b listed) int {
		return cmp.Or(cmp.Compare(b.number, a.number), cmp.Compare(a.name, b.name))
	})
	var told []string
	for at, item := range items {
		if rest := len(items) - at; rest > 1 && (at >= maxListed || item.number == 0) {
			return strings.TrimPrefix(fmt.Sprintf("%s and %d more %s", strings.Join(told, ", "), rest, atMost(item.number)), " and ")
		}
		told = append(told, item.name+" has "+item.text)
	}
	return strings.Join(told, ", ")
}

func atMost(n int) string {
	if n == 0 {
		return "have none"
	}
	return fmt.Sprintf("have at most %d", n)
}
