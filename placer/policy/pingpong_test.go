// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

// TestNoPingPong lets two queues compete for 10,000 rounds of a minute, each with more to do than it is owed and gangs that
// never end. Queues that take their shares back settle: after each has what it is owed nobody is evicted any more, no
// gang is evicted more often than its budget allows, and nobody is evicted for the gang that it was evicted for.
func TestNoPingPong(t *testing.T) {
	cases := map[string]struct {
		queues []model.Queue
		sizes  map[string][]int // GPUs of the gangs of each queue; one more gang is submitted each round until all are
		most   int              // evictions in all
	}{
		"one fills the cluster before the other comes": {
			queues: []model.Queue{{Name: "a", Quota: 16}, {Name: "b", Quota: 16}},
			sizes:  map[string][]int{"a": {8, 8, 8, 8, 8, 8}, "b": {0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8}},
			most:   2,
		},
		"gangs that do not divide the quota": {
			queues: []model.Queue{{Name: "a", Quota: 12}, {Name: "b", Quota: 20}},
			sizes:  map[string][]int{"a": {8, 8, 8, 8, 8, 5, 3}, "b": {0, 0, 0, 0, 6, 6, 8, 8, 6, 6, 1}},
			most:   5,
		},
		"a gang that is larger than what its queue is owed": {
			queues: []model.Queue{{Name: "a", Quota: 8}, {Name: "b", Quota: 24}},
			sizes:  map[string][]int{"a": {16, 16, 16, 16}, "b": {0, 0, 0, 0, 8, 8, 8, 8}},
			most:   2,
		},
		"priorities within the queues as well": {
			queues: []model.Queue{{Name: "a", Quota: 16, Preempt: true}, {Name: "b", Quota: 16, Preempt: true}},
			sizes:  map[string][]int{"a": {8, 8, 8, 8, 8, 8}, "b": {0, 0, 0, 8, 8, 8, 8, 8}},
			most:   12,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStruggle(4, c.queues)
			for round := range 10_000 {
				for _, queue := range []string{"a", "b"} {
					if sizes := c.sizes[queue]; round < len(sizes) && sizes[round] > 0 {
						s.submit(fmt.Sprintf("%s%d", queue, round), queue, sizes[round], 50+round)
					}
				}
				s.round(t)
			}
			must.LessEq(t, c.most, s.evictions, must.Sprint("evictions in all"))
			must.Less(t, 2000, s.lastEviction, must.Sprint("round of the last eviction"))
		})
	}
}

// TestNoPingPongRandom is the same for random queues and gangs: what has settled stays.
func TestNoPingPongRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStruggle(3, []model.Queue{
			{Name: "a", Quota: rapid.IntRange(0, 16).Draw(t, "a"), Preempt: rapid.Bool().Draw(t, "preempt")},
			{Name: "b", Quota: rapid.IntRange(0, 16).Draw(t, "b"), Preempt: rapid.Bool().Draw(t, "preempt")},
		})
		s.snapshot.Evictions = 1000 // the budget is not to be what stops it
		gangs := rapid.IntRange(1, 9).Draw(t, "gangs")
		for i := range gangs {
			s.submit(fmt.Sprintf("g%d", i), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "queue"),
				rapid.IntRange(1, 8).Draw(t, "gpus"), rapid.IntRange(1, 3).Draw(t, "priority"))
			for range rapid.IntRange(0, 15).Draw(t, "rounds") {
				s.round(t)
			}
		}
		s.lastEviction = 0
		start := s.rounds
		for range 400 {
			s.round(t)
		}
		must.Less(t, start+200, max(start, s.lastEviction), must.Sprint("still evicting"))
	})
}

// struggle is a cluster in which gangs never end, unless they are evicted.
type struggle struct {
	world
	decider                         policy.Decider
	now                             time.Time
	rounds, evictions, lastEviction int
	evictedFor                      map[string]string
}

func newStruggle(nodes int, queues []model.Queue) *struggle {
	s := &struggle{now: epoch, evictedFor: map[string]string{}}
	s.snapshot.Queues = queues
	topology := gpu.NewTopology(machine(8, "switch"))
	for i := range nodes {
		s.snapshot.Nodes = append(s.snapshot.Nodes, model.Node{
			Name: fmt.Sprintf("n%d", i), Topology: topology, Usable: gpu.FirstN(8), Free: gpu.FirstN(8),
		})
	}
	return s
}

func (s *struggle) submit(name, queue string, gpus, priority int) {
	group := model.Group{Name: "w", Count: 1, GPUs: gpus}
	if gpus > 8 {
		group = model.Group{Name: "w", Count: gpus / 8, GPUs: 8}
	}
	s.snapshot.Gangs = append(s.snapshot.Gangs, model.Gang{
		Name: name, Queue: queue, Priority: priority, Submitted: s.now, WaitingSince: s.now, Locality: model.LocalityAny,
		Groups: []model.Group{group},
	})
}

// round lets a minute pass: whoever was evicted is gone by then and waits again.
func (s *struggle) round(t must.T) {
	s.rounds++
	s.now = s.now.Add(time.Minute)
	for i := len(s.snapshot.Running) - 1; i >= 0; i-- {
		if r := &s.snapshot.Running[i]; r.Closing {
			s.happened("gone", r.Name, s.now)
		}
	}
	d := s.decider.Decide(s.snapshot, s.now)
	for _, grant := range d.Grants {
		s.take(grant, s.now)
	}
	for _, e := range d.Evictions {
		must.NotEq(t, e.Gang, s.evictedFor[e.For], must.Sprintf("%s and %s evict one another", e.Gang, e.For))
		s.evictedFor[e.Gang] = e.For
		victim := s.running(e.Gang)
		victim.Closing, victim.FreedFor = true, e.For
		s.evictions++
		s.lastEviction = s.rounds
	}
	for _, w := range d.Waits {
		s.gangOf(w.Gang).Earmarks = w.Earmarks
	}
}
