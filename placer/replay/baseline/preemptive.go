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
	gang    *model.Gang
	running *model.Running // nil: it waits
	rank    int64
	gpus    int
}

// ranked selects gangs by rank, lowest first, as far as the number of GPUs goes. The selected ones that wait start; where
// they don't fit, running ones that were not selected are ended for them.
func ranked(r *round, rank func(gang string) int64) {
	room := r.free + r.marked
	for i := range r.s.Running {
		room += r.s.Running[i].GPUs() // of those that are closing, too: they will be free soon
	}
	var short []model.Gang
	var victims []*model.Running // most to spare last
	for _, c := range contend(r.s, rank) {
		selected := c.gpus <= room
		if selected {
			room -= c.gpus
		}
		switch {
		case c.running != nil && !selected:
			victims = append(victims, c.running)
		case c.running == nil && !selected:
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
