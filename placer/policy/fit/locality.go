// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
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
	if level.name == model.LocalityNode && !e.anyNodeHolds() {
		parts = []string{fmt.Sprintf("needs %s %s", count(e.g.GPUs(), "free GPU"), where), e.listFree()}
	} else if text := e.listRoom(level, k); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func (e *explanation) anyNodeHolds() bool {
	_, found := e.gpus.onOneNode()
	return found
}

// listed is a domain or node with the number that a reason tells of it.
type listed struct {
	at     int // place among its like
	number int
	rank   int // of its name
}

// listing keeps the largest of what it is given, those with equal numbers by name.
type listing struct {
	top   []listed
	total int
}

// add is told of an item.
func (l *listing) add(item listed) {
	l.total++
	at := len(l.top)
	for at > 0 && (item.number > l.top[at-1].number || item.number == l.top[at-1].number && item.rank < l.top[at-1].rank) {
		at--
	}
	if at > maxListed {
		return
	}
	l.top = slices.Insert(l.top, at, item)
	l.top = l.top[:min(len(l.top), maxListed+1)]
}

// listFree lists the nodes with the most free GPUs.
func (e *explanation) listFree() string {
	var l listing
	for i := range e.c.nodes {
		if e.full.accepts(0, i) {
			l.add(listed{at: i, number: e.c.nodes[i].free.Len(), rank: e.c.nameRank[i]})
		}
	}
	return l.enumerate(func(item listed) string {
		text := "none"
		if item.number > 0 {
			text = strconv.Itoa(item.number)
		}
		return e.c.nodes[item.at].Name + " has " + text
	})
}

// listRoom lists the domains with the most room: nodes where a node holds one member, else members.
func (e *explanation) listRoom(level *rung, k int) string {
	var l listing
	var tell func(at int) (string, *domain)
	if level.name == model.LocalityNode {
		tell = func(at int) (string, *domain) { return e.c.nodes[at].Name, &domain{lo: at, hi: at + 1} }
		for i := range e.c.nodes {
			l.add(listed{at: i, number: e.startableOn(k, i), rank: e.c.nameRank[i]})
		}
	} else {
		if len(level.domains) == 0 {
			return fmt.Sprintf("no node has a %s label", level.name)
		}
		tell = func(at int) (string, *domain) { return level.domains[at].name, &level.domains[at] }
		for at, rank := range level.ranks {
			l.add(listed{at: at, number: e.startable(e.full, k, &level.domains[at]), rank: rank})
		}
	}
	return l.enumerate(func(item listed) string {
		name, d := tell(item.at)
		return name + " has " + e.roomText(k, item.number) + e.lacking(k, d)
	})
}

func (e *explanation) startableOn(k, i int) int {
	if k >= 0 {
		return e.full.alone(k, i)
	}
	_, placed := e.full.greedy([]int{i}, false)
	return placed
}

func (e *explanation) roomText(k, room int) string {
	switch {
	case room == 0:
		return "none"
	case k < 0:
		return fmt.Sprintf("room for %d of %d members", room, e.g.Size())
	case !e.byNode(k):
		return "room for " + strconv.Itoa(room)
	}
	return strconv.Itoa(room)
}

// lacking says what keeps GPUs that are free in a domain from counting.
func (e *explanation) lacking(k int, d *domain) string {
	if k < 0 {
		return ""
	}
	b := e.blocked(k, d)
	if len(b) == 0 {
		return ""
	}
	who := count(len(b[0].nodes), "node")
	switch {
	case d.hi-d.lo == 1:
		who = "it"
	case e.byNode(k):
		who = strconv.Itoa(len(b[0].nodes)) + " more"
	}
	return fmt.Sprintf(" (%s %s)", who, b[0].short())
}

// enumerate tells the largest items one by one and the rest in one number, those with nothing too.
func (l *listing) enumerate(tell func(listed) string) string {
	var told []string
	for at, item := range l.top {
		if rest := l.total - at; rest > 1 && (at >= maxListed || item.number == 0) {
			return strings.TrimPrefix(fmt.Sprintf("%s and %d more %s", strings.Join(told, ", "), rest, atMost(item.number)), " and ")
		}
		told = append(told, tell(item))
	}
	return strings.Join(told, ", ")
}

func atMost(n int) string {
	if n == 0 {
		return "have none"
	}
	return fmt.Sprintf("have at most %d", n)
}
