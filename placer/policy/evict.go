// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/backfill"
	"github.com/nomad-muster/muster/placer/policy/preempt"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// evict finds gangs whose end lets this one start, if it may evict any, and earmarks for it what they free.
func (r *round) evict(g *model.Gang) bool {
	if r.evictors == maxEvictors {
		return false
	}
	line := r.tree.Line(g.Queue)
	reclaims := r.tree.MayClaim(g.Queue, g.GPUs()) && r.reclaims()
	_, byPriority := r.tree.Same(g.Queue, g.Queue)
	if least, hopeless := r.harmless[line]; !byPriority && (!reclaims || hopeless && g.GPUs() >= least) {
		return false
	}
	r.loadVictims()
	may := func(tree *queue.Tree, v *preempt.Victim) bool {
		return reclaims && tree.MayReclaim(g.Queue, g.GPUs(), v.Queue) || byPriority && outranks(tree, g, v)
	}
	if !slices.ContainsFunc(r.victims, func(v *preempt.Victim) bool { return may(r.tree, v) }) {
		if !byPriority {
			r.harmless[line] = g.GPUs()
		}
		return false
	}
	r.evictors++
	request := preempt.Request{Gang: g, Cluster: r.later(g), Tree: r.tree, Kept: r.kept(), Victims: r.victims, Now: r.now, May: may}
	plan, found := request.Find()
	if found {
		r.carryOut(g, plan, func(v *preempt.Victim) model.Reason { return r.whyEvicted(g, v) })
	}
	return found
}

// reclaims says whether so much of the cluster is in use that lent quota is taken back.
func (r *round) reclaims() bool {
	above := r.s.ReclaimAbove
	if above <= 0 {
		above = model.DefaultReclaimAbove
	}
	inUse, usable := r.cluster.Load()
	return float64(inUse) > above*float64(usable)
}

func (r *round) loadVictims() {
	if r.victims == nil {
		r.victims = preempt.Victims(r.s.Running, r.s.Settings, r.now, r.tree, r.rule.Compare)
	}
}

// outranks says whether a gang may evict one of its own queue by its priority.
func outranks(tree *queue.Tree, g *model.Gang, v *preempt.Victim) bool {
	same, preempt := tree.Same(g.Queue, v.Queue)
	return same && preempt && v.Priority < g.Priority
}

// carryOut evicts the victims of a plan and earmarks its place.
func (r *round) carryOut(g *model.Gang, plan preempt.Plan, why func(*preempt.Victim) model.Reason) {
	evicted := make(map[string]bool, len(plan.Victims))
	var names []string
	for _, v := range plan.Victims {
		r.decision.Evictions = append(r.decision.Evictions, model.Eviction{
			Gang: v.Name, For: g.Name, Reason: why(v), LostGPUSeconds: v.Lost,
		})
		evicted[v.Name] = true
		names = append(names, v.Name)
	}
	for _, v := range plan.Victims {
		r.tree.Leave(v.Queue, v.GPUs())
	}
	r.victims = slices.DeleteFunc(r.victims, func(v *preempt.Victim) bool { return evicted[v.Name] })
	marks := backfill.Marks(plan.Grant)
	r.keep(g, marks)
	r.wait(waiting{gang: g, reason: r.freeing(g, names), planned: plannedOn(marks)})
}

// whyEvicted tells the users of a victim why it ends.
func (r *round) whyEvicted(g *model.Gang, v *preempt.Victim) model.Reason {
	if same, _ := r.tree.Same(g.Queue, v.Queue); same {
		return model.Reason{
			Code: model.EvictPriority,
			Text: fmt.Sprintf("makes room for %s, which has a higher priority (%d, this has %d)", g.Name, g.Priority, v.Priority),
		}
	}
	use := r.tree.UseOf(v.Queue)
	return model.Reason{
		Code: model.EvictReclaim,
		Text: fmt.Sprintf("gives back what %s had borrowed (it uses %d GPUs and is owed %d): %s of %s needs it",
			queueText(use.Name), use.Used, use.Quota, g.Name, queueText(r.tree.UseOf(g.Queue).Name)),
	}
}

func queueText(name string) string {
	if name == "" {
		return "the queue without a quota"
	}
	return "queue " + name
}
