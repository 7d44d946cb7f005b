// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import "math"

// roomsOf counts the nodes of a domain by how many members of ask k, at most all of them, each could hold if the gang had
// none there yet. The answer holds until the next question about ask k.
func (a *attempt) roomsOf(k int, d *domain) histogram {
	want := &a.asks[k]
	if want.rooms == nil {
		want.rooms = make(histogram, a.limitOf(k)+1)
	}
	h := want.rooms
	clear(h)
	switch {
	case d.slot < 0 || want.GPUs == 0:
		for i := d.lo; i < d.hi; i++ {
			h[a.alone(k, i)]++
		}
	case want.out != nil || !a.roomsByGrade(k, d, h):
		clear(h)
		for room, n := range a.view(k).domain(a, k, d) {
			h[min(room, len(h)-1)] += int(n)
		}
	}
	return h
}

// limitOf returns how many members of ask k any node could hold at most.
func (a *attempt) limitOf(k int) int {
	if want := &a.asks[k]; want.GPUs > 0 {
		return min(want.Count, a.c.largest/want.GPUs)
	}
	return a.asks[k].Count
}

// roomsByGrade answers without a look at any block, or returns false if nodes of one grade differ.
func (a *attempt) roomsByGrade(k int, d *domain, h histogram) bool {
	s := a.summary(d)
	for at := range s.grades {
		t := &s.grades[at]
		if a.c.grades[at].free < a.asks[k].GPUs || t.open+t.closed == 0 {
			continue
		}
		room, exact := a.roomOf(k, at, t, a.asks[k].Count)
		if !exact {
			return false
		}
		h[room] += a.usableOf(t)
	}
	return true
}

func (a *attempt) summary(d *domain) *summary {
	if a.rules.empty {
		return a.c.emptied(d)
	}
	return a.c.summary(d)
}

func (a *attempt) summaryOfBlock(b int) *summary {
	if a.rules.empty {
		block := &a.c.blocks[b]
		return a.c.emptied(&domain{lo: block.lo, hi: block.hi, blockLo: b, blockHi: b + 1, slot: b})
	}
	return a.c.summaryOfBlock(b)
}

// usableOf returns how many nodes of a tally the gang may use, those that are out for it included.
func (a *attempt) usableOf(t *tally) int {
	if a.rules.anyNode {
		return t.open + t.closed
	}
	return t.open
}

// roomOf returns how many members of ask k, at most limit, each node of a tally could hold. If that is not exact, some may
// hold less.
func (a *attempt) roomOf(k, at int, t *tally, limit int) (room int, exact bool) {
	want := &a.asks[k]
	room = limit
	if want.GPUs > 0 {
		room = min(room, a.c.grades[at].free/want.GPUs)
	}
	if room == 0 || a.usableOf(t) == 0 {
		return 0, true
	}
	nvlink := a.rules.nvlink && want.GPUs > 1
	if a.rules.anyNode && t.closed > 0 && (nvlink || !a.rules.anyResources) {
		return room, false
	}
	if nvlink && !t.linked {
		return 0, true
	}
	exact = !nvlink || t.joined
	if a.rules.anyResources {
		return room, exact
	}
	for r, need := range want.needs {
		if need > 0 && t.most[r] < need {
			return 0, true
		}
		if need > 0 && t.least[r] < need*int64(room) {
			exact = false
		}
	}
	return room, exact
}

func (a *attempt) gradeAt(i int) int {
	n := &a.c.nodes[i]
	if a.rules.empty {
		return a.c.gradesAt[n.usable][n.usable]
	}
	return n.grade
}

// view is how many nodes have room for how many members of one kind, for each block and domain that was asked about. All
// asks of that kind share it, whatever their gangs.
type view struct {
	width  int     // one more than the most members that a node may hold
	counts []int32 // by slot and room
	stamps []int   // by slot: of the summary that it was counted by
}

// viewKey is what a view depends on.
type viewKey struct {
	gpus  int
	needs resources
	rules rules
	out   *nodeSet
}

