// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"slices"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

// clearing makes room for gangs that wait, at the end of a round, by ending gangs that run.
type clearing struct {
	*round
	trial   *fit.Cluster     // as if the gangs that are closing had ended
	closing int              // GPUs of those
	victims []*model.Running // in the order in which they are ended
}

func (r *round) newClearing(victims []*model.Running) *clearing {
	c := &clearing{round: r, trial: r.cluster.Clone(), victims: victims}
	for i := range r.s.Running {
		if running := &r.s.Running[i]; running.Closing {
			c.trial.Give(running.Gang, running.Members)
			c.closing += running.GPUs()
		}
	}
	for i := range r.s.Gangs {
		c.trial.Withhold(r.s.Gangs[i].Earmarks) // what is closing is spoken for
	}
	return c
}

// makeFor ends as few gangs as it can find to, in order, so that the gang fits, and marks the place for it. The wait is
// part of the decision in any case.
func (c *clearing) makeFor(g model.Gang, why model.Reason) {
	if len(g.Earmarks) > 0 && c.closingFor(g.Name) {
		c.freeing(g)
		return
	}
	g.Earmarks = nil
	evict, grant, found := c.choose(g)
	if !found {
		c.wait(g)
		return
	}
	for _, victim := range evict {
		c.trial.Give(victim.Gang, victim.Members)
		c.victims = slices.DeleteFunc(c.victims, func(v *model.Running) bool { return v == victim })
		c.decision.Evictions = append(c.decision.Evictions, model.Eviction{Gang: victim.Name, For: g.Name, Reason: why})
	}
	c.trial.Take(g, grant)
	g.Earmarks = marks(grant)
	c.freeing(g)
}

// choose returns whom to end, and where the gang would go then. Those that are ended first are tried first, and of those only
// the ones are ended that hold what the gang would use.
func (c *clearing) choose(g model.Gang) (evict []*model.Running, grant model.Grant, found bool) {
	all := c.trial.Clone()
	if grant, found = all.Fit(g, c.now); found {
		return nil, grant, true
	}
	free := c.free + c.closing
	for _, victim := range c.victims {
		all.Give(victim.Gang, victim.Members)
		if free += victim.GPUs(); free < g.GPUs() {
			continue
		}
		if grant, found = all.Fit(g, c.now); found {
			break
		}
	}
	if !found {
		return nil, grant, false
	}
	used := make(map[string]gpu.Set)
	for _, m := range grant.Members {
		used[m.Node] |= m.GPUs
	}
	for _, victim := range c.victims {
		if slices.ContainsFunc(victim.Members, func(m model.Member) bool { return m.GPUs&used[m.Node] != 0 }) {
			evict = append(evict, victim)
		}
	}
	return evict, grant, true
}

func (c *clearing) closingFor(gang string) bool {
	return slices.ContainsFunc(c.s.Running, func(r model.Running) bool { return r.Closing && r.FreedFor == gang })
}

func (c *clearing) freeing(g model.Gang) {
	c.because(g, model.CauseFairShare, model.WaitFreeing, "gangs are being ended for it")
}

// marks is what a grant uses, in the order of its members' nodes.
func marks(grant model.Grant) []model.Earmark {
	var marks []model.Earmark
	for _, m := range grant.Members {
		if n := len(marks); n > 0 && marks[n-1].Node == m.Node {
			marks[n-1].GPUs |= m.GPUs
			continue
		}
		marks = append(marks, model.Earmark{Node: m.Node, GPUs: m.GPUs})
	}
	return marks
}
