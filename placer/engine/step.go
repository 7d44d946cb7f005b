// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
	"github.com/nomad-muster/muster/placer/queues"
)

// step is one decision under way: what it looks at, and what follows from that alone.
type step struct {
	View
	rules  Rules
	now    time.Time
	tree   queues.Tree
	wants  map[nomad.JobID]want
	allocs map[nomad.JobID][]*nomad.Alloc // of those jobs
	names  map[string]string              // of the ledger's nodes, by Nomad node ID
	freeze *ledger.Reason                 // why the ledger may not be the whole truth yet; nil: it is
}

// Step says what to do now: at most one action about each gang, in the order release, close, everything that touches no
// slot, grant, signals, changes of jobs. What operators have ordered is done where nothing else is about the gang. Nothing
// to do is nothing at all, so that calling it again after all was done gives nothing. While Nomad's state is stale, only
// what the ledger alone proves is done.
func (r Rules) Step(v View, now time.Time) []Action {
	s := step{View: v, rules: r, now: now, tree: queues.New(v.Ledger.Queues.Doc)}
	if hearing := s.hear(); len(hearing) > 0 {
		return hearing // and the next step decides on what was heard
	}
	s.wants, s.names = r.wants(v, s.tree), v.nodeNames()
	s.allocs = allocsOf(v.Nomad, s.wants)
	s.freeze = s.frozen()

	lives := s.lives()
	lives = append(lives, s.orders(gangsOf(lives))...)
	actions := slices.Concat(of(lives, Release), of(lives, Close), of(lives, Put, Delete, Forget, Sweep, Answer, EndClaims, DropOrder), s.housekeeping())
	if v.Nomad.Stale != "" {
		return actions
	}
	busy := gangsOf(lives)
	leaving := map[string]bool{}
	for _, a := range lives {
		leaving[a.Gang.Name] = a.Kind == Delete || (a.Kind == Release || a.Kind == Forget) && a.Release.Remove
	}
	intake := s.intake(leaving)
	actions = append(actions, intake...)
	adoptions := s.adoptions(busy)
	for _, a := range adoptions {
		busy[a.Gang.Name] = true
	}
	actions = append(actions, adoptions...)
	placed := s.place(busy, docsOf(of(lives, Close)))
	if len(of(actions, Release, Delete, Sweep))+len(of(intake, Put)) > 0 {
		placed = of(placed, Grant) // the next step knows better why the others wait
	}
	return slices.Concat(actions, placed, s.signals(), s.jobWrites())
}

// lives lets every gang take its next step in life, in the order of names.
func (s step) lives() []Action {
	var actions []Action
	for _, name := range slices.Sorted(maps.Keys(s.Ledger.Gangs)) {
		if action, some := s.live(s.Ledger.Gangs[name].Doc); some {
			actions = append(actions, action)
		}
	}
	return actions
}

// gangsOf are the gangs that actions are about.
func gangsOf(actions []Action) map[string]bool {
	gangs := map[string]bool{}
	for _, a := range actions {
		gangs[a.Gang.Name] = true
	}
	return gangs
}

// docsOf are the documents that actions about gangs write, by gang.
func docsOf(actions []Action) map[string]ledger.Gang {
	docs := map[string]ledger.Gang{}
	for _, a := range actions {
		docs[a.Gang.Name] = a.Gang
	}
	return docs
}

// of is the actions of some kinds, in their order.
func of(actions []Action, kinds ...Kind) []Action {
	var out []Action
	for _, a := range actions {
		if slices.Contains(kinds, a.Kind) {
			out = append(out, a)
		}
	}
	return out
}

// housekeeping sweeps slots that no gang holds, and removes runs whose reservation is gone.
func (s step) housekeeping() []Action {
	actions := append(s.sweeps(), s.accounts()...)
	for _, run := range slices.SortedFunc(maps.Keys(s.Ledger.Runs), compareRuns) {
		if !s.holds(run) {
			actions = append(actions, Action{Kind: DeleteRun, Run: run})
		}
	}
	return actions
}

// holds says whether a run's reservation still exists, or may exist in a document that can't be read, or
// that is to be put in order.
func (s step) holds(run ledger.RunID) bool {
	if s.freeze != nil || slices.Contains(s.Ledger.Newer, s.rules.Keys.Gang(run.Gang)) {
		return true
	}
	g := s.Ledger.Gangs[run.Gang].Doc
	return g.Reservation != nil && g.Reservation.ID == run.Reservation
}
