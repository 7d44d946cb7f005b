// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"cmp"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// fifo is strict: in the order of submission, and nobody starts before the first that does not fit. It knows no quotas
// and takes any place, as close together as can be had at once.
func fifo(s model.Snapshot, _ Knowledge, now time.Time) model.Decision {
	r := newRound(s, now)
	blocked := false
	for _, g := range inOrder(s.Gangs) {
		switch {
		case blocked:
			r.because(g, model.CauseFairShare, model.WaitReserved, "gangs that were submitted earlier go first")
		case !r.start(anywhere(g)):
			blocked = true
			r.wait(g)
		}
	}
	return r.decision
}

// firstFit starts whatever fits, in the order of submission, and keeps nothing free for those that don't.
func firstFit(s model.Snapshot, _ Knowledge, now time.Time) model.Decision {
	return startAll(s, inOrder(s.Gangs), now)
}

// srtf starts whatever fits, shortest remaining run time first. It knows run times beforehand, and never ends a gang.
func srtf(s model.Snapshot, k Knowledge, now time.Time) model.Decision {
	return startAll(s, sorted(s.Gangs, func(a, b *model.Gang) int {
		return cmp.Compare(k.Remaining(a.Name), k.Remaining(b.Name))
	}), now)
}

func startAll(s model.Snapshot, gangs []model.Gang, now time.Time) model.Decision {
	r := newRound(s, now)
	var waiting []model.Gang
	for _, g := range gangs {
		if !r.start(anywhere(g)) {
			waiting = append(waiting, g)
		}
	}
	for _, g := range waiting {
		r.wait(g)
	}
	return r.decision
}
