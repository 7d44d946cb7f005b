// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/backfill"
	"github.com/nomad-muster/muster/placer/policy/ends"
)

// outcome is what came of trying a gang.
type outcome int

const (
	started  outcome = iota
	noRoom           // it does not fit
	declined         // it waits for a better place
	atLimit          // its queue is at its limit
	hindered         // it would delay a gang that holds a reservation
	objected         // it fits, but the grant can't be made
)

// limited is a queue whose next gang waits for the queue's limit.
type limited struct {
	queue string
	gang  *model.Gang
	at    time.Time // when enough of its gangs have ended; zero: not known
}

// try decides about a gang whose turn it is.
func (r *round) try(g *model.Gang) {
	if g.NotBefore.After(r.now) {
		r.wait(waiting{gang: g})
		return
	}
	outcome, reason := r.start(g)
	switch outcome {
	case started:
	case hindered, objected:
		r.wait(waiting{gang: g, reason: reason})
	case atLimit:
		if !r.evict(g) {
			r.limit(g)
			r.wait(waiting{gang: g, reason: reason})
		}
	case noRoom:
		if !r.evict(g) {
			r.hold(g)
		}
	case declined:
		r.hold(g)
	}
}

// start grants the gang its place, or says why it can't; the reason is empty where package fit finds a better one later.
func (r *round) start(g *model.Gang) (outcome, model.Reason) {
	if use, over := r.tree.Limit(g.Queue, g.GPUs()); over {
		return atLimit, r.overLimit(g, use)
	}
	if ahead, behind := r.behind(g); behind {
		return hindered, r.behindLimit(g, ahead)
	}
	grant, fits := r.cluster.Fit(*g, r.now)
	if !fits {
		if r.cluster.Declines(*g, r.now) {
			return declined, model.Reason{}
		}
		return noRoom, model.Reason{}
	}
	avoid, ahead := r.avoid(g)
	if overlaps(grant, avoid) {
		withheld := r.cluster.Withhold(avoid)
		grant, fits = r.cluster.Fit(*g, r.now)
		r.cluster.Restore(withheld)
		if !fits {
			return hindered, r.behindReservation(ahead)
		}
	}
	if ahead := r.starves(g, grant); ahead != nil {
		return hindered, r.behindReservation(ahead)
	}
	if r.s.Object != nil {
		if why, objects := r.s.Object(grant); objects {
			r.giveBack(g, grant, r.reserved)
			return objected, why
		}
	}
	r.cluster.Take(*g, grant)
	r.tree.Take(g.Queue, g.GPUs())
	r.ends.Add(&model.Running{Gang: *g, Members: grant.Members, Granted: r.now, Started: r.now})
	r.decision.Grants = append(r.decision.Grants, grant)
	return started, model.Reason{}
}

// avoid returns the GPUs that the gang must keep off so that it delays nobody who holds a reservation, and the first of
// those.
func (r *round) avoid(g *model.Gang) (avoid []model.Earmark, ahead *backfill.Reservation) {
	for _, reservation := range r.reserved {
		marks := reservation.Avoid(g, r.now)
		if ahead == nil && len(marks) > 0 {
			ahead = reservation
		}
		avoid = append(avoid, marks...)
	}
	return avoid, ahead
}

func overlaps(grant model.Grant, marks []model.Earmark) bool {
	return slices.ContainsFunc(grant.Members, func(m model.Member) bool {
		return slices.ContainsFunc(marks, func(mark model.Earmark) bool { return mark.Node == m.Node && mark.GPUs&m.GPUs != 0 })
	})
}

// starves returns the reservation whose planned start would lack something beside GPUs if the gang started like this, or
// nil; then the reservations take the grant into account.
func (r *round) starves(g *model.Gang, grant model.Grant) *backfill.Reservation {
	for i, reservation := range r.reserved {
		if len(reservation.Avoid(g, r.now)) == 0 || reservation.Take(g, grant) {
			continue
		}
		r.giveBack(g, grant, r.reserved[:i])
		return reservation
	}
	return nil
}

// giveBack undoes what starves noted.
func (r *round) giveBack(g *model.Gang, grant model.Grant, reserved []*backfill.Reservation) {
	for _, reservation := range reserved {
		if len(reservation.Avoid(g, r.now)) > 0 {
			reservation.Give(g, grant)
		}
	}
}

// hold makes a gang wait that does not fit. It keeps a place for it, if it is the first of its queue that waits for room
// and one can be found, unless smaller gangs move out of its way.
func (r *round) hold(g *model.Gang) {
	reservation := r.reservation(g)
	w := waiting{gang: g}
	if reservation != nil {
		w.planned = &model.Planned{At: reservation.At, Nodes: reservation.Nodes, Sure: reservation.Sure}
	}
	if r.move(g, w.planned) {
		return
	}
	if reservation != nil {
		r.lines[r.tree.Line(g.Queue)] = true
		r.reserved = append(r.reserved, reservation)
	}
	r.wait(w)
}

// reservation finds a place to keep for a gang, or returns nil.
func (r *round) reservation(g *model.Gang) *backfill.Reservation {
	if r.lines[r.tree.Line(g.Queue)] || len(r.reserved) == maxReservations || r.plans == maxPlans {
		return nil
	}
	r.plans++
	planner := backfill.Planner{Cluster: r.cluster, Endings: r.ends.All(), Kept: r.kept(), Now: r.now}
	reservation, _ := planner.Plan(g)
	return reservation
}

// limit notes that a gang waits for the limit of its queue, so that later ones do not keep it there.
func (r *round) limit(g *model.Gang) {
	use, _ := r.tree.Limit(g.Queue, g.GPUs())
	if g.GPUs() > use.Max {
		return // it will never start
	}
	l := limited{queue: use.Name, gang: g}
	lack := use.Used + g.GPUs() - use.Max
	for _, e := range r.ends.All() {
		if r.tree.Holds(use.Name, e.Queue) {
			if lack -= e.GPUs(); lack <= 0 {
				l.at = e.At
				break
			}
		}
	}
	r.limited = append(r.limited, l)
}

// behind returns the gang that waits for the limit of a queue that this one counts in as well, if this one could still run
// when that is to start.
func (r *round) behind(g *model.Gang) (limited, bool) {
	length, _ := ends.Length(g)
	for _, l := range r.limited {
		inTime := length > 0 && !l.at.IsZero() && !r.now.Add(length).After(l.at)
		if r.tree.Holds(l.queue, g.Queue) && !inTime {
			return l, true
		}
	}
	return limited{}, false
}
