// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"
)

// candidateEnv makes this test binary a placer that leads until it is killed, on the Consul agent named.
const candidateEnv = "MUSTER_TEST_CANDIDATE"

func candidate(addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), agentLifetime)
	defer cancel()
	client, err := newClient(addr)
	if err == nil {
		l := New(NewConsul(client), os.Getenv(candidateEnv+"_REGION"))
		err = l.Campaign(ctx, CandidateSpec{Name: "child"}, func(ctx context.Context, _ Lease) error {
			fmt.Println("leading")
			<-ctx.Done()
			return nil
		})
	}
	fmt.Println(err)
}

// campaigner is one placer in a test.
type campaigner struct {
	leads chan Lease // gets each lease
	lost  chan time.Time
	ended chan error
	stop  context.CancelFunc
}

func campaign(ctx context.Context, l *Ledger, name string) campaigner {
	ctx, stop := context.WithCancel(ctx)
	c := campaigner{leads: make(chan Lease, 9), lost: make(chan time.Time, 9), ended: make(chan error, 1), stop: stop}
	go func() {
		c.ended <- l.Campaign(ctx, CandidateSpec{Name: name}, func(ctx context.Context, lease Lease) error {
			c.leads <- lease
			<-ctx.Done()
			c.lost <- time.Now()
			return nil
		})
	}()
	return c
}

// TestHandOver stops leaders cleanly, one after another: the next one leads at once, and nothing stays behind.
func TestHandOver(t *testing.T) {
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		first := campaign(t.Context(), l, "first")
		lease := <-first.leads
		leader, others := first, []campaigner{}
		for _, name := range []string{"second", "third", "fourth"} { // on the same agent
			others = append(others, campaign(t.Context(), l, name))
		}
		must.EqOp(t, "first", load(t, l).Leader)
		must.NoError(t, l.DeleteRefusal(t.Context(), lease, "default", "n1"))
		var took []time.Duration
		for len(others) > 0 {
			start := time.Now()
			leader.stop()
			must.NoError(t, <-leader.ended)
			leader, lease, others = nextLeader(t, others)
			took = append(took, time.Since(start))
			must.NoError(t, l.DeleteRefusal(t.Context(), lease, "default", "n2"))
			for _, other := range others {
				must.SliceEmpty(t, drain(other.leads), must.Sprint("two leaders"))
			}
		}
		t.Logf("hand-overs took %s", took)
		must.Less(t, time.Second, slices.Min(took), must.Sprint("as if each lease had to run out; a busy machine is not slow every time"))
		leader.stop()
		must.NoError(t, <-leader.ended)
		must.EqOp(t, "", load(t, l).Leader)
		if consul, ok := l.Store().(*Consul); ok {
			must.NoError(t, leftovers(consul.client))
		}
	})
}

