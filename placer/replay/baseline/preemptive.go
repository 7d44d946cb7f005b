// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"cmp"
	"slices"
	"sort"

	"github.com/nomad-muster/muster/placer/model"
)

// The bounds between the queues of las, in GPU-seconds of attained service: one GPU-hour, and eight GPUs for four hours.
const (
	lasShort  = 3_600
	lasMiddle = 8 * 4 * 3_600
)

// las is Tiresias' discretised two-dimensional least attained service (Gu et al., NSDI 2019): gangs that have had fewer
// GPU-seconds are in a higher queue; within a queue the one submitted earlier goes first. Gangs of lower rank are ended
// when those of higher rank need their GPUs. It knows no run times.
func las(r *round) {
	bounds := []float64{lasShort, lasMiddle}
	ranked(r, func(gang string) int64 {
		served := r.k.Served(gang)
		return int64(sort.Search(len(bounds), func(i int) bool { return served < bounds[i] }))
	})
}

// srtfPreempt is srtf that ends gangs with more time left when those with less need their GPUs.
func srtfPreempt(r *round) {
	ranked(r, func(gang string) int64 { return int64(r.k.Remaining(gang)) })
}

// contender is a gang that waits or runs.
type contender struct {
	gang     *model.Gang
	running  *model.Running // nil: it waits
	rank     int64
	gpus     int
	selected bool
}

// ranked selects gangs by rank, lowest first, as far as the number of GPUs goes. The selected ones that wait start; where
// they don't fit, running ones that were not selected are ended for them. Whoever waits and is not selected has no claim
// any more to what was freed for it: else two gangs could wait for each other's GPUs.
func ranked(r *round, rank func(gang string) int64) {
	r.s.Gangs = slices.Clone(r.s.Gangs)
	contenders := contend(r.s, rank)
	r.choose(contenders)
	var short []model.Gang
	var victims []*model.Running // most to spare last
	for _, c := range contenders {
		switch {
		case c.running != nil && !c.selected:
			victims = append(victims, c.running)
		case c.running == nil && !c.selected:
			r.because(*c.gang, model.CauseFairShare, model.WaitCapacity, "gangs of a higher rank have all GPUs")
		case c.running == nil && !r.start(anywhere(*c.gang)):
			short = append(short, *c.gang)
		}
	}
	slices.Reverse(victims)
	clearing := r.newClearing(victims)
	for _, g := range short {
		clearing.makeFor(anywhere(g), model.Reason{Code: "ranked", Text: "a gang of a higher rank needs its GPUs"})
	}
}

// choose selects those that there is room for.
func (r *round) choose(contenders []contender) {
	room := r.free + r.marked
	for i := range r.s.Running {
		room += r.s.Running[i].GPUs() // of those that are closing, too: they will be free soon
	}
	for i := range contenders {
		c := &contenders[i]
		switch {
		case c.gpus <= room:
			c.selected = true
			room -= c.gpus
		case c.running == nil && len(c.gang.Earmarks) > 0:
			r.giveUp(c.gang)
		}
	}
}

func contend(s model.Snapshot, rank func(gang string) int64) []contender {
	contenders := make([]contender, 0, len(s.Gangs)+len(s.Running))
	for i := range s.Gangs {
		g := &s.Gangs[i]
		contenders = append(contenders, contender{gang: g, rank: rank(g.Name), gpus: g.GPUs()})
	}
	for i := range s.Running {
		if running := &s.Running[i]; !running.Closing {
			contenders = append(contenders, contender{gang: &running.Gang, running: running, rank: rank(running.Name), gpus: running.GPUs()})
		}
	}
	slices.SortFunc(contenders, func(a, b contender) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.gang.Submitted.Compare(b.gang.Submitted), cmp.Compare(a.gang.Name, b.gang.Name))
	})
	return contenders
}
