// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/nomad"
)

// TestPlanComesTrue: what is foretold for a job is what happens when it is submitted then, and to ask changes nothing.
func TestPlanComesTrue(t *testing.T) {
	cases := map[string]struct {
		job      []string
		eviction bool
	}{
		"it starts":                         {job: []string{"job", "next", "gpus=4", "count=2"}},
		"no room":                           {job: []string{"job", "next", "gpus=8", "count=2"}},
		"never":                             {job: []string{"job", "next", "gpus=8", "count=9"}},
		"others are evicted for it":         {job: []string{"job", "next", "gpus=8", "count=2", "priority=90"}, eviction: true},
		"refused":                           {job: []string{"job", "next", "gpus=8", "restart=delay"}},
		"the name is taken":                 {job: []string{"job", "next", "gang=full"}},
		"a newer version of one that runs":  {job: []string{"job", "full", "gpus=8", "priority=60"}},
		"a newer version of one that waits": {job: []string{"job", "stuck", "gpus=2"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.eviction {
				w.decide = byPriority
			}
			w.addNode("n1", "r1", 8)
			w.addNode("n2", "r1", 8)
			w.settle()
			w.ack()
			w.happen([]string{"job", "full", "gpus=8", "priority=10"})
			w.settle()
			w.place()
			w.claim("full")
			w.happen([]string{"wait", "1h"})
			w.happen([]string{"job", "stuck", "gpus=8", "count=5"})
			w.settle()
			w.happen([]string{"wait", "1h"})
			w.settle()

			before, state := w.load(), w.State()
			words := c.job
			e := event{w: w, name: words[1], options: map[string]string{}}
			for _, word := range words[2:] {
				key, value, _ := strings.Cut(word, "=")
				e.options[key] = value
			}
			job, err := nomad.Unsubmitted(e.spec(), state)
			must.NoError(t, err)
			p := w.leader.Rules.Plan(View{Ledger: before, Nomad: state}, job, w.now)
			must.Eq(t, before.Index, w.load().Index)

			w.happen(words)
			w.settle()
			after := w.load()
			got := after.Gangs[p.Gang.Name].Doc
			switch {
			case p.Refused != nil:
				must.Eq(t, p.Refused.Text, after.Refusals["default/"+words[1]].Doc.Why.Text)
			case p.Starts():
				must.Eq(t, ledger.GangReserved, got.State)
				must.Eq(t, p.Gang.Reservation.Placements, got.Reservation.Placements)
			default:
				must.Eq(t, p.Gang.State, got.State)
				must.Eq(t, p.Gang.Why, got.Why)
				must.Eq(t, p.Gang.Outlook, got.Outlook)
				must.Eq(t, c.eviction, len(p.Evicts) > 0)
				for _, victim := range p.Evicts {
					must.Eq(t, got.Name, after.Gangs[victim].Doc.FreedFor)
				}
				must.Eq(t, got.State == ledger.GangWaiting, p.Cause != model.Cause(""))
			}
		})
	}
}

// TestPlanWaitsNoLongerThanTheLeader: a node whose device plugin hangs is left out of a plan once it is left out by the
// placer that leads.
func TestPlanWaitsNoLongerThanTheLeader(t *testing.T) {
	w := newWorld(t)
	w.addNode("n1", "r1", 8)
	w.addNode("n2", "r1", 8)
	w.settle()
	w.ack()
	w.settle()
	w.elect()
	w.settle()
	w.ack("n1")
	w.settle()

	view := View{Ledger: w.load(), Nomad: w.State()}
	job, err := nomad.Unsubmitted(event{w: w, name: "next", options: map[string]string{"gpus": "8"}}.spec(), view.Nomad)
	must.NoError(t, err)
	view.Ledger.LeaderSince = w.now
	p := w.leader.Rules.Plan(view, job, w.now.Add(time.Second))
	must.EqOp(t, WhyLedger, p.Gang.Why.Code)
	must.True(t, w.leader.Rules.Plan(view, job, w.now.Add(hearingTakes)).Starts())
}
