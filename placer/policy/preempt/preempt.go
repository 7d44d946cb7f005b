// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package preempt

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// The bounds of the search for victims.
const (
	maxDomains = 3 // choices that are tried out on each rung, the cheapest
	maxSpared  = 8 // victims of which it is tried whether the gang fits without them
)

// Request is the search for victims for one gang.
type Request struct {
	Gang    *model.Gang
	Cluster *fit.Cluster // with what is kept for the gang, and what comes free for it anyway, free
	Tree    *queue.Tree
	Kept    []model.Earmark // GPUs that it may not have even when their gangs are evicted
	Victims []*Victim       // see the function of that name
	Now     time.Time
	// May says whether the rules let the gang evict a victim, given a tree in which those that are chosen already leave.
	May func(tree *queue.Tree, v *Victim) bool
}

// Plan is whom to evict and where the gang then goes.
type Plan struct {
	Victims []*Victim // by name
	Grant   model.Grant
}

// Lost is the GPU seconds that the victims lose.
func (p Plan) Lost() float64 {
	lost := 0.0
	for _, v := range p.Victims {
		lost += v.Lost
	}
	return lost
}

// Find returns the cheapest plan that it finds on the innermost rung where there is one, or false if evicting does not
// help. The plan is without victims if the gang fits on what comes free anyway.
func (r *Request) Find() (Plan, bool) {
	if r.limitKept(nil) {
		if grant, fits := r.try(nil); fits {
			return Plan{Grant: grant}, true
		}
	}
	possible := slices.DeleteFunc(slices.Clone(r.Victims), func(v *Victim) bool { return !r.May(r.Tree, v) })
	if len(possible) == 0 {
		return Plan{}, false
	}
	if _, fits := r.try(possible); !fits {
		return Plan{}, false // not even without all of them
	}
	s := newSite(r, possible)
	for _, domains := range r.Cluster.Domains(*r.Gang, r.Now) {
		var best *Plan
		for _, chosen := range s.cheapest(domains) {
			if plan, found := r.plan(chosen); found && (best == nil || plan.Lost() < best.Lost()) {
				best = &plan
			}
		}
		if best != nil {
			return *best, true
		}
	}
	return r.plan(r.allowed())
}

// allowed returns those that the rules let the gang evict one after another, in their order.
func (r *Request) allowed() []*Victim {
	tree := r.Tree.Clone()
	var allowed []*Victim
	for _, v := range r.Victims {
		if r.May(tree, v) {
			tree.Leave(v.Queue, v.GPUs())
			allowed = append(allowed, v)
		}
	}
	return allowed
}

// try says where the gang goes without the victims.
func (r *Request) try(victims []*Victim) (model.Grant, bool) {
	c := r.Cluster.Clone()
	for _, v := range victims {
		c.Give(v.Gang, v.Members)
	}
	c.Withhold(r.Kept)
	return c.Fit(*r.Gang, r.Now)
}

// plan makes a plan of the victims, if the gang fits without them and its queue may have it, and spares those that are
// not needed.
func (r *Request) plan(victims []*Victim) (Plan, bool) {
	victims, within := r.withinLimit(victims)
	if !within {
		return Plan{}, false
	}
	grant, fits := r.try(victims)
	if !fits {
		return Plan{}, false
	}
	if needed := usedBy(grant, victims); len(needed) < len(victims) && r.limitKept(needed) {
		if again, fits := r.try(needed); fits {
			victims, grant = needed, again
		}
	}
	victims, grant = r.spare(victims, grant)
	slices.SortFunc(victims, func(a, b *Victim) int { return cmp.Compare(a.Name, b.Name) })
	return Plan{Victims: victims, Grant: grant}, true
}

// usedBy returns the victims that hold a GPU of the grant.
func usedBy(grant model.Grant, victims []*Victim) []*Victim {
	byNode := make(map[string][]model.Member)
	for _, m := range grant.Members {
		byNode[m.Node] = append(byNode[m.Node], m)
	}
	return slices.DeleteFunc(slices.Clone(victims), func(v *Victim) bool {
		return !slices.ContainsFunc(v.Members, func(m model.Member) bool {
			return slices.ContainsFunc(byNode[m.Node], func(mine model.Member) bool { return mine.GPUs&m.GPUs != 0 })
		})
	})
}

// spare tries to do without one victim after another, the costliest first.
func (r *Request) spare(victims []*Victim, grant model.Grant) ([]*Victim, model.Grant) {
	costliest := slices.Clone(victims)
	slices.SortStableFunc(costliest, func(a, b *Victim) int { return cmp.Compare(b.Lost, a.Lost) })
	for _, v := range costliest[:min(maxSpared, len(costliest))] {
		without := slices.DeleteFunc(slices.Clone(victims), func(other *Victim) bool { return other == v })
		if !r.limitKept(without) {
			continue
		}
		if again, fits := r.try(without); fits {
			victims, grant = without, again
		}
	}
	return victims, grant
}

// limitKept says whether no queue has more than its limit when the gang runs and the victims are gone.
func (r *Request) limitKept(victims []*Victim) bool {
	_, over := r.without(victims).Limit(r.Gang.Queue, r.Gang.GPUs())
	return !over
}

// without returns the tree as it is when the victims are gone.
func (r *Request) without(victims []*Victim) *queue.Tree {
	tree := r.Tree.Clone()
	for _, v := range victims {
		tree.Take(v.Queue, -v.GPUs())
	}
	return tree
}

// withinLimit adds victims until no queue would have more than its limit.
func (r *Request) withinLimit(victims []*Victim) ([]*Victim, bool) {
	if r.limitKept(victims) {
		return victims, true
	}
	victims = slices.Clone(victims)
	for _, v := range r.Victims {
		tree := r.without(victims)
		use, over := tree.Limit(r.Gang.Queue, r.Gang.GPUs())
		if !over {
			return victims, true
		}
		if !slices.Contains(victims, v) && tree.Holds(use.Name, v.Queue) && r.May(tree, v) {
			victims = append(victims, v)
		}
	}
	return victims, r.limitKept(victims)
}
