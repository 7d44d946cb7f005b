// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"encoding/binary"
	"reflect"
	"strconv"

	"github.com/nomad-muster/muster/placer/model"
)

// maxMemo bounds each of the tables of a memo; one that is full starts anew.
const maxMemo = 4096

// maxViews bounds the views, each of which holds a few numbers for every block and domain.
const maxViews = 64

// memo is what has been found out about gangs since the cluster changed. Many gangs that wait are alike, and most can't
// start, so most questions are asked again and again.
type memo struct {
	changes  int // so far
	gains    int // changes as of the last one that may have made room
	failing  map[string]int
	reasons  map[string]said
	never    map[string]string
	refusals map[uintptr]refusal
	sets     map[string]*nodeSet // of refusals, by what is in them
	interned int                 // so far
	views    map[viewKey]*view
	blocked  map[blockedKey]blocked
	key      []byte
}

// said is a reason as of a number of changes.
type said struct {
	changes int
	model.Reason
	relaxes bool
}

// refusal holds on to the map that it was made from, so that no other can come to lie where that was.
type refusal struct {
	by  map[string]string
	set *nodeSet
}

func newMemo() memo {
	return memo{
		failing: make(map[string]int), reasons: make(map[string]said), never: make(map[string]string),
		refusals: make(map[uintptr]refusal), sets: make(map[string]*nodeSet), views: make(map[viewKey]*view),
		blocked: make(map[blockedKey]blocked),
	}
}

// forget gives up what a change of the cluster may have made wrong.
func (m *memo) forget(more bool) {
	m.changes++
	if more {
		m.gains = m.changes
	}
}

// forgetGangs gives up what rests on the maps of gangs: others may come to lie where they were.
func (m *memo) forgetGangs() {
	if len(m.refusals) > 0 {
		clear(m.refusals)
		m.changes++
	}
}

// fails says whether a gang of that shape did not fit when the cluster was no fuller than it is.
func (m *memo) fails(shape []byte) bool {
	at, known := m.failing[string(shape)]
	return known && at >= m.gains
}

func (m *memo) failed(shape []byte) { put(m.failing, shape, m.changes) }

func put[V any](table map[string]V, shape []byte, v V) {
	if len(table) >= maxMemo {
		clear(table)
	}
	table[string(shape)] = v
}

// shapeOf writes down all that a gang's fit depends on, or with texts all that its reason to wait does. The answer holds
// until the next call.
func (c *Cluster) shapeOf(g *model.Gang, widest int, texts bool) []byte {
	key := binary.AppendVarint(c.memo.key[:0], int64(widest))
	key = strconv.AppendBool(key, g.NVLinkRequired)
	key = binary.AppendVarint(key, int64(len(g.Avoid)))
	for _, name := range g.Avoid {
		key = append(append(key, name...), 0)
	}
	for i := range g.Groups {
		group := &g.Groups[i]
		numbers := [...]int64{int64(group.Count), int64(group.GPUs), group.CPUMHz, group.MemoryMB, group.DiskMB, 0, 0}
		if len(group.Refused) > 0 {
			numbers[5] = int64(c.refused(group.Refused).id)
		}
		if texts {
			numbers[6] = int64(reflect.ValueOf(group.Refused).Pointer())
			key = append(append(key, group.Name...), 0)
		}
		for _, n := range numbers {
			key = binary.AppendVarint(key, n)
		}
	}
	c.memo.key = key
	return key
}

// refused returns the nodes that a group is refused by.
func (c *Cluster) refused(by map[string]string) *nodeSet {
	at := reflect.ValueOf(by).Pointer()
	known, found := c.memo.refusals[at]
	if !found {
		list := make([]int, 0, len(by))
		for name := range by { // the set sorts them
			if i, exists := c.byName[name]; exists {
				list = append(list, i)
			}
		}
		known = refusal{by: by, set: c.memo.intern(newNodeSet(list, len(c.nodes)))}
		if len(c.memo.refusals) >= maxMemo {
			c.memo.forgetGangs()
		}
		c.memo.refusals[at] = known
	}
	return known.set
}

// intern returns a set that is the same for all gangs that are refused by the same nodes.
func (m *memo) intern(s *nodeSet) *nodeSet {
	key := make([]byte, 0, 8*len(s.bits))
	for _, word := range s.bits {
		key = binary.LittleEndian.AppendUint64(key, word)
	}
	if same, known := m.sets[string(key)]; known {
		return same
	}
	m.interned++
	s.id = m.interned
	put(m.sets, key, s)
	return s
}
