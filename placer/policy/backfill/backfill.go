// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package backfill keeps a place for a gang that does not fit yet, so that smaller ones that start meanwhile do not make it
// wait longer, and says which of them may start.
//
// The place is found by letting the running gangs end one after another, in the order of their expected ends, until the
// gang fits: that is its planned start (the shadow time of EASY backfill: Lifka, "The ANL/IBM SP scheduling system",
// JSSPP 1995) and these are its planned nodes. A later gang may start if it ends before the planned start, by its
// stated longest run time or else by what others like it took, or if it leaves the planned place alone. If its own end is
// not known, or the planned start is not, it must keep off the planned nodes altogether.
//
// A place costs at most one trial of fit for each doubling of the number of gangs that have to end, and so does finding
// the exact number: bounded work, whatever the cluster looks like. Package policy imports it.
package backfill

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/ends"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

// Reservation is the place that is kept for one gang.
type Reservation struct {
	Gang  *model.Gang
	At    time.Time // the planned start; zero: it waits for gangs whose end is not known
	Sure  bool      // At follows from stated run times alone
	Nodes []string  // planned, sorted

	place  []model.Earmark // the planned GPUs
	whole  []model.Earmark // all GPUs of the planned nodes
	future *fit.Cluster    // as it is when the gang is to start, without the gang
}

// Planner finds places on one cluster at one moment.
type Planner struct {
	Cluster *fit.Cluster    // as it is now; what is withheld there for others counts as in use
	Endings []Ending        // see Ends
	Kept    []model.Earmark // what others are to have, free or not
	Now     time.Time
}

// Plan finds the place of a gang that does not fit now, or false if no end of a running gang makes room for it. What is
// in Kept is not used, free or not.
func (p *Planner) Plan(g *model.Gang) (*Reservation, bool) {
	steps := p.steps(g)
	need := g.GPUs()
	low := slices.IndexFunc(steps, func(s step) bool { return s.free >= need }) // so many steps are too few
	if low < 0 {
		return nil, false
	}
	// Doubling from there until it fits, then halving between what is too little and what is enough.
	f := &future{Planner: p, cluster: p.Cluster.Clone(), steps: steps}
	high := low
	for ahead := 1; high == low; ahead *= 2 {
		next := min(low+ahead, len(steps))
		switch _, fits := f.fit(g, next); {
		case fits:
			high = next
		case next == len(steps):
			return nil, false
		default:
			low, high = next, next
		}
	}
	for low+1 < high {
		if middle := (low + high) / 2; f.fits(g, middle) {
			high = middle
		} else {
			low = middle
		}
	}
	grant, fits := f.fit(g, high)
	if !fits {
		return nil, false
	}
	return p.reservation(g, steps[:high], f.cluster, grant), true
}

// step is one moment at which there is more room: a gang ends, or the gang's own locality widens.
type step struct {
	at   time.Time
	ends *Ending // nil: its locality widens
	free int     // GPUs after it, at most
}

// steps lists the moments in order.
func (p *Planner) steps(g *model.Gang) []step {
	inUse, usable := p.Cluster.Load()
	free := usable - inUse
	widens := widenings(g, p.Now)
	steps := make([]step, 0, len(p.Endings)+len(widens))
	for i := range p.Endings {
		e := &p.Endings[i]
		for len(widens) > 0 && (e.At.IsZero() || widens[0].Before(e.At)) {
			steps = append(steps, step{at: widens[0], free: free})
			widens = widens[1:]
		}
		free += e.GPUs()
		steps = append(steps, step{at: e.At, ends: e, free: free})
	}
	for _, at := range widens {
		steps = append(steps, step{at: at, free: free})
	}
	return steps
}

// maxWidenings is more rungs than any ladder has that a gang could still climb.
const maxWidenings = 8

