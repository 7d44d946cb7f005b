// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/placer/model"
)

// kind is what, other than GPUs, keeps members off a node; in the order in which it is told.
type kind int

const (
	closedNode kind = iota
	refusedNode
	noCPU
	noMemory
	noDisk
	noNVLink
)

// resource is one of resources, by its index there.
type resource struct {
	index      int
	name, unit string
}

// resourceOf returns what a node lacks.
func resourceOf(k kind) resource {
	switch k {
	case noCPU:
		return resource{index: 0, name: "CPU", unit: "MHz"}
	case noMemory:
		return resource{index: 1, name: "memory", unit: "MiB"}
	default:
		return resource{index: 2, name: "disk", unit: "MiB"}
	}
}

// hindrance is the nodes with free GPUs that one kind of obstacle keeps from being used.
type hindrance struct {
	kind  kind
	nodes []int
	most  int    // the node that has most of the resource
	why   string // closed or refused: the different reasons
}

// blocked are the hindrances of one ask in one domain as of a number of changes.
type blocked struct {
	changes    int
	hindrances []hindrance
}

// blockedKey is what they depend on.
type blockedKey struct {
	view    *view
	refused uintptr // the map that says why
	limit   int
	lo, hi  int
}

// blocked sorts the nodes of a domain where ask k has less room than their free GPUs would give by the first cause, most
// nodes first.
func (e *explanation) blocked(k int, d *domain) []hindrance {
	if e.full.asks[k].GPUs == 0 {
		return nil
	}
	want := &e.full.asks[k]
	key := blockedKey{e.full.view(k), reflect.ValueOf(want.Refused).Pointer(), e.full.limitOf(k), d.lo, d.hi}
	if known, some := e.c.memo.blocked[key]; some && known.changes == e.c.memo.changes {
		return known.hindrances
	}
	found := e.findBlocked(k, d)
	if len(e.c.memo.blocked) >= maxMemo {
		clear(e.c.memo.blocked)
	}
	e.c.memo.blocked[key] = blocked{changes: e.c.memo.changes, hindrances: found}
	return found
}

func (e *explanation) findBlocked(k int, d *domain) []hindrance {
	var found []hindrance
	for i := d.lo; i < d.hi; i++ {
		if e.full.alone(k, i) >= e.gpus.alone(k, i) {
			continue
		}
		kind := e.kindAt(k, i)
		at := slices.IndexFunc(found, func(h hindrance) bool { return h.kind == kind })
		if at < 0 {
			at = len(found)
			found = append(found, hindrance{kind: kind, most: i})
		}
		h := &found[at]
		h.nodes = append(h.nodes, i)
		if r := resourceOf(kind).index; e.c.nodes[i].has[r] > e.c.nodes[h.most].has[r] {
			h.most = i
		}
	}
	slices.SortFunc(found, func(a, b hindrance) int {
		if len(a.nodes) != len(b.nodes) {
			return len(b.nodes) - len(a.nodes)
		}
		return int(a.kind - b.kind)
	})
	for at := range found {
		if h := &found[at]; h.kind == closedNode || h.kind == refusedNode {
			h.why = e.refusals(k, h.nodes)
		}
	}
	return found
}

// kindAt finds what limits ask k most on node i.
func (e *explanation) kindAt(k, i int) kind {
	n, want := &e.c.nodes[i], &e.full.asks[k]
	if n.Closed != "" {
		return closedNode
	}
	if !e.full.accepts(k, i) {
		return refusedNode
	}
	worst, least := noNVLink, e.gpus.alone(k, i)
	for r, need := range want.needs {
		if room := share(n.has[r], need); room < least {
			worst, least = noCPU+kind(r), room
		}
	}
	return worst
}

// short names the obstacle in a list of domains.
func (b hindrance) short() string {
	n := len(b.nodes)
	switch b.kind {
	case closedNode:
		return verb(n, "is closed", "are closed")
	case refusedNode:
		return verb(n, "fails a constraint", "fail a constraint")
	case noNVLink:
		return verb(n, "lacks NVLink", "lack NVLink")
	case noCPU, noMemory, noDisk:
	}
	return verb(n, "lacks ", "lack ") + resourceOf(b.kind).name
}

