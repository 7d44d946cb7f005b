// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/placer/ledger"
)

func member(rank int, state ledger.MemberState) ledger.Member {
	return ledger.Member{Version: ledger.Version, Rank: rank, Generation: 1, Node: "n" + strconv.Itoa(rank), State: state}
}

func members(states ...ledger.MemberState) map[int]ledger.Member {
	all := map[int]ledger.Member{}
	for rank, state := range states {
		if state != "" {
			all[rank] = member(rank, state)
		}
	}
	return all
}

func TestNext(t *testing.T) {
	const (
		absent    = ledger.MemberState("")
		arrived   = ledger.MemberArrived
		running   = ledger.MemberRunning
		succeeded = ledger.MemberSucceeded
		failed    = ledger.MemberFailed
		stopped   = ledger.MemberStopped
		leaving   = ledger.MemberLeaving
	)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	is := func(phase ledger.RunPhase) ledger.Run { return ledger.Run{Version: 1, Generation: 1, Phase: phase} }
	second := func(members map[int]ledger.Member, ranks ...int) map[int]ledger.Member {
		for _, rank := range ranks {
			m := members[rank]
			m.Generation = 2
			members[rank] = m
		}
		return members
	}
	gathersAgain := ledger.Run{Version: 1, Generation: 2, Phase: ledger.RunGathering, Missing: []int{0, 1}}
	cases := map[string]struct {
		run     ledger.Run
		members map[int]ledger.Member
		want    ledger.RunPhase
		missing []int
		why     string
		orderly bool
		again   bool // it is the second generation
		same    bool
	}{
		"nobody has arrived":                  {members: members(absent, absent), want: ledger.RunGathering, missing: []int{0, 1}},
		"one has arrived":                     {members: members(arrived, absent), want: ledger.RunGathering, missing: []int{1}},
		"all have":                            {members: members(arrived, arrived), want: ledger.RunRunning},
		"a gang of one":                       {members: members(arrived), want: ledger.RunRunning},
		"some have finished":                  {run: is(ledger.RunRunning), members: members(succeeded, running), want: ledger.RunRunning, same: true},
		"all have finished":                   {run: is(ledger.RunRunning), members: members(succeeded, succeeded), want: ledger.RunSucceeded},
		"one failed":                          {run: is(ledger.RunRunning), members: members(succeeded, failed), want: ledger.RunFailed, why: "rank 1 on node n1 failed"},
		"one failed while others arrive":      {members: members(arrived, failed, absent), want: ledger.RunFailed, why: "rank 1 on node n1 failed"},
		"one was stopped":                     {run: is(ledger.RunRunning), members: members(stopped, running), want: ledger.RunFailed, why: "rank 0 on node n0 was stopped", orderly: true},
		"a failure goes before a stop":        {run: is(ledger.RunRunning), members: members(stopped, failed), want: ledger.RunFailed, why: "rank 1 on node n1 failed"},
		"a document is lost in a running run": {run: is(ledger.RunRunning), members: members(absent, running), want: ledger.RunRunning, same: true},
		"succeeded stays so":                  {run: is(ledger.RunSucceeded), members: members(succeeded, failed), want: ledger.RunSucceeded, same: true},
		"failed stays so":                     {run: is(ledger.RunFailed), members: members(succeeded, succeeded), want: ledger.RunFailed, same: true},
		"one leaves and may come back": {
			run: is(ledger.RunRunning), members: members(running, leaving), want: ledger.RunGathering, missing: []int{0, 1}, again: true,
			why: "rank 1 on node n1 was told to end by Nomad, which may start it again", orderly: true,
		},
		"one leaves while another has finished": {
			run: is(ledger.RunRunning), members: members(succeeded, leaving), want: ledger.RunGathering, missing: []int{0, 1}, again: true,
			why: "rank 1 on node n1 was told to end by Nomad, which may start it again", orderly: true,
		},
		"one has come back, and nobody had heard that it left": {
			run: is(ledger.RunRunning), members: second(members(running, arrived), 1), want: ledger.RunGathering, missing: []int{0}, again: true,
			why: "rank 1 on node n1 was started again by Nomad", orderly: true,
		},
		"another has ended its process": {
			run: gathersAgain, members: second(members(arrived, leaving), 0), want: ledger.RunGathering, missing: []int{1}, again: true,
		},
		"all have come back":                {run: gathersAgain, members: second(members(arrived, arrived), 0, 1), want: ledger.RunRunning, again: true},
		"all have, and nobody had heard":    {run: is(ledger.RunRunning), members: second(members(arrived, arrived), 0, 1), want: ledger.RunRunning, again: true, why: "rank 0 on node n0 was started again by Nomad", orderly: true},
		"one failed on its way":             {run: gathersAgain, members: second(members(arrived, failed), 0), want: ledger.RunFailed, again: true, why: "rank 1 on node n1 failed"},
		"one does not come back":            {run: gathersAgain, members: second(members(arrived, stopped), 0), want: ledger.RunFailed, again: true, why: "rank 1 on node n1 was stopped", orderly: true},
		"one left in an earlier generation": {run: gathersAgain, members: members(leaving, leaving), want: ledger.RunGathering, missing: []int{0, 1}, again: true, same: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			size := 0
			for rank := range 3 {
				if _, ok := c.members[rank]; ok || rank < 2 && name != "a gang of one" {
					size = rank + 1
				}
			}
			next, changed := Next(c.run, c.members, size, now)
			must.Eq(t, c.want, next.Phase)
			must.Eq(t, c.missing, next.Missing)
			must.Eq(t, c.why, next.Why)
			must.Eq(t, c.orderly, next.Orderly)
			must.Eq(t, c.again, next.Generation == 2)
			must.Eq(t, !c.same, changed)
		})
	}
}

