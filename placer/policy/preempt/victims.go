// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package preempt chooses which running gangs to evict so that one that waits can start: whole gangs only, and only if the
// gang then fits as a whole.
//
// First the place is decided: of the innermost domains that the gang may use and that could be made free, the one
// whose victims lose least work. In it member after member goes where room for it costs least. Then what was chosen is
// tried out on a copy of the cluster, and victims that turn out not to be needed are spared. A victim loses the GPU time since
// its last finished checkpoint, or since its start, and the time that a restart takes. Nobody is evicted soon after its
// start, or more often than its budget allows; who may evict whom at all is up to the caller. Package policy imports it.
package preempt

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// RestartTime is what a restart costs each GPU of a gang beside the work that is done again: to place and start the
// processes, and to load the checkpoint.
const RestartTime = 2 * time.Minute

// Lost returns the GPU seconds that a gang would lose if it were evicted now.
func Lost(r *model.Running, now time.Time) float64 {
	since := r.Started
	if r.Saved.After(since) {
		since = r.Saved
	}
	return float64(r.GPUs()) * (max(0, now.Sub(since)) + RestartTime).Seconds()
}

// Evictable says whether a running gang may be evicted by the clock and its budget: it runs, has run for the least run
// time, is not ending anyway, and was not evicted too often lately.
func Evictable(r *model.Running, s model.Settings, now time.Time) bool {
	least, budget := s.MinRuntime, s.Evictions
	if least <= 0 {
		least = model.DefaultMinRuntime
	}
	if budget <= 0 {
		budget = model.DefaultEvictions
	}
	if r.Closing || r.Started.IsZero() || now.Sub(r.Started) < least {
		return false
	}
	lately := 0
	for _, at := range r.Evicted {
		if now.Sub(at) < model.EvictionWindow {
			lately++
		}
	}
	return lately < budget
}

// Victim is a running gang that could be evicted.
type Victim struct {
	*model.Running
	Lost float64 // GPU seconds
	on   []part
}

// part is what a victim holds on one node.
type part struct {
	node int
	gpus int
}

// share is the part of the loss that falls on n of the victim's GPUs.
func (v *Victim) share(n int) float64 { return v.Lost * float64(n) / float64(max(1, v.GPUs())) }

// Victims returns the gangs of running that pass Evictable, those that lose least for each GPU first, and among equals
// the reverse of the order in which gangs are admitted: the queue with the least claim, then what less says comes last.
func Victims(running []model.Running, s model.Settings, now time.Time, tree *queue.Tree, compare func(a, b *model.Gang) int) []*Victim {
	var victims []*Victim
	for i := range running {
		if r := &running[i]; Evictable(r, s, now) && r.GPUs() > 0 {
			victims = append(victims, &Victim{Running: r, Lost: Lost(r, now)})
		}
	}
	slices.SortFunc(victims, func(a, b *Victim) int {
		return cmp.Or(cmp.Compare(a.share(1), b.share(1)), tree.Compare(b.Queue, a.Queue), compare(&b.Gang, &a.Gang))
	})
	return victims
}
