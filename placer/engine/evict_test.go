// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

// evicting is a world in which three gangs run on a node each, and one of a higher priority has come that needs two nodes.
func evicting(t *testing.T, decide func(model.Snapshot, time.Time) model.Decision) *world {
	t.Helper()
	w := newWorld(t)
	w.decide = decide
	for i := range 3 {
		w.addNode(fmt.Sprintf("n%d", i+1), "r1", 8)
	}
	w.settle()
	w.ack()
	for i := range 3 {
		w.happen([]string{"job", fmt.Sprintf("low%d", i+1), "gpus=8", "priority=10"})
	}
	w.settle()
	w.place()
	for i := range 3 {
		w.claim(fmt.Sprintf("low%d", i+1))
	}
	w.settle()
	w.now = w.now.Add(time.Hour)
	w.happen([]string{"job", "high", "gpus=8", "count=2", "priority=90"})
	return w
}

// byPriority is the real policy, in a queue where gangs of higher priority may evict others.
func byPriority(s model.Snapshot, now time.Time) model.Decision {
	s.Queues = []model.Queue{{Name: "default", Quota: 24, Preempt: true}}
	return policy.Decide(s, now)
}

// TestEarmarksComeFirst: whatever becomes of any one write of an eviction, and whether or not another placer leads then, no
// victim is closing for a gang that has nothing earmarked, and the gang gets what was freed for it.
func TestEarmarksComeFirst(t *testing.T) {
	faults := map[string]ledger.Fault{"refused": ledger.Refuse, "lost": ledger.Lose, "dropped": ledger.Drop, "late": ledger.Late}
	for name, fault := range faults {
		for write := range 4 { // admission, earmarks, two victims
			for _, leader := range []string{"same leader", "new leader", "new leader, real policy"} {
				t.Run(fmt.Sprintf("%s write %d, %s", name, write, leader), func(t *testing.T) {
					decide := makeRoom
					if leader == "new leader, real policy" {
						decide = byPriority
					}
					w := evicting(t, decide)
					seen := 0
					w.store.Inject(func(c ledger.Call) ledger.Fault {
						if c.Method != "Txn" {
							return ledger.None
						}
						if seen++; seen-1 == write {
							return fault
						}
						return ledger.None
					})
					w.leader.doubtful = true
					for range 2 {
						_, err := w.leader.decide(t.Context())
						must.NoError(t, err)
						w.checkEarmarked()
					}
					w.store.Inject(nil)
					if leader != "same leader" {
						w.elect()
						w.settle()
						w.ack()
					}
					w.store.Deliver()
					for range 4 {
						w.settle()
						w.checkEarmarked()
						machine{world: w}.endClosing()
						w.ack()
					}
					g := w.load().Gangs["high"].Doc
					must.Eq(t, ledger.GangReserved, g.State)
					must.SliceEmpty(t, g.Earmarks)
					victims := 0
					for i := range 3 {
						victims += len(w.load().Gangs[fmt.Sprintf("low%d", i+1)].Doc.Evicted)
					}
					must.Eq(t, 2, victims, must.Sprint("no gang is evicted in vain, or twice"))
				})
			}
		}
	}
}

// checkEarmarked holds gangs that are evicted to their rule: what they free is earmarked for the gang that waits for it.
func (w *world) checkEarmarked() {
	s := w.load()
	for name, g := range s.Gangs {
		claimant, waits := s.Gangs[g.Doc.FreedFor]
		if g.Doc.State == ledger.GangClosing && g.Doc.FreedFor != "" && waits && claimant.Doc.State == ledger.GangWaiting {
			must.SliceNotEmpty(w.t, claimant.Doc.Earmarks, must.Sprintf("gang %s is evicted for %s", name, g.Doc.FreedFor))
		}
	}
}

// TestVictimEndsByItself: a gang that is about to be evicted and has done its work is finished, and the other starts.
func TestVictimEndsByItself(t *testing.T) {
	w := evicting(t, makeRoom)
	w.run("low1", ledger.RunSucceeded, "")
	w.settle()
	g := w.load().Gangs["low1"].Doc
	must.Eq(t, ledger.GangFinished, g.After)
	must.Eq(t, "", g.FreedFor)
	must.SliceEmpty(t, g.Evicted)
}

