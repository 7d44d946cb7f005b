// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// silent says whether a node can't be heard: its device plugin's session has ended, or Nomad has lost its client.
func (v View) silent(node string) bool {
	if v.Ledger.NodeSessions[node] == "" {
		return true
	}
	n := v.Nomad.Nodes[v.Ledger.Nodes[node].Doc.NodeID]
	return n == nil || n.Status == structs.NodeStatusDown || n.Status == structs.NodeStatusDisconnected
}

// silentSince is since when each node has been silent. While Nomad can't be asked, time does not count; while Consul
// can't, nobody leads.
func (v View) silentSince(before map[string]time.Time, now time.Time) map[string]time.Time {
	after := map[string]time.Time{}
	for node := range v.Ledger.Tables {
		if v.silent(node) {
			after[node] = since(before, node, now, v.Nomad.Stale != "")
		}
	}
	return after
}

// fenced says whether a node has been silent for so long that its gangs go on elsewhere.
func (s step) fenced(node string) bool {
	return longer(s.Memory.Silent, node, s.rules.FenceTime, s.now)
}

// fencedNode finds a node that is fenced and on which a member has not done its work.
func (s step) fencedNode(members []member) (text string, some bool) {
	for _, m := range members {
		if s.fenced(m.node) && !m.done() {
			return fmt.Sprintf("node %s has been silent for %s", m.node, jobspecs.ShortDuration(s.rules.FenceTime)), true
		}
	}
	return "", false
}

// leftBehind are the nodes of a closing gang that are fenced: it does not wait for their word. Their slots stay in the
// ledger, closing, until they come back and acknowledge.
func (s step) leftBehind(g ledger.Gang) map[string]bool {
	nodes := map[string]bool{}
	for _, p := range g.Reservation.Placements {
		if s.fenced(p.Node) {
			nodes[p.Node] = true
		}
	}
	return nodes
}

// bornAnew finds a node of the gang that is not the one that was granted any more: the machine was started anew, so that
// nothing of the gang is left there, or its Nomad client has lost its data, so that Nomad will never hear of the member
// again.
func (s step) bornAnew(members []member) (text string, some bool) {
	for _, m := range members {
		n, known := s.Ledger.Nodes[m.node]
		slot, held := s.Ledger.Tables[m.node].Doc.Find(m.slot)
		if !known || !held || m.done() || s.Ledger.NodeSessions[m.node] == "" {
			continue
		}
		if n.Doc.BootID != slot.BootID || n.Doc.MachineID != slot.MachineID {
			return fmt.Sprintf("node %s was started anew", m.node), true
		}
		if a := m.alloc(); a != nil && !a.Terminal() && a.NodeID != n.Doc.NodeID {
			return fmt.Sprintf("the Nomad client of node %s has lost its data and registered anew", m.node) + m.leftAlone(), true
		}
	}
	return "", false
}

// leftAlone says what a person must do about a task whose Nomad client has forgotten it; empty: its driver ends it.
func (m member) leftAlone() string {
	if m.group.Driver == driverMuster || m.claim == nil {
		return ""
	}
	return fmt.Sprintf("; nobody ends its %s task there any more: end its processes, which 'muster release' lists", m.group.Driver)
}

// beyond says whether nobody can say any more how an allocation fares: its node is fenced, or is gone for Nomad while its
// machine has registered as another one, since its client lost its data.
func (s step) beyond(a *nomad.Alloc) bool {
	node := s.Nomad.Nodes[a.NodeID]
	if node == nil {
		return false
	}
	if name, known := s.names[a.NodeID]; known {
		return s.fenced(name)
	}
	_, known := s.Ledger.Nodes[node.Name]
	return known && s.Ledger.NodeSessions[node.Name] != "" && node.Status != structs.NodeStatusReady
}