// However members' documents come and go, a run never leaves an end, never starts without all, and never succeeds unless
// all have.
func TestNextIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "size")
		states := []ledger.MemberState{"", ledger.MemberArrived, ledger.MemberRunning, ledger.MemberSucceeded, ledger.MemberFailed, ledger.MemberStopped}
		var run ledger.Run
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now := map[int]ledger.Member{}
			whole, all := true, true
			for rank := range size {
				state := rapid.SampledFrom(states).Draw(t, "state")
				if state != "" {
					now[rank] = member(rank, state)
				}
				whole = whole && state != ""
				all = all && state == ledger.MemberSucceeded
			}
			next, changed := Next(run, now, size, time.Time{})
			switch {
			case over(run) && changed:
				t.Fatalf("a run that is %s became %s", run.Phase, next.Phase)
			case !over(run) && next.Phase == ledger.RunSucceeded && !all:
				t.Fatal("a run succeeded without all of its members")
			case run.Phase != ledger.RunRunning && next.Phase == ledger.RunRunning && !whole:
				t.Fatal("a run started without all of its members")
			}
			again, changed := Next(next, now, size, time.Time{})
			if changed {
				t.Fatalf("the same members move a run twice: %v, then %v", next, again)
			}
			run = next
		}
	})
}

func TestHostsInRankOrder(t *testing.T) {
	placements := []ledger.Placement{
		{Node: "b", Address: "10.0.0.2", Group: "worker", Rank: 2, Members: 1, GPUs: 8},
		{Node: "a", Address: "10.0.0.1", Group: "worker", Rank: 0, Members: 2, GPUs: 4},
	}
	must.Eq(t, "10.0.0.1 slots=4 # rank=0 node=a group=worker\n"+
		"10.0.0.1 slots=4 # rank=1 node=a group=worker\n"+
		"10.0.0.2 slots=8 # rank=2 node=b group=worker\n", Hosts(placements))
	node, address := NodeOf(placements, 1)
	must.Eq(t, "a 10.0.0.1", node+" "+address)
	node, _ = NodeOf(placements, 3)
	must.Eq(t, "", node)
	seat := Seat{Gang: "g", Size: 20}
	must.Eq(t, "gang g waits for rank 2 on node b (20 members in all)", Waiting(seat, []int{2}, placements))
	must.Eq(t, "gang g waits for rank 3, rank 4, rank 5, rank 6 and 1 more (20 members in all)", Waiting(seat, []int{3, 4, 5, 6, 7}, placements))
}

