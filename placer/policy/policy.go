// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package policy decides which of the waiting gangs start now, where every member of them goes, which running gangs are
// evicted for them, and why each of the others waits. Decide is a function of its arguments: it reads no clock, network
// or file, writes no log, and gives the same answer to the same question on any machine, so that a replay of a trace
// decides as the placer did. The engine and the replay import it.
//
// The parts are packages of their own: queue (what each queue is owed and uses), order (whose turn it is), fit (where a
// gang goes), backfill (the place that is kept for a gang that does not fit yet), preempt (whom to evict) and defrag (whom to
// move).
package policy

import (
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
	"github.com/nomad-muster/muster/placer/policy/order"
)

// Decide tries the waiting gangs one after another, in the order of package order; those that GPUs were freed for go
// first. A gang starts whole or not at all, and the next is tried whether it did or not:
//
//   - one whose queue is at its limit waits; of its queue only those that end in time may start before it;
//   - one that does not fit evicts others if its queue is owed GPUs that others have borrowed, or if its priority lets it;
//     what they free is earmarked for it;
//   - of those that then still wait, the first of each of the first few queues gets a reservation, and a later one starts
//     only if it does not delay these.
//
// Gangs in their back-off are not tried, and one whose grant the snapshot objects to takes nothing from those behind it.
// Every gang ends up in exactly one of the grants or waits, both in the order in which they were tried; the reasons
// speak of what is free after all grants. The snapshot is not changed, and the order of its lists does not matter.
func Decide(s model.Snapshot, now time.Time) model.Decision {
	var d Decider
	return d.Decide(s, now)
}

// Decider decides as the function Decide does, and keeps from one decision to the next what makes the next one fast when
// little has changed. What it keeps never shows in a decision. The zero value is ready to use; it is not safe for
// concurrent use.
type Decider struct{ cluster *fit.Cluster }

// Decide is the function Decide.
func (d *Decider) Decide(s model.Snapshot, now time.Time) model.Decision {
	if d.cluster == nil {
		d.cluster = fit.New(s)
	} else {
		d.cluster.Renew(s)
	}
	r := newRound(s, now, d.cluster)
	others := r.resume()
	turns := order.NewTurns(r.tree, others, r.rule)
	for gang, some := turns.Next(); some; gang, some = turns.Next() {
		r.try(gang)
	}
	r.tell()
	return r.decision
}
