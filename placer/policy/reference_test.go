// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// reference says by trying everything, with no thought for speed, whether a gang has a place. The switches drop what
// a place must respect, to check the reasons to wait.
type reference struct {
	snapshot                        model.Snapshot
	gang                            model.Gang
	nvlink                          bool
	anyNode, anyResources, anywhere bool
	empty                           bool
	dead                            map[string]bool // states that were tried before without success
}

func referenceOf(s model.Snapshot, g model.Gang) reference {
	return reference{snapshot: s, gang: g, nvlink: g.NVLinkRequired, dead: make(map[string]bool)}
}

// fits says whether the gang fits on one node, or within one domain of a level up to the one it may use by now.
func (r reference) fits(now time.Time) bool {
	if len(r.gang.Groups) == 0 || r.gang.Size() == 0 {
		return false
	}
	if r.anywhere {
		return r.place(0, r.snapshot.Nodes)
	}
	width, known := allowed(r.snapshot.Levels, r.gang, now)
	if !known {
		return false
	}
	for w := range width + 1 {
		for _, nodes := range domains(r.snapshot, w) {
			if r.place(0, nodes) {
				return true
			}
		}
	}
	return false
}

// allowed counts the steps of the ladder from node (0) to any (number of levels + 1).
func allowed(levels []string, g model.Gang, now time.Time) (width int, known bool) {
	ladder := []string{model.LocalityNode}
	for _, level := range slices.Backward(levels) {
		ladder = append(ladder, level)
	}
	ladder = append(ladder, model.LocalityAny)
	width = slices.Index(ladder, g.Locality)
	if width < 0 {
		return 0, false
	}
	for at := g.WaitingSince.Add(g.RelaxAfter); !g.RelaxNever && !at.After(now) && width < len(ladder)-1; at = at.Add(g.RelaxAfter) {
		width++
	}
	return width, true
}

// domains lists the sets of nodes that are together at a width.
func domains(s model.Snapshot, width int) [][]model.Node {
	var sets [][]model.Node
	if width == len(s.Levels)+1 {
		return [][]model.Node{s.Nodes}
	}
	for i, n := range s.Nodes {
		set := []model.Node{n}
		for _, other := range s.Nodes[i+1:] {
			if level := len(s.Levels) - width; width > 0 && n.Path[level] != "" && slices.Equal(n.Path[:level+1], other.Path[:level+1]) {
				set = append(set, other)
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// place puts the member with that rank, and those after it, on the nodes in every possible way.
func (r reference) place(rank int, nodes []model.Node) bool {
	if rank == r.gang.Size() {
		return true
	}
	state := fmt.Sprintf("%+v %d %s", r.switches(), rank, stateText(nodes))
	if r.dead[state] {
		return false
	}
	group := groupOf(r.gang, rank)
	for i := range nodes {
		before := nodes[i]
		_, refused := group.Refused[before.Name]
		if !r.anyNode && (refused || before.Closed != "") {
			continue
		}
		for set := range subsets(r.free(before), group.GPUs) {
			if r.nvlink && !before.Topology.JoinedByNVLink(set) {
				continue
			}
			after := slices.Clone(nodes)
			after[i].Free &^= set
			after[i].Usable &^= set
			after[i].CPUMHz -= group.CPUMHz
			after[i].MemoryMB -= group.MemoryMB
			after[i].DiskMB -= group.DiskMB
			enough := covers(after[i].CPUMHz, group.CPUMHz) && covers(after[i].MemoryMB, group.MemoryMB) && covers(after[i].DiskMB, group.DiskMB)
			if (enough || r.anyResources) && r.place(rank+1, after) {
				return true
			}
			if !r.nvlink {
				break // which GPUs it is makes no difference
			}
		}
	}
	r.dead[state] = true
	return false
}

func (r reference) switches() [4]bool { return [4]bool{r.nvlink, r.anyNode, r.anyResources, r.empty} }

func stateText(nodes []model.Node) string {
	var text strings.Builder
	for _, n := range nodes {
		fmt.Fprintln(&text, n.Name, n.Free, n.Usable, n.CPUMHz, n.MemoryMB, n.DiskMB)
	}
	return text.String()
}

// covers says whether what is left after a member is fine; a member that asks for nothing does not mind.
func covers(left, asked int64) bool { return asked == 0 || left >= 0 }

func (r reference) free(n model.Node) gpu.Set {
	if r.empty {
		return n.Usable
	}
	return n.Free
}

func groupOf(g model.Gang, rank int) model.Group {
	for _, group := range g.Groups {
		if rank < group.Count {
			return group
		}
		rank -= group.Count
	}
	panic("no such rank")
}

// subsets yields every set of k of the GPUs.
func subsets(of gpu.Set, k int) func(yield func(gpu.Set) bool) {
	return func(yield func(gpu.Set) bool) {
		for set := gpu.Set(0); ; set = (set - of) & of { // counts up through the subsets of of
			if set.Len() == k && !yield(set) {
				return
			}
			if set == of {
				return
			}
		}
	}
}