// nextLeader waits until one of several candidates leads, and returns it, its lease and the others.
func nextLeader(t *testing.T, candidates []campaigner) (leader campaigner, lease Lease, others []campaigner) {
	t.Helper()
	eventually(t, func() error {
		for i, candidate := range candidates {
			if leases := drain(candidate.leads); len(leases) > 0 {
				leader, lease, others = candidate, leases[0], slices.Delete(slices.Clone(candidates), i, i+1)
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	return leader, lease, others
}

func drain(leases chan Lease) []Lease {
	select {
	case lease := <-leases:
		return []Lease{lease}
	default:
		return nil
	}
}

// leftovers says what candidates have left in Consul.
func leftovers(client *consulapi.Client) error {
	services, err := client.Agent().Services()
	if err != nil {
		return err
	}
	for id := range services {
		return fmt.Errorf("service %s is left", id)
	}
	sessions, _, err := client.Session().List(nil)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(sessions, func(s *consulapi.SessionEntry) bool { return len(s.ServiceChecks) > 0 }); i >= 0 {
		return fmt.Errorf("session %s is left", sessions[i].Name)
	}
	return nil
}

// TestKilledLeader kills a leading process: another leads when its check has failed, and nothing of the dead one stays.
func TestKilledLeader(t *testing.T) {
	client := consulClient(t)
	name := region(t)
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), candidateEnv+"="+agent.addr, candidateEnv+"_REGION="+name)
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := child.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	must.EqOp(t, "leading\n", line)
	l := New(NewConsul(client), name)
	must.EqOp(t, "child", load(t, l).Leader)
	next := campaign(t.Context(), l, "next")
	must.NoError(t, child.Process.Kill())
	start := time.Now()
	must.Error(t, child.Wait())
	<-next.leads
	took := time.Since(start)
	t.Logf("takeover took %s", took)
	must.Between(t, time.Second, took, 10*time.Second)
	next.stop()
	<-next.ended
	services, err := client.Agent().Services()
	must.NoError(t, err)
	for id := range services { // Consul removes it after a minute
		must.NoError(t, client.Agent().ServiceDeregister(id))
	}
}

// cutStore is a store behind a network that swallows everything once it is cut.
type cutStore struct {
	Store
	cut atomic.Bool
}

func (s *cutStore) hole(ctx context.Context) error {
	if !s.cut.Load() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *cutStore) Get(ctx context.Context, key string) (Entry, error) {
	if err := s.hole(ctx); err != nil {
		return Entry{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s *cutStore) PassCheck(ctx context.Context, check CheckSpec) error {
	if err := s.hole(ctx); err != nil {
		return err
	}
	return s.Store.PassCheck(ctx, check)
}

func (s *cutStore) DestroySession(ctx context.Context, id string) error {
	if err := s.hole(ctx); err != nil {
		return err
	}
	return s.Store.DestroySession(ctx, id)
}

func (s *cutStore) RemoveCheck(ctx context.Context, check CheckSpec) error {
	if err := s.hole(ctx); err != nil {
		return err
	}
	return s.Store.RemoveCheck(ctx, check)
}

// TestCutOffLeader cuts a leader off: it stops by its own clock before another can lead.
func TestCutOffLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		cut := &cutStore{Store: m}
		ctx, cancel := context.WithCancel(t.Context())
		old := campaign(ctx, New(cut, "global"), "old")
		<-old.leads
		next := campaign(ctx, New(m, "global"), "next")
		time.Sleep(10*time.Second + 300*time.Millisecond) // virtual
		cut.cut.Store(true)
		start := time.Now()
		<-next.leads
		took := time.Since(start)
		select {
		case lost := <-old.lost:
			must.LessEq(t, actFor, lost.Sub(start))
		default:
			t.Fatal("two leaders")
		}
		must.LessEq(t, LeaseTTL+10*time.Millisecond, took)
		cancel()
		<-old.ended
		<-next.ended
	})
}

// TestLostLease ends a leader's session under it: its context ends at the next renewal and it leads again later.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		placer := campaign(t.Context(), New(m, "global"), "placer")
		first := <-placer.leads
		time.Sleep(time.Minute + 100*time.Millisecond) // virtual
		must.EqOp(t, 0, len(placer.lost))
		m.ExpireSession(first.Session)
		start := time.Now()
		must.LessEq(t, renewEvery, (<-placer.lost).Sub(start))
		second := <-placer.leads
		must.NotEq(t, first.Session, second.Session)
		placer.stop()
		must.NoError(t, <-placer.ended)
	})
}

// TestOutage takes the store away before and while a placer leads: it comes back by itself.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		outage := func(Call) Fault { return Refuse }
		m.Inject(outage)
		placer := campaign(t.Context(), New(m, "global"), "placer")
		time.Sleep(10 * time.Second) // virtual
		must.EqOp(t, 0, len(placer.leads))
		m.Inject(nil)
		<-placer.leads
		m.Inject(outage)
		start := time.Now()
		must.LessEq(t, LeaseTTL, (<-placer.lost).Sub(start))
		m.Inject(nil)
		<-placer.leads
		placer.stop()
		must.NoError(t, <-placer.ended)
	})
}

// TestLeaderReturns hands over when the leader's work ends by itself.
func TestLeaderReturns(t *testing.T) {
	l := New(NewMemory(), "global")
	broken := errors.New("bad config")
	err := l.Campaign(t.Context(), CandidateSpec{Name: "placer"}, func(context.Context, Lease) error { return broken })
	must.ErrorIs(t, err, broken)
	must.EqOp(t, "", load(t, l).Leader)
}

// TestLockWithADeadSession: a candidate whose session has ended before it got the lock does not try on for ever.
func TestLockWithADeadSession(t *testing.T) {
	store := NewMemory()
	l := New(store, "global")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	session, err := store.CreateSession(ctx, SessionSpec{Name: "candidate"})
	must.NoError(t, err)
	must.NoError(t, store.DestroySession(ctx, session))
	won, err := l.lock(ctx, Lease{Session: session, Key: l.keys.Leader()}, CandidateSpec{Name: "late"})
	must.NoError(t, err)
	must.False(t, won)
}