func widenings(g *model.Gang, now time.Time) []time.Time {
	if g.RelaxAuto || g.RelaxNever || g.RelaxAfter <= 0 || g.Locality == model.LocalityAny {
		return nil
	}
	var at []time.Time
	passed := max(0, now.Sub(g.WaitingSince)/g.RelaxAfter)
	for n := passed + 1; n <= maxWidenings; n++ {
		at = append(at, g.WaitingSince.Add(n*g.RelaxAfter))
	}
	return at
}

// future is the cluster after some of the steps.
type future struct {
	*Planner
	cluster *fit.Cluster
	steps   []step
	taken   int // steps
}

// fit says whether the gang fits after n steps, and where.
func (f *future) fit(g *model.Gang, n int) (model.Grant, bool) {
	for ; f.taken < n; f.taken++ {
		if e := f.steps[f.taken].ends; e != nil {
			f.cluster.Give(e.Gang, e.Members)
		}
	}
	for ; f.taken > n; f.taken-- {
		if e := f.steps[f.taken-1].ends; e != nil {
			f.cluster.Take(e.Gang, model.Grant{Members: e.Members})
		}
	}
	f.cluster.Withhold(f.Kept)
	return f.cluster.Fit(*g, f.at())
}

func (f *future) fits(g *model.Gang, n int) bool {
	_, fits := f.fit(g, n)
	return fits
}

// at is the moment of the last step taken whose moment is known.
func (f *future) at() time.Time {
	for i := f.taken - 1; i >= 0; i-- {
		if !f.steps[i].at.IsZero() {
			return later(f.Now, f.steps[i].at)
		}
	}
	return f.Now
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (p *Planner) reservation(g *model.Gang, steps []step, future *fit.Cluster, grant model.Grant) *Reservation {
	r := &Reservation{Gang: g, At: p.Now, Sure: true, future: future, place: Marks(grant)}
	for _, s := range steps {
		r.At = s.at
		r.Sure = r.Sure && (s.ends == nil || s.ends.Sure)
	}
	r.Sure = r.Sure && !r.At.IsZero()
	for _, mark := range r.place {
		r.Nodes = append(r.Nodes, mark.Node)
		r.whole = append(r.whole, model.Earmark{Node: mark.Node, GPUs: ^gpu.Set(0)})
	}
	return r
}

// Marks returns the GPUs of a grant by node, sorted by name.
func Marks(grant model.Grant) []model.Earmark {
	byNode := make(map[string]gpu.Set)
	var nodes []string
	for _, m := range grant.Members {
		if _, known := byNode[m.Node]; !known {
			nodes = append(nodes, m.Node)
		}
		byNode[m.Node] |= m.GPUs
	}
	slices.Sort(nodes)
	marks := make([]model.Earmark, len(nodes))
	for i, node := range nodes {
		marks[i] = model.Earmark{Node: node, GPUs: byNode[node]}
	}
	return marks
}

// Place returns the planned GPUs.
func (r *Reservation) Place() []model.Earmark { return r.place }

// Avoid returns the GPUs that a gang must keep off, should it start now; none if it ends in time.
func (r *Reservation) Avoid(g *model.Gang, now time.Time) []model.Earmark {
	length, _ := ends.Length(g)
	switch {
	case length > 0 && !r.At.IsZero() && !now.Add(length).After(r.At):
		return nil
	case length == 0 || r.At.IsZero():
		return r.whole
	}
	return r.place
}

// Take notes that a gang starts now that may still run at the planned start, or returns false if it would then take
// what the planned start needs beside GPUs, CPU or memory say; nothing is noted then.
func (r *Reservation) Take(g *model.Gang, grant model.Grant) bool {
	r.future.Take(*g, grant)
	if !slices.ContainsFunc(grant.Members, func(m model.Member) bool { return slices.Contains(r.Nodes, m.Node) }) {
		return true
	}
	if _, fits := r.future.Fit(*r.Gang, r.At); fits {
		return true
	}
	r.Give(g, grant)
	return false
}

// Give undoes Take.
func (r *Reservation) Give(g *model.Gang, grant model.Grant) { r.future.Give(*g, grant.Members) }
