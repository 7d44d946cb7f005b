// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"fmt"

	"github.com/nomad-muster/muster/placer/model"
)

// impossible finds what the cluster could not hold even if every GPU were free and every node open.
func (e *explanation) impossible() (model.Reason, bool) {
	text := ""
	switch {
	case e.g.Size() == 0:
		text = "the job asks for no members"
	case e.widest < 0:
		text = e.unknownLocality()
	case len(e.c.nodes) == 0:
		return model.Reason{}, false
	default:
		text = e.tooLarge()
	}
	return model.Reason{Code: model.WaitNever, Text: text}, text != ""
}

func (e *explanation) unknownLocality() string {
	known := make([]string, len(e.c.rungs))
	for r := range e.c.rungs {
		known[r] = e.c.rungs[r].name
	}
	return fmt.Sprintf("muster_locality = %s is none of %s", e.g.Locality, list(known))
}

// tooLarge returns the empty text if the gang could ever fit, and also if the search was cut off before it could tell.
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
	if !joined.holds(e.everywhere()) {
		return e.gangTooLarge(joined)
	}
	if !e.g.RelaxNever || e.widest == last {
		return ""
	}
	if _, found := joined.within(e.widest); found || joined.cutOff {
		return ""
	}
	return e.domainsTooSmall(joined)
}

// memberTooLarge compares one member with the largest node or island.
func (e *explanation) memberTooLarge(a *attempt, k int) string {
	want := &a.asks[k]
	for i := range e.c.nodes {
		if a.alone[k][i] > 0 {
			return ""
		}
	}
	who := "job"
	if len(a.asks) > 1 {
		who = "group " + want.Name
	}
	if a.rules.nvlink {
		most, _ := e.mostJoined(e.everywhere(), true)
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
	k := joined.short(e.everywhere())
	if k < 0 {
		if joined.cutOff {
			return ""
		}
		return fmt.Sprintf("%s; even if it were empty, the cluster could not hold all members at once", e.needs(-1, ""))
	}
	if sum(joined.roomsOf(k, e.everywhere())) >= joined.asks[k].Count {
		return fmt.Sprintf("%s; a gang may span at most %d nodes", e.needs(k, ""), e.c.span)
	}
	return fmt.Sprintf("%s; even if it were empty, the cluster could hold only %d of %d members", e.needs(k, ""),
		joined.count(k, e.everywhere()), joined.asks[k].Count)
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
		if room := e.startable(joined, k, level.domains[d].nodes); room > most {
			best, most = d, room
		}
	}
	return text + fmt.Sprintf("%s in one %s; the largest, %s, has room for %d of %d members", e.needs(k, ""), level.name,
		level.domains[best].name, most, e.g.Size()) + never
}
