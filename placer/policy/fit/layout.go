// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// maxBlock is how many nodes one block holds at most. It trades the cost of bringing a block up to date against that of
// adding up blocks.
const maxBlock = 64

// layout is what does not change with what is free. Clones share it.
type layout struct {
	levels   []string     // outermost first, as in the snapshot
	nodes    []model.Node // in topology order
	joins    []nvlink     // by node
	order    []int        // by place in the snapshot: index in nodes
	byName   map[string]int
	nameRank []int // by node: its place among all names
	everyone []int // all indexes
	largest  int   // GPUs of Usable of the largest node
	joined   bool  // every node's usable GPUs are all joined by NVLink

	rungs   []rung     // innermost first
	parts   [][]domain // per level, and last for multi-node NVLink: all nodes, in domains or one by one
	partOf  [][]int    // per level and node: index in parts
	blocks  []block
	blockOf []int
	slots   int // how many tallies a cluster keeps

	grades   []grade
	gradesAt [][]int   // by usable and free GPUs
	empty    []summary // by slot: the cluster without any gang
	packing  *packing
}

// rung is one step of the locality ladder with the domains that a gang may stay within there; none are listed for
// single nodes.
type rung struct {
	name    string
	domains []domain
	ranks   []int // by domain: its place among the names
}

// domain is a run of nodes that count as close together.
type domain struct {
	name             string // for people: the label, or the whole path where the label alone is not unique
	lo, hi           int    // nodes from lo to before hi
	blockLo, blockHi int
	slot             int // of its summary
	usable           int // GPUs
}

// block is a run of nodes within every domain that has one of them.
type block struct {
	lo, hi int
	slots  []int // of the summaries that it is part of; the first is its own
}

// grade is what nodes of as many usable and free GPUs have in common. Kinds are in the order in which nodes should be used:
// those that are not wholly free first, then those with fewer free GPUs, then smaller ones.
type grade struct {
	whole        bool
	free, usable int
}

// nvlink says how the usable GPUs of a node are joined.
type nvlink uint8

const (
	nvlinkNone nvlink = iota // not at all
	nvlinkSome               // some, or some to some
	nvlinkAll                // all to all
)

func newLayout(s model.Snapshot) *layout {
	l := &layout{levels: s.Levels, byName: make(map[string]int, len(s.Nodes)), packing: newPacking()}
	l.sortNodes(s.Nodes)
	l.joined = true
	for i := range l.nodes {
		l.joins = append(l.joins, l.packing.nvlink(l.nodes[i].Topology, l.nodes[i].Usable))
		l.joined = l.joined && l.joins[i] == nvlinkAll
	}
	l.buildKinds()
	l.buildParts()
	l.buildBlocks()
	l.buildRungs()
	l.empty = make([]summary, l.slots)
	return l
}

func (l *layout) sortNodes(from []model.Node) {
	sorted := make([]int, len(from)) // places in the snapshot
	for at := range from {
		sorted[at] = at
	}
	slices.SortFunc(sorted, func(x, y int) int {
		a, b := &from[x], &from[y]
		return cmp.Or(slices.Compare(a.Path, b.Path), cmp.Compare(a.Fabric, b.Fabric), cmp.Compare(a.Name, b.Name))
	})
	l.nodes = make([]model.Node, len(from))
	l.order = make([]int, len(from))
	l.everyone = make([]int, len(from))
	for i, at := range sorted {
		l.nodes[i] = from[at]
		l.order[at] = i
		l.everyone[i] = i
		l.byName[from[at].Name] = i
		l.largest = max(l.largest, from[at].Usable.Len())
	}
	l.nameRank = ranksOf(len(l.nodes), func(i int) string { return l.nodes[i].Name })
}

// ranksOf returns the place of each of n names in their order.
func ranksOf(n int, name func(at int) string) []int {
	sorted := make([]int, n)
	for at := range sorted {
		sorted[at] = at
	}
	slices.SortStableFunc(sorted, func(x, y int) int { return cmp.Compare(name(x), name(y)) })
	ranks := make([]int, n)
	for rank, at := range sorted {
		ranks[at] = rank
	}
	return ranks
}

// sameLayout says whether the layout is that of a snapshot, too, with its nodes in the same order.
func (c *Cluster) sameLayout(s model.Snapshot) bool {
	if c.layout == nil || len(s.Nodes) != len(c.order) || !slices.Equal(s.Levels, c.levels) {
		return false
	}
	for at := range s.Nodes {
		a, b := &s.Nodes[at], c.nodes[c.order[at]].Node
		if a.Name != b.Name || a.Topology != b.Topology || a.Usable != b.Usable || a.Fabric != b.Fabric || !slices.Equal(a.Path, b.Path) {
			return false
		}
	}
	return true
}

