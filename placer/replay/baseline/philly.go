// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// phillyRelax is how long a gang of Philly keeps to a level of locality. The paper says that it was relaxed after a number
// of failed tries; a gang held what it had for two to three minutes, and waited two before the next try.
const phillyRelax = 10 * time.Minute

// philly is the scheduler of the paper (Jeon et al., USENIX ATC 2019, section 2.3): queues have quotas and may use what
// others leave; within a queue a gang that fits may start before an earlier one that does not; gangs keep to one server,
// then one rack, then any, as time goes by; and when more than 90 % of the GPUs are in use, a queue below its quota gets it
// back: gangs of queues above theirs are ended, those that started last first.
func philly(r *round) {
	b := newBooks(r.s)
	var short []model.Gang // within their quota
	var over []model.Gang
	for _, g := range inOrder(r.s.Gangs) {
		g.Locality, g.RelaxAuto, g.RelaxNever, g.RelaxAfter = innermost(r.s, g), false, false, phillyRelax
		switch {
		case !b.owed(g):
			over = append(over, g)
		case r.start(g):
			b.used[g.Queue] += g.GPUs()
		default:
			short = append(short, g)
		}
	}
	for _, g := range over {
		if r.start(g) {
			b.used[g.Queue] += g.GPUs()
			continue
		}
		r.wait(g)
		r.decision.Waits[len(r.decision.Waits)-1].Cause = model.CauseFairShare
	}
	if float64(r.free) >= (1-model.DefaultReclaimAbove)*float64(b.usable) {
		for _, g := range short {
			r.wait(g)
		}
		return
	}
	clearing := r.newClearing(b.borrowers(r.s))
	for _, g := range short {
		clearing.makeFor(g, model.Reason{Code: "reclaim", Text: "its queue uses more than its quota, and " + g.Queue + " needs its own"})
	}
}

// innermost is the level that a gang asks for at first: a gang that no node could hold starts with the first level above.
func innermost(s model.Snapshot, g model.Gang) string {
	if g.Size() > 1 && len(s.Levels) > 0 {
		return s.Levels[len(s.Levels)-1]
	}
	return model.LocalityNode
}

// books are what each queue has and may have, in GPUs.
type books struct {
	used, quota map[string]int
	usable      int
}

func newBooks(s model.Snapshot) books {
	b := books{used: make(map[string]int), quota: make(map[string]int)}
	for _, q := range s.Queues {
		b.quota[q.Name] = q.Quota
	}
	for i := range s.Running {
		b.used[s.Running[i].Queue] += s.Running[i].GPUs()
	}
	for i := range s.Nodes {
		b.usable += s.Nodes[i].Usable.Len()
	}
	return b
}

// above says whether the gang would take its queue above its quota. A queue that is not listed has none, and one that has
// nothing else may have a gang that is larger than its quota.
func (b books) above(g model.Gang) bool {
	quota, listed := b.quota[g.Queue]
	return listed && b.used[g.Queue] > 0 && b.used[g.Queue]+g.GPUs() > quota
}

// owed says whether the gang would leave its queue within its quota. Only such gangs claim back what others have
// borrowed: else two queues could take turns for ever.
func (b books) owed(g model.Gang) bool { return b.used[g.Queue]+g.GPUs() <= b.quota[g.Queue] }

// borrowers returns gangs of queues that use more than their quota, those that started last first, as many of each as
// leave it its quota.
func (b books) borrowers(s model.Snapshot) []*model.Running {
	var all []*model.Running
	for i := range s.Running {
		if r := &s.Running[i]; !r.Closing {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(x, y *model.Running) int {
		return cmp.Or(y.Granted.Compare(x.Granted), cmp.Compare(x.Name, y.Name))
	})
	var borrow []*model.Running
	for _, r := range all {
		if b.used[r.Queue]-r.GPUs() >= b.quota[r.Queue] {
			b.used[r.Queue] -= r.GPUs()
			borrow = append(borrow, r)
		}
	}
	return borrow
}
