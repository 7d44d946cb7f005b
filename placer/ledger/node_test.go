// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestClaimRace(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1")
		grant(t, l, lease, asked("a", 1, 8), "r1", "n1")
		var mu sync.Mutex
		var winners, losers []string
		var group sync.WaitGroup
		for _, allocation := range []string{"alloc-1", "alloc-2", "alloc-3", "alloc-4"} {
			group.Go(func() {
				_, err := l.Claim(t.Context(), "n1", claimOf("r1", 0, allocation), anyone)
				mu.Lock()
				defer mu.Unlock()
				var claimed *ClaimedError
				switch {
				case err == nil:
					winners = append(winners, allocation)
				case errors.As(err, &claimed):
					losers = append(losers, allocation)
				default:
					t.Errorf("%s: %v", allocation, err)
				}
			})
		}
		group.Wait()
		must.Len(t, 1, winners)
		must.Len(t, 3, losers)
		must.EqOp(t, winners[0], load(t, l).Claims["n1"][SlotID{"r1", 0}].Doc.Allocation)
	})
}

// TestClaimOrClose lets claims and the closing of their slot race: a slot that is closing never gets a claim afterwards.
func TestClaimOrClose(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1")
		for i := range 20 {
			reservation := names("r", 20)[i]
			gang := grant(t, l, lease, asked(names("gang", 20)[i], 1, 8), reservation, "n1")
			var claimErr error
			var group sync.WaitGroup
			group.Go(func() { _, claimErr = l.Claim(t.Context(), "n1", claimOf(reservation, 0, "alloc"), anyone) })
			group.Go(func() { closeGang(t, l, lease, gang.Name, "test") })
			group.Wait()
			s := load(t, l)
			table := s.Tables["n1"]
			claim, claimed := s.Claims["n1"][SlotID{reservation, 0}]
			must.EqOp(t, claimErr == nil, claimed, must.Sprint(claimErr))
			if claimed {
				must.Less(t, table.Index, claim.Index, must.Sprint("claimed after closing"))
				must.NoError(t, l.Unclaim(t.Context(), "n1", SlotID{reservation, 0}, "alloc"))
			} else {
				var slot *SlotError
				must.True(t, errors.As(claimErr, &slot), must.Sprint(claimErr))
				must.EqOp(t, SlotClosing, slot.State)
			}
			acknowledge(t, l, "n1")
			s = load(t, l)
			change, err := BuildRelease(s, gang, Release{Remove: true})
			must.NoError(t, err)
			commit(t, l, lease, change)
		}
	})
}

func TestClaimRefusals(t *testing.T) {
	stranger := errors.New("the slot is of another job")
	cases := map[string]struct {
		claim Claim
		match func(Slot) error
		close bool
		want  string
	}{
		"a slot that never was":          {claimOf("r9", 0, "a"), anyone, false, "slot r9.0 on node n1 is gone"},
		"a rank that is elsewhere":       {claimOf("r1", 1, "a"), anyone, false, "slot r1.1 on node n1 is gone"},
		"a closing slot":                 {claimOf("r1", 0, "a"), anyone, true, "slot r1.0 on node n1 is closing: preempted"},
		"a stranger":                     {claimOf("r1", 0, "a"), func(Slot) error { return stranger }, false, stranger.Error()},
		"a slot of before the last boot": {Claim{Version: 1, Reservation: "r1", BootID: "boot 2"}, anyone, false, "slot r1.0 on node n1 is open: it was granted before the machine started anew"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := New(NewMemory(), "global")
			lease := cluster(t, l, 8, "n1", "n2")
			grant(t, l, lease, asked("a", 2, 8), "r1", "n1", "n2")
			if c.close {
				closeGang(t, l, lease, "a", "preempted")
			}
			_, err := l.Claim(t.Context(), "n1", c.claim, c.match)
			must.EqError(t, err, c.want)
			must.MapEmpty(t, load(t, l).Claims)
		})
	}
	t.Run("a node without a table", func(t *testing.T) {
		_, err := New(NewMemory(), "global").Claim(t.Context(), "n1", claimOf("r1", 0, "a"), anyone)
		must.EqError(t, err, "slot r1.0 on node n1 is gone: the node has no slot table")
	})
}

