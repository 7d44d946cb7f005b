// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// SeriesStep is the time between two points of use over time.
const SeriesStep = time.Hour

// tally adds up what a cluster is like over time, in GPU-microseconds and microseconds.
type tally struct {
	from, to time.Time // what lies outside is not added up; zero: no bound
	gpus     int       // of all nodes
	free     int
	loose    int // free GPUs on nodes that are not wholly free

	began, ended time.Time // first and last moment that was added up
	busy         int64     // GPU-microseconds in use
	idle         int64     // free
	fragments    int64     // free on nodes that are not wholly free
	held         int64     // GPU-microseconds in use, bounds or not
	series       []int64   // busy, by SeriesStep since began

	overtakes int // starts while a gang of the same queue that was submitted earlier still waited
}

func newTally(nodes []model.Node, o Options) *tally {
	t := &tally{from: o.From, to: o.To}
	for i := range nodes {
		n := &nodes[i]
		t.gpus += n.Usable.Len()
		t.free += n.Free.Len()
		t.loose += loose(n.Free.Len(), n.Usable.Len())
	}
	return t
}

// loose is how many GPUs are free on a node of which some are in use.
func loose(free, usable int) int {
	if free == usable {
		return 0
	}
	return free
}

// pass lets time pass in which nothing changes.
func (t *tally) pass(from, to time.Time) {
	if from.IsZero() {
		return
	}
	t.held += to.Sub(from).Microseconds() * int64(t.gpus-t.free)
	if from.Before(t.from) {
		from = t.from
	}
	if !t.to.IsZero() && to.After(t.to) {
		to = t.to
	}
	if !from.Before(to) {
		return
	}
	if t.began.IsZero() {
		t.began = from
	}
	t.ended = to
	micros := to.Sub(from).Microseconds()
	t.busy += micros * int64(t.gpus-t.free)
	t.idle += micros * int64(t.free)
	t.fragments += micros * int64(t.loose)
	for from.Before(to) {
		step := int(from.Sub(t.began) / SeriesStep)
		until := t.began.Add(time.Duration(step+1) * SeriesStep)
		if until.After(to) {
			until = to
		}
		for len(t.series) <= step {
			t.series = append(t.series, 0)
		}
		t.series[step] += until.Sub(from).Microseconds() * int64(t.gpus-t.free)
		from = until
	}
}

// node notes that other GPUs of a node are free than before.
func (t *tally) node(before int, n *model.Node) {
	free, usable := n.Free.Len(), n.Usable.Len()
	t.free += free - before
	t.loose += loose(free, usable) - loose(before, usable)
}

// start notes whether a gang starts out of order.
func (t *tally) start(w *world, l *life) {
	if w.overtakes(l) {
		t.overtakes++
	}
}
