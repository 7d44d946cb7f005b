// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

// summary counts the nodes of a domain by grade, so that most questions about it need no look at a node. It is brought up
// to date when it is asked for.
type summary struct {
	valid   bool
	changes int     // of its nodes so far
	grades  []tally // by grade
	free    int     // GPUs, those of closed nodes too
	whole   bool    // no GPU is in use
}

// tally is what is known of the nodes of one grade.
type tally struct {
	open, closed int       // nodes
	least, most  resources // of the open ones
	joined       bool      // every open one has all its usable GPUs joined by NVLink
	linked       bool      // some open one has NVLink
}

func (t *tally) add(n *node) {
	if n.Closed != "" {
		t.closed++
		return
	}
	one := tally{open: 1, least: n.has, most: n.has, joined: n.nvlink == nvlinkAll, linked: n.nvlink != nvlinkNone}
	t.merge(&one)
}

func (t *tally) merge(other *tally) {
	t.closed += other.closed
	if other.open == 0 {
		return
	}
	if t.open == 0 {
		closed := t.closed
		*t = *other
		t.closed = closed
		return
	}
	t.open += other.open
	t.joined = t.joined && other.joined
	t.linked = t.linked || other.linked
	for r := range t.least {
		t.least[r] = min(t.least[r], other.least[r])
		t.most[r] = max(t.most[r], other.most[r])
	}
}

// summary returns the summary of a domain that is not a part of a block.
func (c *Cluster) summary(d *domain) *summary {
	if d.slot < 0 {
		return &summary{valid: true, grades: make([]tally, len(c.grades)), whole: true}
	}
	s := &c.tallies[d.slot]
	if !s.valid {
		s.clear(len(c.grades))
		if d.blockHi-d.blockLo == 1 {
			c.fill(s, d.blockLo, false)
		} else {
			for b := d.blockLo; b < d.blockHi; b++ {
				s.merge(c.summaryOfBlock(b))
			}
		}
	}
	return s
}

func (c *Cluster) summaryOfBlock(b int) *summary {
	s := &c.tallies[b]
	if !s.valid {
		s.clear(len(c.grades))
		c.fill(s, b, false)
	}
	return s
}

// emptied returns the summary of a domain as if no GPU were in use and every node were open.
func (c *Cluster) emptied(d *domain) *summary {
	if d.slot < 0 {
		return c.summary(d)
	}
	s := &c.empty[d.slot]
	if !s.valid {
		s.clear(len(c.grades))
		for b := d.blockLo; b < d.blockHi; b++ {
			c.fill(s, b, true)
		}
	}
	return s
}

func (s *summary) clear(grades int) {
	if s.grades == nil {
		s.grades = make([]tally, grades)
	}
	clear(s.grades)
	s.valid, s.free, s.whole = true, 0, true
}

// fill counts the nodes of a block, as they are or as if they were empty and open.
func (c *Cluster) fill(s *summary, b int, empty bool) {
	for i := c.blocks[b].lo; i < c.blocks[b].hi; i++ {
		n := &c.nodes[i]
		grade := n.grade
		if empty {
			grade = c.gradesAt[n.usable][n.usable]
			s.grades[grade].merge(&tally{open: 1, joined: n.nvlink == nvlinkAll, linked: n.nvlink != nvlinkNone})
		} else {
			s.grades[grade].add(n)
		}
		s.free += c.grades[grade].free
		s.whole = s.whole && c.grades[grade].whole
	}
}

func (s *summary) merge(other *summary) {
	for at := range other.grades {
		if t := &other.grades[at]; t.open+t.closed > 0 {
			s.grades[at].merge(t)
		}
	}
	s.free += other.free
	s.whole = s.whole && other.whole
}