// TestClaimAgain is a driver that was started anew, and a table that moved for another gang meanwhile.
func TestClaimAgain(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1")
		grant(t, l, lease, asked("a", 1, 4), "r1", "n1")
		id := SlotID{"r1", 0}
		_, err := l.Claim(t.Context(), "n1", claimOf("r1", 0, "alloc-1"), func(Slot) error {
			if len(load(t, l).Gangs) == 1 {
				grant(t, l, lease, asked("b", 1, 4), "r2", "n1")
			}
			return nil
		})
		must.NoError(t, err)
		slot, err := l.Claim(t.Context(), "n1", claimOf("r1", 0, "alloc-1"), anyone)
		must.NoError(t, err)
		must.Eq(t, []string{gpuName("n1", 0), gpuName("n1", 1), gpuName("n1", 2), gpuName("n1", 3)}, slot.GPUs)
		other := claimOf("r1", 0, "alloc-1")
		other.Task = "another task"
		_, err = l.Claim(t.Context(), "n1", other, anyone)
		must.EqError(t, err, "slot r1.0 on node n1 is claimed by task train of allocation alloc-1 of job job in namespace default")
		must.NoError(t, l.Unclaim(t.Context(), "n1", id, "alloc-2"))
		must.MapLen(t, 1, load(t, l).Claims["n1"], must.Sprint("somebody else's claim stays"))
		must.NoError(t, l.Unclaim(t.Context(), "n1", id, "alloc-1"))
		must.NoError(t, l.Unclaim(t.Context(), "n1", id, "alloc-1"))
		must.MapEmpty(t, load(t, l).Claims)
	})
}

// TestClaimLost lets the answers of a claim get lost in every way.
func TestClaimLost(t *testing.T) {
	for name, fault := range map[string]Fault{"done": Lose, "never arrived": Drop, "arrives late": Late} {
		t.Run(name, func(t *testing.T) {
			m := NewMemory()
			l := New(m, "global")
			lease := cluster(t, l, 8, "n1")
			grant(t, l, lease, asked("a", 1, 8), "r1", "n1")
			left := 3
			m.Inject(func(c Call) Fault {
				if c.Method != "Txn" || left == 0 {
					return None
				}
				left--
				return fault
			})
			_, err := l.Claim(t.Context(), "n1", claimOf("r1", 0, "alloc-1"), anyone)
			must.NoError(t, err)
			m.Deliver()
			claims := load(t, l).Claims["n1"]
			must.EqOp(t, "alloc-1", claims[SlotID{"r1", 0}].Doc.Allocation)
			_, err = l.Claim(t.Context(), "n1", claimOf("r1", 0, "alloc-2"), anyone)
			var claimed *ClaimedError
			must.True(t, errors.As(err, &claimed))
		})
	}
}

func TestPublishNode(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		plugin := func(n Node) (string, error) {
			id, err := l.Store().CreateSession(t.Context(), NodeSession(n.Node))
			must.NoError(t, err)
			t.Cleanup(func() { must.NoError(t, l.Store().DestroySession(context.Background(), id)) })
			return id, l.PublishNode(t.Context(), id, n)
		}
		machine := inventory("n1", 2)
		first, err := plugin(machine)
		must.NoError(t, err)
		must.NoError(t, l.PublishNode(t.Context(), first, machine)) // again
		second, err := plugin(machine)
		must.NoError(t, err, must.Sprint("a plugin started anew on the same machine"))
		must.EqOp(t, second, load(t, l).NodeSessions["n1"])
		must.ErrorIs(t, l.Store().RenewSession(t.Context(), first), ErrNoSession)
		must.ErrorIs(t, l.PublishNode(t.Context(), first, machine), ErrNoSession)

		impostor := machine
		impostor.MachineID = "another machine"
		third, err := plugin(impostor)
		must.EqError(t, err, "node name n1 is taken by another machine that is alive (machine ID machine of n1, address 10.0.0.1): give this one another name")
		second = load(t, l).NodeSessions["n1"]
		must.NoError(t, l.Store().DestroySession(t.Context(), second))
		must.EqOp(t, "", load(t, l).NodeSessions["n1"], must.Sprint("silent, not gone"))
		must.EqOp(t, "machine of n1", load(t, l).Nodes["n1"].Doc.MachineID)
		must.NoError(t, l.PublishNode(t.Context(), third, impostor), must.Sprint("the name is free once the other machine is silent"))
	})
}