func (l *layout) buildKinds() {
	present := make([]bool, gpu.MaxGPUs+1)
	for i := range l.nodes {
		present[l.nodes[i].Usable.Len()] = true
	}
	for usable, some := range present {
		for free := 0; some && free <= usable; free++ {
			l.grades = append(l.grades, grade{whole: free == usable, free: free, usable: usable})
		}
	}
	slices.SortFunc(l.grades, func(a, b grade) int {
		return cmp.Or(falseFirst(a.whole, b.whole), cmp.Compare(a.free, b.free), cmp.Compare(a.usable, b.usable))
	})
	l.gradesAt = make([][]int, len(present))
	for usable := range present {
		l.gradesAt[usable] = make([]int, usable+1)
	}
	for at, k := range l.grades {
		l.gradesAt[k.usable][k.free] = at
	}
}

func (l *layout) gradeOf(n *node) int { return l.gradesAt[n.usable][n.free.Len()] }

// buildParts cuts the nodes into domains at each level: runs of nodes with the same path down to there, then runs that
// share a multi-node NVLink fabric. A node without a label is one by itself. Labels are compared as whole paths, so that
// rack r1 of zone a is not rack r1 of zone b.
func (l *layout) buildParts() {
	for level := range len(l.levels) + 1 {
		var parts []domain
		partOf := make([]int, len(l.nodes))
		for i := range l.nodes {
			if i == 0 || !l.together(level, &l.nodes[i-1], &l.nodes[i]) {
				parts = append(parts, domain{lo: i})
			}
			part := &parts[len(parts)-1]
			part.hi = i + 1
			part.usable += l.nodes[i].Usable.Len()
			partOf[i] = len(parts) - 1
		}
		l.parts = append(l.parts, parts)
		l.partOf = append(l.partOf, partOf)
	}
}

func (l *layout) together(level int, x, y *model.Node) bool {
	if level < len(l.levels) {
		return label(x, level) != "" && len(y.Path) > level && slices.Equal(x.Path[:level+1], y.Path[:level+1])
	}
	return x.Fabric != "" && x.Fabric == y.Fabric && slices.Equal(x.Path, y.Path)
}

// buildBlocks cuts the nodes into blocks and gives every domain its summary.
func (l *layout) buildBlocks() {
	l.blockOf = make([]int, len(l.nodes))
	for i := range l.nodes {
		if n := len(l.blocks); n == 0 || i-l.blocks[n-1].lo == maxBlock || l.nodes[i].Fabric != l.nodes[i-1].Fabric ||
			!slices.Equal(l.nodes[i].Path, l.nodes[i-1].Path) {
			l.blocks = append(l.blocks, block{lo: i, slots: []int{n}})
		}
		l.blockOf[i] = len(l.blocks) - 1
		l.blocks[len(l.blocks)-1].hi = i + 1
	}
	l.slots = len(l.blocks)
	for _, parts := range l.parts {
		for at := range parts {
			l.bind(&parts[at])
		}
	}
}

// bind finds the blocks of a domain and the place of its summary: that of its block if it is a whole one.
func (l *layout) bind(d *domain) {
	d.slot = -1
	if d.lo == d.hi {
		return
	}
	d.blockLo, d.blockHi = l.blockOf[d.lo], l.blockOf[d.hi-1]+1
	if d.hi-d.lo < l.blocks[d.blockLo].hi-l.blocks[d.blockLo].lo {
		return // a single node without a label, among others of its grade
	}
	if d.blockHi-d.blockLo == 1 {
		d.slot = d.blockLo
		return
	}
	d.slot = l.slots
	l.slots++
	for b := d.blockLo; b < d.blockHi; b++ {
		l.blocks[b].slots = append(l.blocks[b].slots, d.slot)
	}
}

// buildRungs makes the ladder: single nodes, then the levels from the innermost outward, then the whole cluster. A
// node without a label at a level is in no domain of it.
func (l *layout) buildRungs() {
	l.rungs = []rung{{name: model.LocalityNode}}
	for level, name := range slices.Backward(l.levels) {
		domains := l.domainsOf(level)
		ranks := ranksOf(len(domains), func(at int) string { return domains[at].name })
		l.rungs = append(l.rungs, rung{name: name, domains: domains, ranks: ranks})
	}
	all := domain{hi: len(l.nodes)}
	for i := range l.nodes {
		all.usable += l.nodes[i].Usable.Len()
	}
	l.bind(&all)
	l.rungs = append(l.rungs, rung{name: model.LocalityAny, domains: []domain{all}})
}

// domainsOf returns the domains of a level, ordered by path.
func (l *layout) domainsOf(level int) []domain {
	var domains []domain
	labels := make(map[string]int)
	for _, d := range l.parts[level] {
		if d.name = label(&l.nodes[d.lo], level); d.name != "" {
			domains = append(domains, d)
			labels[d.name]++
		}
	}
	for at := range domains {
		if d := &domains[at]; labels[d.name] > 1 {
			d.name = strings.Join(l.nodes[d.lo].Path[:level+1], "/")
		}
	}
	return domains
}

// all is the domain that every node is in.
func (l *layout) all() *domain { return &l.rungs[len(l.rungs)-1].domains[0] }