// TestEarmarksGo: what is earmarked for a gang is free for others as soon as the gang is gone, or the policy gives it up; not
// while the gang is only held back for a moment.
func TestEarmarksGo(t *testing.T) {
	cases := map[string]func(w *world){
		"the job is stopped": func(w *world) { w.happen([]string{"stop", "high"}) },
		"the policy gives up": func(w *world) {
			w.decide = nil
			w.happen([]string{"order", "high", "hold=3600"})
		},
		"its queue does not take it any more": func(w *world) {
			w.applyQueues("queue \"default\" {\n  priority {\n    max = 50\n  }\n}\n")
		},
		"Nomad denies its reset": func(w *world) {
			w.rights = "Permission denied"
			g := w.load().Gangs["high"]
			g.Doc.Reset = &ledger.Reset{Why: "Nomad counts a member as complete", At: w.now}
			_, err := w.ledger.Commit(t.Context(), w.leader.lease, ledger.Change{Gang: &g})
			must.NoError(t, err)
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			w := evicting(t, makeRoom)
			w.settle()
			must.Len(t, 2, w.load().Gangs["high"].Doc.Earmarks)
			change(w)
			for range 3 {
				w.settle()
				machine{world: w}.endClosing()
				w.ack()
			}
			w.settle()
			must.SliceEmpty(t, w.load().Gangs["high"].Doc.Earmarks)
			for i := range 3 {
				must.NotEq(t, ledger.GangWaiting, w.load().Gangs[fmt.Sprintf("low%d", i+1)].Doc.State)
			}
		})
	}
}

// TestRunningGangsAsThePolicySeesThem: what they hold, since when, and how much of their work is safe.
func TestRunningGangsAsThePolicySeesThem(t *testing.T) {
	w := newWorld(t)
	w.addNode("n1", "r1", 8)
	w.addNode("n2", "r1", 8)
	w.settle()
	w.ack()
	w.happen([]string{"job", "train", "gpus=4", "count=3", "priority=70"})
	w.settle()
	seen := func() model.Running {
		var out []model.Running
		w.decide = func(s model.Snapshot, _ time.Time) model.Decision {
			out = s.Running
			return model.Decision{}
		}
		w.leader.step(w.State())
		must.Len(t, 1, out)
		return out[0]
	}
	w.happen([]string{"job", "next", "gpus=8", "count=9"})
	w.settle()
	r := seen()
	must.Eq(t, "train", r.Name)
	must.Eq(t, 70, r.Priority)
	must.Eq(t, "rack", r.Level)
	must.Eq(t, w.now, r.Granted)
	must.True(t, r.Started.IsZero())
	must.Len(t, 3, r.Members)
	total := 0
	for rank, m := range r.Members {
		must.Eq(t, rank, m.Rank)
		must.Eq(t, 4, m.GPUs.Len())
		total += m.GPUs.Len()
	}
	must.Eq(t, 12, total)

	w.place()
	w.claim("train")
	w.now = w.now.Add(time.Minute)
	began := w.now
	w.run("train", ledger.RunRunning, "")
	w.settle()
	must.Eq(t, began, seen().Started)
	for rank, at := range w.slotsOf("train") {
		done := began.Add(time.Duration(rank+1) * time.Minute)
		must.True(t, seen().Saved.IsZero(), must.Sprint("not every member has one"))
		w.member(at, ledger.Member{State: ledger.MemberRunning, Checkpoint: &ledger.Checkpoint{Count: 1, Completed: &done}})
		w.settle()
	}
	must.Eq(t, began.Add(time.Minute), seen().Saved)

	w.happen([]string{"job", "train", "gpus=8", "count=5", "priority=70"})
	must.True(t, seen().Closing)
	must.Eq(t, 12, seen().GPUs(), must.Sprint("it holds what it was granted, whatever its job asks for now"))

	w.purge(jobOf(w.load().Gangs["train"].Doc))
	must.True(t, seen().Closing)
	w.settle()
	must.True(t, seen().Closing, must.Sprint("its job is gone, and it still holds its GPUs"))
	must.Eq(t, 12, seen().GPUs())
}
