// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// NodesCommand lists the GPU nodes of the ledger.
type NodesCommand struct{ Meta }

// nodeView is one node: its inventory, and what is on it.
type nodeView struct {
	Node   ledger.Node           `json:"node"`
	Silent bool                  `json:"silent"` // its device plugin holds no session
	Health map[string]gpu.Health `json:"health"` // GPUs that are not healthy
	Free   int                   `json:"free"`   // healthy, managed, in no slot
	Slots  []ledger.Slot         `json:"slots"`
}

// Synopsis is one line for the list of commands.
func (c *NodesCommand) Synopsis() string { return "List GPU nodes, their GPUs and slots" }

// Help is the whole usage.
func (c *NodesCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster nodes [options]

  Lists the nodes that the device plugins have reported: their place in the
  topology, GPUs, islands joined by NVLink, free GPUs, and which gangs hold the rest.
` + readHelp)
}

// Run prints the list.
func (c *NodesCommand) Run(args []string) int {
	return c.show("nodes", c, args, 0, func(s ledger.Snapshot, _ string, _ []string) (view, error) { return listNodes(s), nil })
}

// nodeList is what `muster nodes -json` prints.
type nodeList []nodeView

func (l nodeList) text(now time.Time) string {
	if len(l) == 0 {
		return "No nodes: no device plugin has reported to this ledger yet"
	}
	rows := [][]string{{"Node", "Place", "Model", "GPUs", "Islands", "Free", "Gangs", "State"}}
	for _, v := range l {
		rows = append(rows, v.row())
	}
	text := table(rows)
	for _, v := range l {
		text += v.troubles(now)
	}
	return text
}

// troubles is a line for each GPU that is not healthy.
func (v nodeView) troubles(now time.Time) string {
	var lines strings.Builder
	for _, g := range v.Node.Machine.GPUs {
		h, sick := v.Health[g.UUID]
		if !sick {
			continue
		}
		fmt.Fprintf(&lines, "\nGPU %d of %s is %s", g.Index, v.Node.Node, h.State)
		if !h.Since.IsZero() {
			fmt.Fprintf(&lines, " for %s", age(now, h.Since))
		}
		if h.Reason != "" {
			fmt.Fprintf(&lines, ": %s", h.Reason)
		}
	}
	return lines.String()
}

func listNodes(s ledger.Snapshot) nodeList {
	views := nodeList{}
	for name, n := range s.Nodes {
		v := nodeView{
			Node: n.Doc, Silent: s.NodeSessions[name] == "", Health: map[string]gpu.Health{}, Slots: []ledger.Slot{},
		}
		v.Slots = append(v.Slots, s.Tables[name].Doc.Slots...)
		for uuid, h := range s.Health[name].Doc.GPUs {
			if h.State != gpu.Healthy {
				v.Health[uuid] = h
			}
		}
		v.Free = v.countFree()
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b nodeView) int { return strings.Compare(a.Node.Node, b.Node.Node) })
	return views
}

// countFree counts the GPUs that a new slot could take.
func (v nodeView) countFree() int {
	free := 0
	for _, g := range v.Node.Machine.GPUs {
		_, sick := v.Health[g.UUID]
		taken := slices.ContainsFunc(v.Slots, func(s ledger.Slot) bool { return slices.Contains(s.GPUs, g.UUID) })
		if !sick && !taken && !g.MIG && !slices.Contains(v.Node.Unmanaged, g.UUID) {
			free++
		}
	}
	return free
}

func (v nodeView) row() []string {
	n := v.Node
	return []string{
		n.Node, dash(place(n.Topology)), models(n.Machine), strconv.Itoa(len(n.Machine.GPUs)), islands(n.Machine),
		strconv.Itoa(v.Free), dash(strings.Join(v.gangs(), " ")), v.state(),
	}
}

// place is the node's topology labels, by level name: which level is the outer one only the placer's config knows.
func place(topology map[string]string) string {
	parts := make([]string, 0, len(topology))
	for level, label := range topology {
		parts = append(parts, level+"="+label)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func models(m gpu.Machine) string {
	var names []string
	for _, g := range m.GPUs {
		if !slices.Contains(names, g.Model) {
			names = append(names, g.Model)
		}
	}
	return dash(strings.Join(names, ", "))
}

// islands is "8" for one island of eight, "2+2" for two pairs, "-" where no NVLink joins anything.
func islands(m gpu.Machine) string {
	var sizes []string
	for _, island := range gpu.NewTopology(m).Islands() {
		if island.Len() > 1 {
			sizes = append(sizes, strconv.Itoa(island.Len()))
		}
	}
	return dash(strings.Join(sizes, "+"))
}

// gangs is each slot as "<gang>.<rank>", closing ones marked.
func (v nodeView) gangs() []string {
	names := make([]string, 0, len(v.Slots))
	for _, s := range v.Slots {
		name := fmt.Sprintf("%s.%d", s.Owner.Gang, s.Rank)
		if s.State == ledger.SlotClosing {
			name += "(closing)"
		}
		names = append(names, name)
	}
	return names
}

func (v nodeView) state() string {
	switch {
	case v.Node.Problem != "":
		return v.Node.Problem
	case v.Silent:
		return "silent"
	case len(v.Health) > 0:
		return v.sick()
	default:
		return "ready"
	}
}

// sick counts the GPUs that are not healthy by their state.
func (v nodeView) sick() string {
	counts := map[gpu.HealthState]int{}
	for _, h := range v.Health {
		counts[h.State]++
	}
	var parts []string
	for _, state := range []gpu.HealthState{gpu.Lost, gpu.Unhealthy, gpu.Busy} {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	return strings.Join(parts, ", ")
}
