// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"fmt"

	"github.com/nomad-muster/muster/placer/model"
)

// never says why the cluster could not hold the gang even if every GPU were free and every node open; empty if it could, and
// also if the search was cut off before it could tell.
func (e *explanation) never() string {
	switch {
	case e.g.Size() == 0:
		return "the job asks for no members"
	case e.widest < 0:
		return e.unknownLocality()
	case len(e.c.nodes) == 0:
		return ""
	}
	shape := e.c.shapeOf(e.g, e.widest, true)
	if e.g.RelaxNever && !e.g.RelaxAuto {
		shape = append(shape, 'r')
	}
	text, known := e.c.memo.never[string(shape)]
	if !known {
		e.look()
		text = e.tooLarge()
		put(e.c.memo.never, shape, text)
	}
	return text
}

func (e *explanation) unknownLocality() string {
	known := make([]string, len(e.c.rungs))
	for r := range e.c.rungs {
		known[r] = e.c.rungs[r].name
	}
	return fmt.Sprintf("muster_locality = %s is none of %s", e.g.Locality, list(known))
}

// tooLarge is never for a gang and a cluster that are not empty.
func (e *explanation) tooLarge() string {
	empty := rules{anyNode: true, anyResources: true, empty: true}
	gpus := e.c.newAttempt(e.g, empty)
	empty.nvlink = e.g.NVLinkRequired
	joined := e.c.newAttempt(e.g, empty)
	for _, a := range []*attempt{gpus, joined} {
		for k := range a.asks {
			if text := e.memberTooLarge(a, k); text != "" {
				return text
			}
		}
	}
	last := len(e.c.rungs) - 1
	if !joined.holds(e.c.all()) {
		return e.gangTooLarge(joined)
	}
	if !e.g.RelaxNever || e.g.RelaxAuto || e.widest == last {
		return ""
	}
	if joined.holdsWithin(e.widest) || joined.cutOff {
		return ""
	}
	return e.domainsTooSmall(joined)
}

// holdsWithin says whether the gang goes into some domain of the rungs up to the widest.
func (a *attempt) holdsWithin(widest int) bool {
	if _, found := a.onOneNode(); found {
		return true
	}
	for r := 1; r <= widest; r++ {
		for at := range a.c.rungs[r].domains {
			if a.holds(&a.c.rungs[r].domains[at]) {
				return true
			}
		}
	}
	return false
}

// memberTooLarge compares one member with the largest node or island.
func (e *explanation) memberTooLarge(a *attempt, k int) string {
	want := &a.asks[k]
	if a.roomsOf(k, e.c.all()).members() > 0 {
		return ""
	}
	who := "job"
	if len(a.asks) > 1 {
		who = "group " + want.Name
	}
	if a.rules.nvlink {
		most, _ := e.mostJoined(e.c.everyone, true)
		return fmt.Sprintf("%s asks for %s joined by NVLink per member; at most %d are joined on one node", who, count(want.GPUs, "GPU"), most)
	}
	return fmt.Sprintf("%s asks for %s per member; the largest node has %d", who, count(want.GPUs, "GPU"), e.c.largest)
}

// mostJoined returns the most GPUs that are joined by NVLink on one of the nodes, and which node that is; in use or not
// if empty, else of the free ones.
func (e *explanation) mostJoined(nodes []int, empty bool) (most int, where string) {
	for _, i := range nodes {
		n := &e.c.nodes[i]
		among := n.free
		if empty {
			among = n.Usable
		}
		for among.Len() > most && e.c.packing.room(n.Topology, among, nil, most+1, 1) == 1 {
			most++
			where = n.Name
		}
	}
	return most, where
}

// gangTooLarge explains that all members are too many. It returns the empty text if the search was cut off.
func (e *explanation) gangTooLarge(joined *attempt) string {
	k := joined.short(e.c.all())
	if k < 0 {
		if joined.cutOff {
			return ""
		}
		return fmt.Sprintf("%s; even if it were empty, the cluster could not hold all members at once", e.needs(-1, ""))
	}
	if joined.roomsOf(k, e.c.all()).members() >= joined.asks[k].Count {
		return fmt.Sprintf("%s; a gang may span at most %d nodes", e.needs(k, ""), e.c.span)
	}
	return fmt.Sprintf("%s; even if it were empty, the cluster could hold only %d of %d members", e.needs(k, ""),
		joined.count(k, e.c.all()), joined.asks[k].Count)
}

// domainsTooSmall explains that the gang insists on a domain that no domain is large enough for.
func (e *explanation) domainsTooSmall(joined *attempt) string {
	level := &e.c.rungs[e.widest]
	text := fmt.Sprintf("muster_locality = %s ", level.name)
	never := ", and muster_relax_after is never"
	if level.name == model.LocalityNode {
		return text + fmt.Sprintf("needs %s on one node; the largest has %d", count(e.g.GPUs(), "GPU"), e.c.largest) + never
	}
	if len(level.domains) == 0 {
		return text + fmt.Sprintf("is asked for, but no node has a %s label", level.name) + never
	}
	k := -1
	if len(joined.asks) == 1 {
		k = 0
	}
	best, most := 0, -1
	for d := range level.domains {
		if room := e.startable(joined, k, &level.domains[d]); room > most {
			best, most = d, room
		}
	}
	return text + fmt.Sprintf("%s in one %s; the largest, %s, has room for %d of %d members", e.needs(k, ""), level.name,
		level.domains[best].name, most, e.g.Size()) + never
}