func TestRun(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := cluster(t, l, 8, "n1", "n2")
		gang := grant(t, l, lease, asked("a", 2, 8), "r1", "n1", "n2")
		run := Run{Version: Version, Generation: 1, Phase: RunGathering, Missing: []int{0, 1}}
		_, err := l.WatchRun(t.Context(), "a", "r1", 0, 0)
		must.ErrorIs(t, err, ErrNotFound)
		index, err := l.PutRun(t.Context(), "a", "r1", "n1", 0, Versioned[Run]{Doc: run})
		must.NoError(t, err)
		_, err = l.PutRun(t.Context(), "a", "r1", "n1", 0, Versioned[Run]{Doc: Run{Version: Version, Generation: 2}})
		must.ErrorIs(t, err, ErrConflict)
		for rank, node := range []string{"n1", "n2"} {
			must.NoError(t, l.PutMember(t.Context(), "a", "r1", Member{Version: Version, Rank: rank, Node: node, State: MemberArrived}))
		}
		members, _, err := l.WatchMembers(t.Context(), "a", "r1", 0, 0)
		must.NoError(t, err)
		must.MapLen(t, 2, members)
		run.Phase, run.Missing = RunRunning, nil
		_, err = l.PutRun(t.Context(), "a", "r1", "n1", 0, Versioned[Run]{Doc: run, Index: index})
		must.NoError(t, err)
		there, err := l.WatchRun(t.Context(), "a", "r1", index, time.Minute)
		must.NoError(t, err)
		must.Eq(t, run, there.Doc)

		closeGang(t, l, lease, "a", "test")
		stopped := Member{Version: Version, Rank: 1, Node: "n2", State: MemberStopped}
		must.NoError(t, l.PutMember(t.Context(), "a", "r1", stopped), must.Sprint("a closing slot's member may still report"))
		acknowledge(t, l, "n1")
		acknowledge(t, l, "n2")
		s := load(t, l)
		must.EqOp(t, MemberStopped, s.Runs[RunID{"a", "r1"}].Members[1].Doc.State)
		change, err := BuildRelease(s, waiting(gang), Release{})
		must.NoError(t, err)
		commit(t, l, lease, change)
		must.NoError(t, l.DeleteRun(t.Context(), lease, RunID{"a", "r1"}))
		var slot *SlotError
		must.True(t, errors.As(l.PutMember(t.Context(), "a", "r1", stopped), &slot), must.Sprint("a late driver brings nothing back"))
		_, err = l.PutRun(t.Context(), "a", "r1", "n1", 0, Versioned[Run]{Doc: run})
		must.True(t, errors.As(err, &slot))
		must.MapEmpty(t, load(t, l).Runs)
	})
}

func TestPutRunLost(t *testing.T) {
	for name, fault := range map[string]Fault{"done": Lose, "never arrived": Drop, "arrives late": Late} {
		t.Run(name, func(t *testing.T) {
			m := NewMemory()
			l := New(m, "global")
			lease := cluster(t, l, 8, "n1")
			grant(t, l, lease, asked("a", 1, 8), "r1", "n1")
			left := 1
			m.Inject(func(c Call) Fault {
				if c.Method != "Txn" || left == 0 {
					return None
				}
				left--
				return fault
			})
			started := epochTime
			run := Run{Version: Version, Generation: 1, Phase: RunRunning, Started: &started}
			index, err := l.PutRun(t.Context(), "a", "r1", "n1", 0, Versioned[Run]{Doc: run})
			must.NoError(t, err)
			m.Deliver()
			must.EqOp(t, index, load(t, l).Runs[RunID{"a", "r1"}].Run.Index)
		})
	}
}
