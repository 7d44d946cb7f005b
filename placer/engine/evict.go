// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
)

// mostEvictions is how many gangs one step evicts at most, so that it ends within the lease; the next step goes on.
const mostEvictions = 128

// evictions closes the gangs that the policy evicts for others, as any other end does: they checkpoint, every node
// acknowledges, and they wait again with the place in the queue that they had. What they free is earmarked before, in the
// document of the gang that they make room for: whoever looks at the ledger after any number of these writes finds GPUs
// that nobody else gets, and the policy goes on from there, or gives them up. A gang that is busy ends by itself.
func (s step) evictions(decided []model.Eviction, busy map[string]bool, news map[string]news) []Action {
	var actions []Action
	for _, e := range decided {
		g := s.Ledger.Gangs[e.Gang].Doc
		holds := g.State == ledger.GangReserved || g.State == ledger.GangRunning
		if !holds || busy[e.Gang] || s.unsure(g) || len(news[e.For].earmarks) == 0 {
			continue
		}
		actions = append(actions, Action{Kind: Close, What: WhyPreempted, Gang: s.evicted(g, e)})
		if len(actions) == mostEvictions {
			break
		}
	}
	return actions
}

// evicted is the closing document of a gang that is evicted for another. It has done nothing wrong: neither an attempt nor
// a failure is counted.
func (s step) evicted(g ledger.Gang, e model.Eviction) ledger.Gang {
	closed := s.closing(g, ledger.GangWaiting, resultPreempted, reason(WhyPreempted, e.Reason.Text))
	closed.Attempts = max(closed.Attempts-1, 0)
	closed.FreedFor = e.For
	closed.Evicted = append(recentlyEvicted(g, s.now), s.now)
	closed.Evicted = closed.Evicted[max(len(closed.Evicted)-ledger.MaxEvicted, 0):]
	return closed
}

// recentlyEvicted is when a gang was evicted, as far as it still counts.
func recentlyEvicted(g ledger.Gang, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(g.Evicted), func(at time.Time) bool { return now.Sub(at) >= model.EvictionWindow })
}