func TestFreePorts(t *testing.T) {
	seat := Seat{Reservation: "r", Address: "127.0.0.1"}
	first, err := FreePorts(seat, 1, 0)
	must.NoError(t, err)
	again, err := FreePorts(seat, 1, first)
	must.NoError(t, err)
	must.Eq(t, first, again)
	taken, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+2)))
	must.NoError(t, err)
	defer taken.Close()
	other, err := FreePorts(seat, 1, first)
	must.NoError(t, err)
	must.NotEq(t, first, other)
	// An address of a translator in front of this machine can't be bound; the ports are checked all the same.
	_, err = FreePorts(Seat{Reservation: "r", Address: "192.0.2.1"}, 1, 0)
	must.NoError(t, err)
}

// fixture is a ledger with one slot per rank.
type fixture struct {
	store  *ledger.Memory
	ledger *ledger.Ledger
	size   int
}

func newFixture(t *testing.T, size int) *fixture {
	t.Helper()
	store := ledger.NewMemory()
	f := &fixture{store: store, ledger: ledger.New(store, "global"), size: size}
	for rank := range size {
		f.setSlot(t, rank, ledger.SlotOpen)
	}
	return f
}

func (f *fixture) seat(rank int) Seat {
	return Seat{Gang: "g", Reservation: "r", Node: "n" + strconv.Itoa(rank), Address: "127.0.0.1", Rank: rank, Size: f.size, Allocation: "a"}
}

func (f *fixture) setSlot(t *testing.T, rank int, state ledger.SlotState) {
	t.Helper()
	f.put(t, f.ledger.Keys().Slots(f.seat(rank).Node), ledger.SlotTable{Version: ledger.Version, Sequence: 1, Slots: []ledger.Slot{{
		Reservation: "r", Rank: rank, Size: f.size, State: state, Why: "preempted",
	}}})
}

func (f *fixture) put(t *testing.T, key string, doc any) {
	t.Helper()
	value, err := json.Marshal(doc)
	must.NoError(t, err)
	_, err = f.store.Txn(t.Context(), []ledger.Op{{Verb: ledger.Set, Key: key, Value: value}})
	must.NoError(t, err)
}

func (f *fixture) say(t *testing.T, rank int, state ledger.MemberState) {
	t.Helper()
	must.NoError(t, f.ledger.PutMember(t.Context(), "g", "r", member(rank, state)))
}

func (f *fixture) phase(t *testing.T) ledger.RunPhase {
	t.Helper()
	run, err := f.ledger.WatchRun(t.Context(), "g", "r", 0, 0)
	if errors.Is(err, ledger.ErrNotFound) {
		return ""
	}
	must.NoError(t, err)
	return run.Doc.Phase
}

func (f *fixture) becomes(t *testing.T, phase ledger.RunPhase) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return f.phase(t) == phase }), wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond)),
		must.Sprintf("the run becomes %s", phase))
}

func (f *fixture) lead(t *testing.T, ctx context.Context) *Leader { //nolint:revive // the test comes first
	t.Helper()
	leader := NewLeader(f.ledger, f.seat(0), func(int) (int, error) { return 20000, nil }, func(error) {})
	leader.Start(ctx)
	return leader
}

func ends(t *testing.T, leader *Leader) {
	t.Helper()
	select {
	case <-leader.Done():
	case <-time.After(time.Minute):
		t.Fatal("the leader does not end")
	}
}

func TestLeadToSuccess(t *testing.T) {
	f := newFixture(t, 2)
	leader := f.lead(t, t.Context())
	f.say(t, 0, ledger.MemberArrived)
	f.becomes(t, ledger.RunGathering)
	f.say(t, 1, ledger.MemberArrived)
	f.becomes(t, ledger.RunRunning)
	f.say(t, 0, ledger.MemberSucceeded)
	f.say(t, 1, ledger.MemberSucceeded)
	f.becomes(t, ledger.RunSucceeded)
	ends(t, leader)
}