func (a *attempt) view(k int) *view {
	want := &a.asks[k]
	if want.view != nil {
		return want.view
	}
	key := viewKey{gpus: want.GPUs, needs: want.needs, rules: a.rules, out: want.out}
	key.rules.spareAvoided = false // out says it
	v, known := a.c.memo.views[key]
	if !known {
		width := a.c.largest/want.GPUs + 1
		v = &view{width: width, counts: make([]int32, a.c.slots*width), stamps: make([]int, a.c.slots)}
		if len(a.c.memo.views) >= maxViews {
			clear(a.c.memo.views)
		}
		a.c.memo.views[key] = v
	}
	want.view = v
	return v
}

// domain returns the counts of a domain by room.
func (v *view) domain(a *attempt, k int, d *domain) []int32 {
	if d.blockHi-d.blockLo == 1 {
		return v.block(a, k, d.blockLo)
	}
	counts, stamp := v.at(d.slot), a.stamp(d.slot)
	if v.stamps[d.slot] == stamp {
		return counts
	}
	v.stamps[d.slot] = stamp
	clear(counts)
	for b := d.blockLo; b < d.blockHi; b++ {
		for room, n := range v.block(a, k, b) {
			counts[room] += n
		}
	}
	return counts
}

// block returns the counts of a block by room. Nodes are looked at one by one only where they differ.
func (v *view) block(a *attempt, k, b int) []int32 {
	counts, stamp := v.at(b), a.stamp(b)
	if v.stamps[b] == stamp {
		return counts
	}
	v.stamps[b] = stamp
	clear(counts)
	block := &a.c.blocks[b]
	out := len(a.asks[k].out.within(block.lo, block.hi)) > 0
	s := a.summaryOfBlock(b)
	for at := range s.grades {
		t := &s.grades[at]
		if t.open+t.closed == 0 || a.c.grades[at].free < a.asks[k].GPUs {
			continue
		}
		room, exact := a.roomOf(k, at, t, math.MaxInt)
		if exact && (room == 0 || !out) {
			counts[room] += int32(a.usableOf(t)) //nolint:gosec // G115: at most maxBlock
			continue
		}
		for i := block.lo; i < block.hi; i++ {
			if a.gradeAt(i) == at {
				counts[a.hold(k, i, nil, math.MaxInt)]++
			}
		}
	}
	return counts
}

func (v *view) at(slot int) []int32 { return v.counts[slot*v.width : (slot+1)*v.width] }

// stamp changes with what a summary counts; it is never zero.
func (a *attempt) stamp(slot int) int {
	if a.rules.empty {
		return 1
	}
	return a.c.tallies[slot].changes + 1
}

// couldFit says whether each group on its own has room in a domain. For a gang of one group it is the whole truth.
// servers is how many nodes the groups need at least, each on its own, added up.
func (a *attempt) couldFit(d *domain) (servers int, could bool) {
	if d.usable < a.gpus || !a.rules.empty && d.slot >= 0 && a.c.summary(d).free < a.gpus {
		return 0, false
	}
	if len(a.asks) > 1 && d.slot >= 0 && !a.together(d) {
		return 0, false
	}
	for k := range a.asks {
		h := a.roomsOf(k, d)
		need := a.asks[k].Count
		if h.members() < need {
			return 0, false
		}
		fewest := h.fewest(need)
		if fewest > a.c.span {
			return 0, false
		}
		servers += fewest
	}
	return servers, true
}

// together says whether the free GPUs of a domain could be enough for several groups at once: no node can give more to
// the members of the largest groups than a multiple of what all their sizes are multiples of.
func (a *attempt) together(d *domain) bool {
	s := a.summary(d)
	need, unit := 0, 0
	for k := range a.asks {
		need += a.asks[k].Count * a.asks[k].GPUs
		if unit = gcd(unit, a.asks[k].GPUs); unit == 0 {
			continue
		}
		have := 0
		for at := range s.grades {
			have += a.usableOf(&s.grades[at]) * (a.c.grades[at].free / unit * unit)
		}
		if have < need {
			return false
		}
	}
	return true
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// count returns how many members of ask k have room in a domain, those of other groups left aside.
func (a *attempt) count(k int, d *domain) int {
	return min(a.asks[k].Count, a.roomsOf(k, d).largest(a.c.span))
}

// short returns the first group that lacks room in a domain even if it had it to itself, or -1.
func (a *attempt) short(d *domain) int {
	for k := range a.asks {
		if a.count(k, d) < a.asks[k].Count {
			return k
		}
	}
	return -1
}
