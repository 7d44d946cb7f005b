// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

const (
	retireAfter = 2 * time.Second  // Nomad may see by itself that a job is over
	retireEvery = 30 * time.Second // how often it is tried
)

// retirements end in Nomad's books the jobs of finished gangs that Nomad wants to run again. Nomad (1.6) forgets that a
// batch allocation is complete when its group has max_client_disconnect, which gangs must have: the next evaluation of
// any cause asks for all members again, and the job would stay pending for ever.
func (s step) retirements() []Action {
	var actions []Action
	for _, name := range slices.Sorted(maps.Keys(s.Ledger.Gangs)) {
		g := s.Ledger.Gangs[name].Doc
		if g.State != ledger.GangFinished || s.now.Sub(g.Since) < retireAfter {
			continue
		}
		w, how, _ := s.owner(g)
		tried, some := s.Memory.Retired[name]
		if how != owns || some && s.now.Sub(tried) < retireEvery || !s.wantsMore(g, w.job) {
			continue
		}
		actions = append(actions, Action{Kind: Retire, What: "finished", Gang: g, Job: w.job})
	}
	return actions
}

// wantsMore says whether Nomad would run the job of a finished gang again, although all that it has is the gang and
// nothing of it is alive.
func (s step) wantsMore(g ledger.Gang, job *nomad.Job) bool {
	if job.Dead() || job.Version != g.JobVersion || len(job.API.TaskGroups) != len(g.Spec.Groups) {
		return false
	}
	for _, allocs := range s.Nomad.Allocs {
		if slices.ContainsFunc(allocs, func(a *nomad.Alloc) bool { return a.Job == job.ID && !a.Terminal() }) {
			return false
		}
	}
	return true
}
