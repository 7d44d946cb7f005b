// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package order

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

var day = time.Unix(86400*10, 0)

func at(second int) time.Time { return day.Add(time.Duration(second) * time.Second) }

func TestTurns(t *testing.T) {
	gang := func(name, queue string, gpus int) model.Gang {
		return model.Gang{Name: name, Queue: queue, Submitted: day, Groups: []model.Group{{Count: 1, GPUs: gpus}}}
	}
	with := func(g model.Gang, change func(*model.Gang)) model.Gang {
		change(&g)
		return g
	}
	cases := map[string]struct {
		queues  []model.Queue
		running []model.Running
		gangs   []model.Gang
		want    []string
	}{
		"without queues: priority, submission, name": {
			gangs: []model.Gang{
				with(gang("late", "", 1), func(g *model.Gang) { g.Submitted = at(2) }),
				gang("b", "", 1), gang("a", "", 1),
				with(gang("urgent", "", 1), func(g *model.Gang) { g.Submitted, g.Priority = at(9), 80 }),
				with(gang("idle", "", 1), func(g *model.Gang) { g.Submitted, g.Priority = at(-9), -1 }),
			},
			want: []string{"urgent", "a", "b", "late", "idle"},
		},
		"who has waited a day goes first, whatever its priority": {
			gangs: []model.Gang{
				with(gang("urgent", "", 1), func(g *model.Gang) { g.Priority = 80 }),
				with(gang("old", "", 1), func(g *model.Gang) { g.WaitingSince = at(-86400) }),
				with(gang("older", "", 1), func(g *model.Gang) { g.Priority, g.WaitingSince = -5, at(-86401) }),
				with(gang("almost", "", 1), func(g *model.Gang) { g.WaitingSince = at(-86399) }),
			},
			want: []string{"older", "old", "urgent", "almost"},
		},
		"queues within their quota before those that borrow, whatever the priority": {
			queues: []model.Queue{{Name: "owner", Quota: 8}, {Name: "guest"}},
			gangs: []model.Gang{
				with(gang("guest1", "guest", 1), func(g *model.Gang) { g.Priority = 99 }),
				gang("owner1", "owner", 8), gang("owner2", "owner", 1),
			},
			want: []string{"owner1", "owner2", "guest1"},
		},
		"the queue that has less of its quota first": {
			queues:  []model.Queue{{Name: "full", Quota: 16}, {Name: "empty", Quota: 16}},
			running: []model.Running{{Gang: gang("r", "full", 8)}},
			gangs:   []model.Gang{gang("a", "full", 2), gang("b", "empty", 2)},
			want:    []string{"b", "a"},
		},
		"the queue that has had less lately first": {
			queues: []model.Queue{{Name: "much", Quota: 16, GPUSeconds: 1e6}, {Name: "some", Quota: 16, GPUSeconds: 1e5}},
			gangs:  []model.Gang{gang("a", "much", 2), gang("b", "some", 2)},
			want:   []string{"b", "a"},
		},
		"borrowers by weight": {
			queues:  []model.Queue{{Name: "a", Weight: 1}, {Name: "b", Weight: 3}},
			running: []model.Running{{Gang: gang("ra", "a", 4)}, {Gang: gang("rb", "b", 8)}},
			gangs:   []model.Gang{gang("a", "a", 1), gang("b", "b", 1)},
			want:    []string{"b", "a"},
		},
		"nested: the outer queues are compared first": {
			queues: []model.Queue{
				{Name: "red", Quota: 8}, {Name: "red.x", Quota: 8}, {Name: "blue", Quota: 16}, {Name: "blue.x"},
			},
			running: []model.Running{{Gang: gang("r", "red.x", 6)}},
			gangs:   []model.Gang{gang("red", "red.x", 2), gang("bluex", "blue.x", 2), gang("blue", "blue", 2), gang("none", "green", 1)},
			want:    []string{"blue", "bluex", "red", "none"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			must.Eq(t, c.want, turns(model.Snapshot{Queues: c.queues, Running: c.running}, c.gangs))
		})
	}
}

// turns lists the gangs in turn, as if none of them were granted.
func turns(s model.Snapshot, gangs []model.Gang) []string {
	pointers := make([]*model.Gang, len(gangs))
	for i := range gangs {
		pointers[i] = &gangs[i]
	}
	all := NewTurns(queue.New(s), pointers, At(s.Settings, day))
	var names []string
	for g, some := all.Next(); some; g, some = all.Next() {
		names = append(names, g.Name)
	}
	return names
}

func TestTurnsDoNotDependOnTheInput(t *testing.T) {
	s := model.Snapshot{Queues: []model.Queue{{Name: "q0", Quota: 4}, {Name: "q1", Quota: 2, Weight: 2}, {Name: "q1.x", Quota: 1}}}
	rapid.Check(t, func(t *rapid.T) {
		var gangs []model.Gang
		for i := range rapid.IntRange(0, 8).Draw(t, "gangs") {
			gangs = append(gangs, model.Gang{
				Name: string(rune('a' + i)), Priority: rapid.IntRange(0, 2).Draw(t, "priority"),
				Queue:     rapid.SampledFrom([]string{"q0", "q1", "q1.x", "q1.x.y", "none"}).Draw(t, "queue"),
				Submitted: at(-rapid.IntRange(0, 2).Draw(t, "submitted") * 43200),
				Groups:    []model.Group{{Count: rapid.IntRange(0, 3).Draw(t, "members"), GPUs: 1}},
			})
		}
		other := rapid.Permutation(gangs).Draw(t, "in another order")
		mixed := s
		mixed.Queues = rapid.Permutation(s.Queues).Draw(t, "queues in another order")
		first := turns(s, gangs)
		must.Len(t, len(gangs), first)
		must.Eq(t, first, turns(mixed, other))
	})
}
