// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"cmp"

	"github.com/nomad-muster/muster/placer/model"
)

// fifo is strict: each queue in the order of submission, and none of a queue starts before its first that does not fit.
// Quotas are limits. A gang takes any place, as close together as can be had at once.
func fifo(r *round) {
	blocked := make(map[string]bool)
	r.queued(inOrder(r.s.Gangs), func(g model.Gang) bool { return !blocked[g.Queue] }, func(g model.Gang) { blocked[g.Queue] = true })
}

// firstFit starts whatever fits, in the order of submission, and keeps nothing free for those that don't. Quotas are
// limits.
func firstFit(r *round) {
	r.queued(inOrder(r.s.Gangs), func(model.Gang) bool { return true }, func(model.Gang) {})
}

// srtf starts whatever fits, shortest remaining run time first. It knows run times beforehand, knows no quotas, and never
// ends a gang.
func srtf(r *round) {
	r.s.Queues = nil
	r.queued(sorted(r.s.Gangs, func(a, b *model.Gang) int {
		return cmp.Compare(r.k.Remaining(a.Name), r.k.Remaining(b.Name))
	}), func(model.Gang) bool { return true }, func(model.Gang) {})
}

// queued tries the gangs that may be tried, one after another, and calls stuck for those that don't start.
func (r *round) queued(gangs []model.Gang, may func(model.Gang) bool, stuck func(model.Gang)) {
	b := newBooks(r.s)
	var short []model.Gang
	for _, g := range gangs {
		switch {
		case !may(g):
			r.because(g, model.CauseFairShare, model.WaitReserved, "gangs of its queue that were submitted earlier go first")
			continue
		case b.above(g):
			r.because(g, model.CauseFairShare, model.WaitQuota, "its queue has all that it may have")
		case !r.start(anywhere(g)):
			short = append(short, g)
		default:
			b.used[g.Queue] += g.GPUs()
			continue
		}
		stuck(g)
	}
	for _, g := range short {
		r.wait(g)
	}
}
