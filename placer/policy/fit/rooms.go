// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

// roomsOf counts the nodes of a domain by how many members of ask k each could hold if the gang had none there yet. The
// answer holds until the next question about ask k.
func (a *attempt) roomsOf(k int, d *domain) histogram {
	want := &a.asks[k]
	most := want.Count
	if want.GPUs > 0 {
		most = min(most, a.c.largest/want.GPUs)
	}
	if want.rooms == nil {
		want.rooms = make(histogram, most+1)
	}
	h := want.rooms
	clear(h)
	if d.slot < 0 {
		for i := d.lo; i < d.hi; i++ {
			h[a.alone(k, i)]++
		}
		return h
	}
	s := a.summary(d)
	out := a.outOf(k, d.lo, d.hi)
	for at := range s.grades {
		t := &s.grades[at]
		if a.c.grades[at].free < want.GPUs || t.open+t.closed == 0 {
			continue
		}
		if room, exact := a.roomOf(k, at, t); !exact {
			a.countBlocks(k, at, d, h)
		} else if room > 0 {
			h[room] += a.usableOf(t)
			if out != nil {
				h[room] -= out[at]
			}
		}
	}
	return h
}

func (a *attempt) summary(d *domain) *summary {
	if a.rules.empty {
		return a.c.emptied(d)
	}
	return a.c.summary(d)
}

// usableOf returns how many nodes of a tally the gang may use, those that are out for it included.
func (a *attempt) usableOf(t *tally) int {
	if a.rules.anyNode {
		return t.open + t.closed
	}
	return t.open
}

// roomOf returns how many members of ask k each node of a tally could hold, if they all could hold as many.
func (a *attempt) roomOf(k, at int, t *tally) (room int, exact bool) {
	want := &a.asks[k]
	room = want.Count
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

// countBlocks adds the nodes of one grade, block by block, and node by node only where a block's nodes differ.
func (a *attempt) countBlocks(k, at int, d *domain, h histogram) {
	for b := d.blockLo; b < d.blockHi; b++ {
		block := &a.c.blocks[b]
		t := &a.summaryOfBlock(b).grades[at]
		if t.open+t.closed == 0 {
			continue
		}
		room, exact := a.roomOf(k, at, t)
		if exact && room == 0 {
			continue
		}
		if exact && a.asks[k].out == nil {
			h[room] += a.usableOf(t)
			continue
		}
		for i := block.lo; i < block.hi; i++ {
			if a.gradeAt(i) == at {
				h[a.alone(k, i)]++
			}
		}
	}
}

func (a *attempt) summaryOfBlock(b int) *summary {
	if a.rules.empty {
		block := &a.c.blocks[b]
		return a.c.emptied(&domain{lo: block.lo, hi: block.hi, blockLo: b, blockHi: b + 1, slot: b})
	}
	return a.c.summaryOfBlock(b)
}

func (a *attempt) gradeAt(i int) int {
	n := &a.c.nodes[i]
	if a.rules.empty {
		return a.c.gradesAt[n.usable][n.usable]
	}
	return n.grade
}

// outOf counts the nodes that are out for ask k by grade, those aside that nobody may use; nil if there are none. The
// answer holds until the next question about ask k.
func (a *attempt) outOf(k, lo, hi int) []int {
	out := a.asks[k].out.within(lo, hi)
	if len(out) == 0 {
		return nil
	}
	want := &a.asks[k]
	if want.spare == nil {
		want.spare = make([]int, len(a.c.grades))
	}
	clear(want.spare)
	for _, i := range out {
		if a.rules.anyNode || a.c.nodes[i].Closed == "" {
			want.spare[a.gradeAt(i)]++
		}
	}
	return want.spare
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