// long names the obstacle of some of the have nodes with its figures.
func (e *explanation) long(k int, b hindrance, have int) string {
	n := len(b.nodes)
	who := strconv.Itoa(n)
	switch have {
	case 1:
		who = "it"
	case n:
		who = "all"
	}
	switch b.kind {
	case closedNode:
		return fmt.Sprintf("%s %s closed (%s)", who, verb(n, "is", "are"), b.why)
	case refusedNode:
		return fmt.Sprintf("%s %s group %s (%s)", who, verb(n, "refuses", "refuse"), e.full.asks[k].Name, b.why)
	case noNVLink:
		most, where := e.mostJoined(b.nodes, false)
		return fmt.Sprintf("%s %s NVLink (%d joined GPUs asked, most free joined %d on %s)", who, verb(n, "lacks", "lack"),
			e.full.asks[k].GPUs, most, where)
	case noCPU, noMemory, noDisk:
	}
	r := resourceOf(b.kind)
	most := &e.c.nodes[b.most]
	return fmt.Sprintf("%s %s %s (%d %s asked, most free %d %s on %s)", who, verb(n, "lacks", "lack"), r.name,
		e.full.asks[k].needs[r.index], r.unit, max(0, most.has[r.index]), r.unit, most.Name)
}

// refusals tells the different reasons why nodes are not open to ask k.
func (e *explanation) refusals(k int, nodes []int) string {
	var why []string
	for _, i := range nodes {
		if text := e.refusal(k, i); !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	slices.Sort(why)
	return strings.Join(why, "; ")
}

// obstacle explains that the free GPUs would do, but for something else.
func (e *explanation) obstacle() model.Reason {
	everywhere := e.c.all()
	code, what := e.missing()
	k := e.full.short(everywhere)
	if k < 0 {
		return model.Reason{Code: code, Text: fmt.Sprintf("%s; with %s, %d of %d members could start now",
			e.needs(-1, "free "), what, e.startable(e.full, -1, everywhere), e.g.Size())}
	}
	have := 0
	for room, nodes := range e.gpus.roomsOf(k, everywhere) {
		have += min(1, room) * nodes
	}
	var texts []string
	for _, b := range e.blocked(k, everywhere) {
		texts = append(texts, e.long(k, b, have))
	}
	if e.byNode(k) {
		return model.Reason{Code: code, Text: fmt.Sprintf("%s; %s %s them, but %s",
			e.needs(k, "free "), count(have, "node"), verb(have, "has", "have"), list(texts))}
	}
	return model.Reason{Code: code, Text: fmt.Sprintf("%s; GPUs are free on %s, but %s; %d of %d members could start now",
		e.needs(k, "free "), count(have, "node"), list(texts), e.full.count(k, everywhere), e.full.asks[k].Count)}
}

// missing finds the one thing without which the gang would fit, or the first of several that stand in the way together.
func (e *explanation) missing() (code, what string) {
	must := e.g.NVLinkRequired
	tries := []struct {
		rules
		code, what string
	}{
		{rules{}, model.WaitNVLink, "NVLink"},
		{rules{nvlink: must, anyResources: true}, model.WaitResources, "their CPU, memory and disk"},
		{rules{nvlink: must, anyNode: true}, model.WaitConstraints, "the nodes that accept them"},
		{rules{nvlink: must, anyResources: true, anyNode: true}, model.WaitResources, "their resources and constraints"},
		{rules{anyResources: true}, model.WaitNVLink, "NVLink and their resources"},
		{rules{anyNode: true}, model.WaitNVLink, "NVLink and their constraints"},
	}
	for _, try := range tries {
		if e.c.newAttempt(e.g, try.rules).holds(e.c.all()) {
			return try.code, try.what
		}
	}
	return model.WaitResources, "NVLink, their resources and constraints"
}