func TestLeadGoesOnAfterARestart(t *testing.T) {
	f := newFixture(t, 2)
	first, stop := context.WithCancel(t.Context())
	f.lead(t, first)
	f.say(t, 0, ledger.MemberArrived)
	f.say(t, 1, ledger.MemberArrived)
	f.becomes(t, ledger.RunRunning)
	stop()
	leader := f.lead(t, t.Context())
	f.say(t, 1, ledger.MemberFailed)
	f.becomes(t, ledger.RunFailed)
	ends(t, leader)
}

func TestLeadThroughAnOutage(t *testing.T) {
	f := newFixture(t, 1)
	f.say(t, 0, ledger.MemberArrived)
	f.store.Inject(func(ledger.Call) ledger.Fault { return ledger.Refuse })
	troubled := make(chan error, 100)
	leader := NewLeader(f.ledger, f.seat(0), func(int) (int, error) { return 20000, nil }, func(err error) {
		if err != nil {
			troubled <- err
		}
	})
	leader.Start(t.Context())
	must.Error(t, <-troubled)
	f.store.Inject(func(call ledger.Call) ledger.Fault { // its answers are lost
		if call.Method == "Txn" {
			return ledger.Lose
		}
		return ledger.None
	})
	f.becomes(t, ledger.RunRunning)
	f.store.Inject(nil)
	f.say(t, 0, ledger.MemberSucceeded)
	f.becomes(t, ledger.RunSucceeded)
	ends(t, leader)
}

func TestLeadAborts(t *testing.T) {
	f := newFixture(t, 2)
	leader := f.lead(t, t.Context())
	f.say(t, 0, ledger.MemberArrived)
	leader.Abort("preempted")
	leader.Abort("again")
	f.becomes(t, ledger.RunFailed)
	ends(t, leader)
	late := f.lead(t, t.Context())
	late.Abort("too late")
	ends(t, late)
}

func TestPortsThatAreNotFoundFailTheRun(t *testing.T) {
	f := newFixture(t, 1)
	leader := NewLeader(f.ledger, f.seat(0), func(int) (int, error) { return 0, errors.New("no free ports") }, func(error) {})
	leader.Start(t.Context())
	f.say(t, 0, ledger.MemberArrived)
	f.becomes(t, ledger.RunFailed)
	ends(t, leader)
}

func TestFollowClosing(t *testing.T) {
	f := newFixture(t, 1)
	closing := FollowClosing(t.Context(), f.ledger, f.seat(0), func(error) {}, func() {})
	key := f.ledger.Keys().Slots("n0")
	for _, doc := range []any{
		ledger.SlotTable{Version: ledger.Version, Sequence: 2, Slots: []ledger.Slot{}}, // the slot is gone
		map[string]any{"version": 99}, // unreadable
	} {
		f.put(t, key, doc)
	}
	_, err := f.store.Txn(t.Context(), []ledger.Op{{Verb: ledger.Delete, Key: key}})
	must.NoError(t, err)
	f.store.SetBack(ledger.Saved{}) // the ledger is lost
	select {
	case why := <-closing:
		t.Fatalf("taken for a revocation: %s", why)
	default:
	}
	f.setSlot(t, 0, ledger.SlotClosing)
	select {
	case why := <-closing:
		must.Eq(t, "preempted", why)
	case <-time.After(time.Minute):
		t.Fatal("the closing was not seen")
	}
}

func TestFollowRunEndsWithItsContext(t *testing.T) {
	f := newFixture(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	runs := FollowRun(ctx, f.ledger, f.seat(0), func(error) {}, func() {})
	f.put(t, f.ledger.Keys().Run("g", "r"), ledger.Run{Version: ledger.Version, Phase: ledger.RunRunning})
	run := <-runs
	must.Eq(t, ledger.RunRunning, run.Phase)
	cancel()
	for range runs { // until it is closed
	}
}
