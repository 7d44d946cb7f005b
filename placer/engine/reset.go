// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// A gang reset: where Nomad counts a member of a gang that waits as done or as still there, it would never run that member
// again, or only in its own time, or stop it when the lost one comes back. The leader then stops the job and registers the
// same spec again, so that everything before belongs to an older version, of which Nomad owes nothing.

// strayed says why Nomad's books of a waiting gang's job, in its version in force, are not the ledger's; empty: they agree.
func (s step) strayed(g ledger.Gang, job *nomad.Job) string {
	for _, a := range s.allocs[job.ID] {
		ofGang := slices.ContainsFunc(g.Spec.Groups, func(group ledger.GroupSpec) bool { return group.Group == a.Group })
		if !ofGang || a.JobVersion != job.Version || a.Created < job.CreateIndex {
			continue
		}
		switch {
		case a.Terminal() && a.Client != structs.AllocClientStatusFailed:
			return fmt.Sprintf("Nomad counts %s as %s, and the gang has not finished", s.named(a), a.Client)
		case !a.Terminal() && s.beyond(a):
			return fmt.Sprintf("Nomad still counts on %s, which is out of reach", s.named(a))
		}
	}
	return ""
}

// named is an allocation in words.
func (s step) named(a *nomad.Alloc) string {
	text := "allocation " + short(a.ID)
	if len(a.Slots) > 0 {
		text += fmt.Sprintf(" (rank %d)", a.Slots[0].Rank)
	}
	if node := s.Nomad.Nodes[a.NodeID]; node != nil {
		text += " on " + node.Name
	}
	return text
}

// mustReset begins the reset of a waiting gang as soon as nothing of its job runs any more. Children of other jobs are
// gangs of one, which Nomad either runs again or counts as dead; it could not register them again under their parent.
func (s step) mustReset(g ledger.Gang, job *nomad.Job) (ledger.Gang, bool) {
	if job.Child() || job.Version != g.JobVersion {
		return g, false
	}
	why := s.strayed(g, job)
	if why == "" || s.livingOf(job.ID) != nil {
		return g, false
	}
	g.Reset = &ledger.Reset{FromVersion: job.Version, Why: why, At: s.now}
	g.Why = s.resetting(g)
	return g, true
}

// liveReset: a reset is over when the job is alive again, be it by our registering or by a user's, who wins.
func (s step) liveReset(g ledger.Gang, w want) (Action, bool) {
	from := g.Reset.FromVersion
	if w.job.Stopped || w.job.Version == from {
		return Action{}, false // see jobWrites
	}
	failures := g.Failures
	g.Reset, g.Why = nil, nil
	if w.job.Version == from+2 && w.spec.Shape == g.Spec.Shape {
		g = withSpec(g, w)
		g.Failures = failures
	} else {
		g = anew(g, w)
	}
	return s.put(putDone, g)
}

// resetting is the reason to wait while a reset is under way.
func (s step) resetting(g ledger.Gang) *ledger.Reason {
	if denied := s.Denied[jobOf(g)]; denied != "" {
		return reason(WhyReset, fmt.Sprintf("%s; the job must be stopped and registered again, and Nomad does not let the placer do it (%s): "+
			"give the placer's token the right submit-job, or stop and run the job again", g.Reset.Why, denied))
	}
	return reason(WhyReset, g.Reset.Why+"; the job is being stopped and registered again")
}

// endingShows is how long Nomad's books may take to show an end that a gang's nodes have vouched for.
const endingShows = 5 * time.Second

// held says whether a waiting gang may be granted nothing yet, whatever room there is, and why, unless it is a matter of
// moments.
func (s step) held(g ledger.Gang, job *nomad.Job) (why *ledger.Reason, held bool) {
	if g.Reset != nil {
		return s.resetting(g), true
	}
	if a := s.firstLiving(job.ID, func(a *nomad.Alloc) bool { return len(a.Slots) > 0 }); a != nil {
		if s.now.Sub(g.Since) < endingShows {
			return nil, true
		}
		return reason(WhyEnding, s.named(a)+" of an earlier run has not ended yet"), true
	}
	if why := s.strayed(g, job); why != "" && !job.Child() {
		if a := s.livingOf(job.ID); a != nil {
			return reason(WhyReset, fmt.Sprintf("%s; the job can't be registered again for it while group %s runs: stop and run the job again", why, a.Group)), true
		}
		return nil, true
	}
	return nil, false
}
