// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/placer/ledger"
)

func TestHear(t *testing.T) {
	run := func(generation int, phase ledger.RunPhase) ledger.Run {
		return ledger.Run{Generation: generation, Phase: phase}
	}
	cases := map[string]struct {
		run  ledger.Run
		want Word
	}{
		"nothing is there":             {ledger.Run{}, Wait},
		"it gathers":                   {run(2, ledger.RunGathering), Wait},
		"it runs":                      {run(2, ledger.RunRunning), Start},
		"it ran before":                {run(1, ledger.RunRunning), Wait},
		"it gathers for the next":      {run(3, ledger.RunGathering), Again},
		"it is over in an earlier one": {run(1, ledger.RunFailed), Failure},
		"it failed":                    {run(2, ledger.RunFailed), Failure},
		"it succeeded":                 {run(2, ledger.RunSucceeded), Success},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { must.Eq(t, c.want, Hear(c.run, 2)) })
	}
}

func TestOlder(t *testing.T) {
	inOrder := []ledger.Run{
		{}, {Generation: 1, Phase: ledger.RunGathering}, {Generation: 1, Phase: ledger.RunRunning},
		{Generation: 2, Phase: ledger.RunGathering}, {Generation: 2, Phase: ledger.RunRunning}, {Generation: 2, Phase: ledger.RunFailed},
	}
	for i, a := range inOrder {
		for j, b := range inOrder {
			must.Eq(t, i < j, Older(a, b), must.Sprintf("%v and %v", a, b))
		}
	}
}

// actor is a member as its driver makes it: a task with a process or without one, by what it has heard.
type actor struct {
	doc     ledger.Member // what it has written last
	heard   ledger.Run
	process int  // the generation of its process; 0: it has none
	task    bool // Nomad has a task for it
	over    bool // its task has ended for good
}

// stage is a gang whose documents travel slowly: everybody sees a state of some time ago, but never an older one than
// before.
type stage struct {
	actors  []actor
	written []map[int]ledger.Member // all states of the members' documents
	runs    []ledger.Run            // all states of the run's document
	seen    int                     // of the members' by the leader
	heard   []int                   // of the run's by each member
}

func (s *stage) say(rank int) {
	now := maps.Clone(s.written[len(s.written)-1])
	now[rank] = s.actors[rank].doc
	s.written = append(s.written, now)
}

func (s *stage) arrive(rank, generation int) {
	s.actors[rank].doc.Generation, s.actors[rank].doc.State = generation, ledger.MemberArrived
	s.say(rank)
}

// obey does what a member's driver does now, of which it may be kept for a while: one thing.
func (s *stage) obey(rank int) {
	a := &s.actors[rank]
	if !a.task || a.over {
		return
	}
	switch Hear(a.heard, a.doc.Generation) {
	case Start:
		if a.doc.State == ledger.MemberArrived {
			a.process, a.doc.State = a.doc.Generation, ledger.MemberRunning
			s.say(rank)
		}
	case Again:
		if a.process != 0 {
			a.process = 0 // it arrives later
			return
		}
		s.arrive(rank, a.heard.Generation)
	case Failure, Success:
		a.process, a.over = 0, true
	case Wait:
	}
}

// restart is what Nomad does to one task: stop it, and start it again.
func (s *stage) restart(rank int) {
	a := &s.actors[rank]
	switch {
	case a.over:
	case a.task:
		a.task, a.process, a.doc.State = false, 0, ledger.MemberLeaving
		s.say(rank)
	case over(a.heard):
		a.over = true
	default:
		a.task = true
		s.arrive(rank, max(a.doc.Generation+1, a.heard.Generation))
	}
}

func (s *stage) succeed(rank int) {
	if a := &s.actors[rank]; a.task && a.process == a.doc.Generation && a.doc.State == ledger.MemberRunning {
		a.process, a.doc.State = 0, ledger.MemberSucceeded
		s.say(rank)
	}
}

func (s *stage) lead(size int) bool {
	next, changed := Next(s.runs[len(s.runs)-1], s.written[s.seen], size, time.Time{})
	if changed {
		s.runs = append(s.runs, next)
	}
	return changed
}

// check is what must hold at every moment.
func (s *stage) check() error {
	running := 0
	for rank, a := range s.actors {
		if a.process != 0 && running != 0 && a.process != running {
			return fmt.Errorf("rank %d runs in generation %d beside generation %d", rank, a.process, running)
		}
		running = max(running, a.process)
	}
	for i := 1; i < len(s.runs); i++ {
		if s.runs[i].Generation < s.runs[i-1].Generation || !over(s.runs[i]) && Older(s.runs[i], s.runs[i-1]) {
			return fmt.Errorf("the run went from generation %d %s to %d %s", s.runs[i-1].Generation, s.runs[i-1].Phase, s.runs[i].Generation, s.runs[i].Phase)
		}
	}
	return nil
}

// However documents are delayed, and whoever is restarted when: no two generations run at once, generations only grow, and
// a gang that is left alone runs whole in one.
func TestGenerations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 4).Draw(t, "size")
		s := &stage{written: []map[int]ledger.Member{{}}, runs: []ledger.Run{{}}, heard: make([]int, size), actors: make([]actor, size)}
		for rank := range size {
			s.actors[rank] = actor{task: true, doc: member(rank, ledger.MemberArrived)}
			s.say(rank)
		}
		ranks := rapid.IntRange(0, size-1)
		t.Repeat(map[string]func(*rapid.T){
			"the leader sees": func(t *rapid.T) { s.seen = rapid.IntRange(s.seen, len(s.written)-1).Draw(t, "state") },
			"the leader acts": func(*rapid.T) { s.lead(size) },
			"a member hears": func(t *rapid.T) {
				rank := ranks.Draw(t, "rank")
				s.heard[rank] = rapid.IntRange(s.heard[rank], len(s.runs)-1).Draw(t, "run")
				s.actors[rank].heard = s.runs[s.heard[rank]]
			},
			"a member acts":     func(t *rapid.T) { s.obey(ranks.Draw(t, "rank")) },
			"a member succeeds": func(t *rapid.T) { s.succeed(ranks.Draw(t, "rank")) },
			"Nomad restarts":    func(t *rapid.T) { s.restart(ranks.Draw(t, "rank")) },
			"": func(t *rapid.T) {
				if err := s.check(); err != nil {
					t.Fatal(err)
				}
			},
		})
		s.settle(t, size)
	})
}

// settle leaves the gang alone until nothing changes any more.
func (s *stage) settle(t *rapid.T, size int) {
	for rank := range size {
		if !s.actors[rank].task {
			s.restart(rank)
		}
	}
	for range 10 * size {
		s.seen = len(s.written) - 1
		for s.lead(size) {
		}
		for rank := range size {
			s.actors[rank].heard = s.runs[len(s.runs)-1]
			s.obey(rank)
		}
		if err := s.check(); err != nil {
			t.Fatal(err)
		}
	}
	run := s.runs[len(s.runs)-1]
	if over(run) {
		return
	}
	for rank, a := range s.actors {
		if run.Phase != ledger.RunRunning || a.doc.Generation != run.Generation || a.process == 0 && a.doc.State != ledger.MemberSucceeded {
			t.Fatalf("rank %d is %v with process %d, the run is %v", rank, a.doc, a.process, run)
		}
	}
}
