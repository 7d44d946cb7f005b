// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"
)

// TestStore is the contract of a Store. Everything else in this package relies on it.
func TestStore(t *testing.T) {
	cases := map[string]func(t *testing.T, s Store, root string){
		"a missing key is not found":                          testMissing,
		"names of any bytes come back as they were":           testNames,
		"a listing is in key order and knows no siblings":     testList,
		"a failing operation undoes the whole transaction":    testAtomic,
		"check-and-set compares the index":                    testCAS,
		"writing the same again changes nothing":              testSame,
		"checks hold or refuse":                               testChecks,
		"delete-tree takes what is below":                     testDeleteTree,
		"a lock is exclusive until its session ends":          testLock,
		"the end of a session can delete its keys":            testLockDelete,
		"unlocking frees the key and keeps the session":       testUnlock,
		"a dead session can't be renewed":                     testDeadSession,
		"a session ends with its check":                       testCheck,
		"a watch returns at a change and not before":          testWatch,
		"a watch of a missing key waits for it":               testWatchMissing,
		"a watch of a prefix sees additions and deletions":    testWatchPrefix,
		"a watch ends with its context":                       testWatchContext,
		"all keys of a transaction get one index":             testOneIndex,
		"128 operations fit and 129 do not":                   testOps,
		"a body of half a mebibyte is refused before sending": testBody,
		"a lock stops nobody who does not check it":           testSetThroughLock,
	}
	eachStore(t, func(t *testing.T, store Store) {
		t.Helper()
		for name, test := range cases {
			t.Run(name, func(t *testing.T) { test(t, store, NewKeys(region(t)).Root()) })
		}
	})
}

func put(t *testing.T, s Store, key, value string) Entry {
	t.Helper()
	changed, err := s.Txn(t.Context(), []Op{{Verb: Set, Key: key, Value: []byte(value)}})
	must.NoError(t, err)
	must.Len(t, 1, changed)
	must.EqOp(t, key, changed[0].Key)
	return changed[0]
}

func session(t *testing.T, s Store, spec SessionSpec) string {
	t.Helper()
	id, err := s.CreateSession(t.Context(), spec)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, s.DestroySession(context.Background(), id)) })
	return id
}

// refused asserts that a transaction fails because of the operation at a position.
func refused(t *testing.T, s Store, at int, ops ...Op) {
	t.Helper()
	_, err := s.Txn(t.Context(), ops)
	must.ErrorIs(t, err, ErrConflict)
	var conflict *ConflictError
	must.True(t, errors.As(err, &conflict))
	must.Len(t, 1, conflict.Ops, must.Sprint(err))
	must.EqOp(t, at, conflict.Ops[0].Op)
	must.EqOp(t, ops[at].Verb, conflict.Ops[0].Verb)
	must.EqOp(t, ops[at].Key, conflict.Ops[0].Key)
}

func held(t *testing.T, s Store, ops ...Op) {
	t.Helper()
	_, err := s.Txn(t.Context(), ops)
	must.NoError(t, err)
}

func testMissing(t *testing.T, s Store, root string) {
	t.Helper()
	_, err := s.Get(t.Context(), root+"nothing")
	must.ErrorIs(t, err, ErrNotFound)
	listing, err := s.List(t.Context(), root)
	must.NoError(t, err)
	must.Len(t, 0, listing.Entries)
	must.Positive(t, listing.Index)
}

func testNames(t *testing.T, s Store, root string) {
	t.Helper()
	keys := NewKeys(strings.TrimPrefix(root, "muster/"))
	for _, name := range []string{"a/b", "a%2Fb", "..", ".", "a b+c", "ü", "a?b#c", "a\\b", strings.Repeat("x", 200)} {
		key := keys.Refusal("default", name)
		written := put(t, s, key, name)
		entry, err := s.Get(t.Context(), key)
		must.NoError(t, err, must.Sprint(name))
		must.EqOp(t, name, string(entry.Value))
		must.EqOp(t, written.Index, entry.Index)
		held(t, s, Op{Verb: Delete, Key: key})
	}
}

func testList(t *testing.T, s Store, root string) {
	t.Helper()
	for _, key := range []string{"b/2", "b/1", "bb/1", "a"} {
		put(t, s, root+key, key)
	}
	listing, err := s.List(t.Context(), root+"b/")
	must.NoError(t, err)
	must.Len(t, 2, listing.Entries)
	must.EqOp(t, root+"b/1", listing.Entries[0].Key)
	must.EqOp(t, root+"b/2", listing.Entries[1].Key)
	must.EqOp(t, "b/1", string(listing.Entries[0].Value))
}

func testAtomic(t *testing.T, s Store, root string) {
	t.Helper()
	put(t, s, root+"old", "1")
	refused(t, s, 1,
		Op{Verb: Set, Key: root + "new", Value: []byte("2")},
		Op{Verb: CAS, Key: root + "old", Value: []byte("2")},
		Op{Verb: Delete, Key: root + "old"})
	_, err := s.Get(t.Context(), root+"new")
	must.ErrorIs(t, err, ErrNotFound)
	entry, err := s.Get(t.Context(), root+"old")
	must.NoError(t, err)
	must.EqOp(t, "1", string(entry.Value))
}

func testCAS(t *testing.T, s Store, root string) {
	t.Helper()
	key := root + "key"
	writes := 0
	cas := func(index uint64) Op {
		writes++
		return Op{Verb: CAS, Key: key, Value: []byte(strconv.Itoa(writes)), Index: index}
	}
	refused(t, s, 0, cas(7)) // missing
	held(t, s, cas(0))
	refused(t, s, 0, cas(0)) // exists
	entry, err := s.Get(t.Context(), key)
	must.NoError(t, err)
	refused(t, s, 0, cas(entry.Index+1))
	held(t, s, cas(entry.Index))
	refused(t, s, 0, cas(entry.Index)) // moved
	refused(t, s, 0, Op{Verb: DeleteCAS, Key: key, Index: entry.Index})
	entry, err = s.Get(t.Context(), key)
	must.NoError(t, err)
	held(t, s, Op{Verb: DeleteCAS, Key: key, Index: entry.Index})
	held(t, s, Op{Verb: DeleteCAS, Key: key, Index: entry.Index}, Op{Verb: Delete, Key: key}) // gone already
}

func testSame(t *testing.T, s Store, root string) {
	t.Helper()
	first := put(t, s, root+"key", "v")
	must.EqOp(t, first.Index, put(t, s, root+"key", "v").Index)
	must.Less(t, put(t, s, root+"key", "w").Index, first.Index)
	held(t, s, Op{Verb: CheckIndex, Key: root + "key", Index: put(t, s, root+"key", "w").Index})
}

func testChecks(t *testing.T, s Store, root string) {
	t.Helper()
	key := root + "key"
	refused(t, s, 0, Op{Verb: CheckIndex, Key: key, Index: 1})
	held(t, s, Op{Verb: CheckNotExists, Key: key}, Op{Verb: Set, Key: root + "other"})
	at := put(t, s, key, "v").Index
	held(t, s, Op{Verb: CheckIndex, Key: key, Index: at}, Op{Verb: Set, Key: root + "other"})
	refused(t, s, 0, Op{Verb: CheckIndex, Key: key, Index: at - 1})
	refused(t, s, 0, Op{Verb: CheckNotExists, Key: key})
	refused(t, s, 0, Op{Verb: CheckSession, Key: key, Session: "00000000-0000-0000-0000-000000000000"})
	refused(t, s, 0, Op{Verb: CheckSession, Key: root + "missing", Session: "00000000-0000-0000-0000-000000000000"})
}

func testDeleteTree(t *testing.T, s Store, root string) {
	t.Helper()
	for _, key := range []string{"run", "run/members/0", "run/members/1", "runaway/members/0"} {
		put(t, s, root+key, key)
	}
	held(t, s, Op{Verb: DeleteTree, Key: root + "run/"})
	listing, err := s.List(t.Context(), root)
	must.NoError(t, err)
	must.Len(t, 2, listing.Entries)
	must.EqOp(t, root+"run", listing.Entries[0].Key)
	must.EqOp(t, root+"runaway/members/0", listing.Entries[1].Key)
}

func testLock(t *testing.T, s Store, root string) {
	t.Helper()
	key := root + "lock"
	first, second := session(t, s, SessionSpec{Name: "first"}), session(t, s, SessionSpec{Name: "second"})
	lock := func(id string) Op { return Op{Verb: Lock, Key: key, Value: []byte(id), Session: id} }
	held(t, s, lock(first), Op{Verb: CheckSession, Key: key, Session: first})
	held(t, s, lock(first)) // again
	refused(t, s, 0, lock(second))
	refused(t, s, 0, Op{Verb: CheckSession, Key: key, Session: second})
	before, err := s.Get(t.Context(), key)
	must.NoError(t, err)
	must.EqOp(t, first, before.Session)
	must.NoError(t, s.DestroySession(t.Context(), first))
	must.NoError(t, s.DestroySession(t.Context(), first)) // has ended already
	after, err := s.Get(t.Context(), key)
	must.NoError(t, err)
	must.EqOp(t, "", after.Session)
	must.EqOp(t, first, string(after.Value), must.Sprint("the value stays"))
	must.Greater(t, before.Index, after.Index)
	refused(t, s, 0, Op{Verb: CheckSession, Key: key, Session: first})
	eventually(t, func() error { // the lock delay is over after 1 ms
		_, err := s.Txn(t.Context(), []Op{lock(second)})
		return err
	})
}

func testLockDelete(t *testing.T, s Store, root string) {
	t.Helper()
	id := session(t, s, SessionSpec{Name: "fleeting", Delete: true})
	held(t, s, Op{Verb: Lock, Key: root + "lock", Session: id})
	must.NoError(t, s.DestroySession(t.Context(), id))
	_, err := s.Get(t.Context(), root+"lock")
	must.ErrorIs(t, err, ErrNotFound)
}

func testUnlock(t *testing.T, s Store, root string) {
	t.Helper()
	key := root + "lock"
	first, second := session(t, s, SessionSpec{Name: "first"}), session(t, s, SessionSpec{Name: "second"})
	held(t, s, Op{Verb: Lock, Key: key, Session: first})
	refused(t, s, 0, Op{Verb: Unlock, Key: key, Session: second})
	held(t, s, Op{Verb: Unlock, Key: key, Session: first})
	held(t, s, Op{Verb: Lock, Key: key, Session: second})
	must.NoError(t, s.RenewSession(t.Context(), first))
}

func testDeadSession(t *testing.T, s Store, root string) {
	t.Helper()
	id := session(t, s, SessionSpec{Name: "dead", TTL: 10 * time.Second})
	must.NoError(t, s.RenewSession(t.Context(), id))
	must.NoError(t, s.DestroySession(t.Context(), id))
	must.ErrorIs(t, s.RenewSession(t.Context(), id), ErrNoSession)
	_, err := s.Txn(t.Context(), []Op{{Verb: Lock, Key: root + "lock", Session: id}})
	must.ErrorIs(t, err, ErrConflict)
}

func testCheck(t *testing.T, s Store, root string) {
	t.Helper()
	check := CheckSpec{ID: "check " + root, Service: "ledger-test", TTL: 2 * time.Second}
	must.NoError(t, s.RegisterCheck(t.Context(), check))
	t.Cleanup(func() { must.NoError(t, s.RemoveCheck(context.Background(), check)) })
	start := time.Now()
	must.NoError(t, s.PassCheck(t.Context(), check))
	id := session(t, s, SessionSpec{Name: "with check", Checks: []string{check.ID}})
	held(t, s, Op{Verb: Lock, Key: root + "lock", Session: id})
	eventually(t, func() error {
		entry, err := s.Get(t.Context(), root+"lock")
		if err == nil && entry.Session != "" {
			err = errors.New("still locked")
		}
		return err
	})
	must.GreaterEq(t, check.TTL, time.Since(start))
	must.NoError(t, s.RemoveCheck(t.Context(), check))
	must.NoError(t, s.RemoveCheck(t.Context(), check)) // is gone already
}

func testWatch(t *testing.T, s Store, root string) {
	t.Helper()
	key := root + "key"
	at := put(t, s, key, "1").Index
	entry, index, err := s.Watch(t.Context(), key, 0, time.Minute)
	must.NoError(t, err)
	must.EqOp(t, at, entry.Index)
	must.EqOp(t, at, index)
	start := time.Now()
	_, again, err := s.Watch(t.Context(), key, index, 100*time.Millisecond)
	must.NoError(t, err)
	must.EqOp(t, index, again)
	must.GreaterEq(t, 100*time.Millisecond, time.Since(start))
	seen := make(chan string, 1)
	go func() {
		entry, _, err := s.Watch(t.Context(), key, index, time.Minute)
		seen <- fmt.Sprint(string(entry.Value), err)
	}()
	put(t, s, key, "2")
	must.EqOp(t, "2<nil>", <-seen)
}

func testWatchMissing(t *testing.T, s Store, root string) {
	t.Helper()
	key := root + "key"
	_, index, err := s.Watch(t.Context(), key, 0, time.Minute)
	must.ErrorIs(t, err, ErrNotFound)
	must.Positive(t, index)
	seen := make(chan string, 1)
	go func() { // the neighbours of a missing key may wake the watch
		for {
			var entry Entry
			if entry, index, err = s.Watch(t.Context(), key, index, time.Minute); !errors.Is(err, ErrNotFound) {
				seen <- fmt.Sprint(string(entry.Value), err)
				return
			}
		}
	}()
	put(t, s, key, "1")
	must.EqOp(t, "1<nil>", <-seen)
	entry, index, err := s.Watch(t.Context(), key, 0, 0)
	must.NoError(t, err)
	must.EqOp(t, entry.Index, index)
	held(t, s, Op{Verb: Delete, Key: key})
	_, next, err := s.Watch(t.Context(), key, index, time.Minute)
	must.ErrorIs(t, err, ErrNotFound)
	must.Greater(t, index, next)
}

func testWatchPrefix(t *testing.T, s Store, root string) {
	t.Helper()
	put(t, s, root+"a/1", "1")
	index := func(after uint64) (uint64, int) {
		listing, err := s.WatchPrefix(t.Context(), root+"a/", after, time.Minute)
		must.NoError(t, err)
		return listing.Index, len(listing.Entries)
	}
	first, n := index(0)
	must.EqOp(t, 1, n)
	put(t, s, root+"a/2", "2")
	second, n := index(first)
	must.EqOp(t, 2, n)
	must.Greater(t, first, second)
	held(t, s, Op{Verb: Delete, Key: root + "a/2"})
	third, n := index(second)
	must.EqOp(t, 1, n)
	must.Greater(t, second, third)
	put(t, s, root+"b/1", "sibling")
	start := time.Now()
	listing, err := s.WatchPrefix(t.Context(), root+"a/", third, 50*time.Millisecond)
	must.NoError(t, err)
	must.EqOp(t, third, listing.Index)
	must.GreaterEq(t, 50*time.Millisecond, time.Since(start))
}

func testWatchContext(t *testing.T, s Store, root string) {
	t.Helper()
	at := put(t, s, root+"key", "1").Index
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := s.Watch(ctx, root+"key", at, time.Minute)
	must.ErrorIs(t, err, context.DeadlineExceeded)
}

func testOneIndex(t *testing.T, s Store, root string) {
	t.Helper()
	changed, err := s.Txn(t.Context(), []Op{
		{Verb: CheckNotExists, Key: root + "c"},
		{Verb: Set, Key: root + "b", Value: []byte("b")},
		{Verb: CAS, Key: root + "a", Value: []byte("a")},
	})
	must.NoError(t, err)
	must.Len(t, 2, changed)
	must.EqOp(t, root+"b", changed[0].Key)
	must.EqOp(t, changed[0].Index, changed[1].Index)
	listing, err := s.List(t.Context(), root)
	must.NoError(t, err)
	must.EqOp(t, changed[0].Index, listing.Index)
}

func testOps(t *testing.T, s Store, root string) {
	t.Helper()
	ops := make([]Op, 0, MaxOps+1)
	for i := range MaxOps {
		ops = append(ops, Op{Verb: CAS, Key: fmt.Sprint(root, i), Value: []byte("v")})
	}
	changed, err := s.Txn(t.Context(), ops)
	must.NoError(t, err)
	must.Len(t, MaxOps, changed)
	_, err = s.Txn(t.Context(), append(ops, Op{Verb: Set, Key: root + "one more"}))
	must.ErrorIs(t, err, ErrTooLarge)
	must.StrContains(t, err.Error(), "129 operations; the limit is 128")
}

func testBody(t *testing.T, s Store, root string) {
	t.Helper()
	value := bytes.Repeat([]byte("x"), MaxBodyBytes*3/4-2*opFrameBytes-len(root))
	held(t, s, Op{Verb: Set, Key: root + "large", Value: value})
	_, err := s.Txn(t.Context(), []Op{{Verb: Set, Key: root + "larger", Value: append(value, value...)}})
	must.ErrorIs(t, err, ErrTooLarge)
	must.StrContains(t, err.Error(), "the limit is 524288")
}

func testSetThroughLock(t *testing.T, s Store, root string) {
	t.Helper()
	key := root + "lock"
	id := session(t, s, SessionSpec{Name: "holder"})
	held(t, s, Op{Verb: Lock, Key: key, Value: []byte("mine"), Session: id})
	put(t, s, key, "not mine")
	held(t, s, Op{Verb: CheckSession, Key: key, Session: id}, Op{Verb: Set, Key: root + "other"})
}

// eventually polls until a condition holds.
func eventually(tb testing.TB, condition func() error) {
	tb.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); pause(tb.Context(), 5*time.Millisecond) {
		if err = condition(); err == nil {
			return
		}
	}
	must.NoError(tb, err)
}

// TestOutcome says after which failures a transaction may have been done all the same.
func TestOutcome(t *testing.T) {
	answer := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }
	}
	cases := map[string]struct {
		handler http.HandlerFunc
		want    error
		unknown bool
	}{
		"servers have no leader":        {answer(500, "rpc error making call: No cluster leader"), nil, true},
		"leadership lost while writing": {answer(500, "leadership lost while committing log"), nil, true},
		"a proxy gives up":              {answer(504, "gateway timeout"), nil, true},
		"connection breaks": {func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, nil, true},
		"a condition fails":  {answer(409, `{"Results":null,"Errors":[{"OpIndex":0,"What":"stale"}]}`), ErrConflict, false},
		"too large":          {answer(413, "too large"), ErrTooLarge, false},
		"rights are missing": {answer(403, "Permission denied"), ErrForbidden, false},
		"one right is missing": {
			answer(409, `{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied: token lacks permission 'key:write'"}]}`), ErrForbidden, false,
		},
		"too many requests": {answer(429, "slow down"), nil, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.handler)
			defer server.Close()
			err := sendTo(t, server.Listener.Addr().String())
			must.Error(t, err)
			must.EqOp(t, c.unknown, errors.Is(err, ErrUnknownOutcome), must.Sprint(err))
			if c.want != nil {
				must.ErrorIs(t, err, c.want)
				must.EqOp(t, errors.Is(c.want, ErrConflict), errors.Is(err, ErrConflict))
			}
		})
	}
	t.Run("never sent", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must.NoError(t, err)
		addr := listener.Addr().String()
		must.NoError(t, listener.Close())
		must.False(t, errors.Is(sendTo(t, addr), ErrUnknownOutcome))
	})
}

func sendTo(t *testing.T, addr string) error {
	t.Helper()
	client, err := consulapi.NewClient(&consulapi.Config{Address: addr})
	must.NoError(t, err)
	_, err = NewConsul(client).Txn(t.Context(), []Op{{Verb: Set, Key: "key"}})
	return err
}

// TestMemoryFaults says what the faults of Memory do, as other packages' tests rely on them.
func TestMemoryFaults(t *testing.T) {
	cases := map[string]struct {
		fault     Fault
		unknown   bool
		at        bool // done at once
		delivered bool // done after Deliver
	}{
		"refused": {Refuse, false, false, false},
		"lost":    {Lose, true, true, true},
		"dropped": {Drop, true, false, false},
		"late":    {Late, true, false, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := NewMemory()
			there := func() bool {
				_, err := m.Get(t.Context(), "key")
				return err == nil
			}
			m.Inject(func(Call) Fault { return c.fault })
			_, err := m.Txn(t.Context(), []Op{{Verb: Set, Key: "key"}})
			must.EqOp(t, c.unknown, errors.Is(err, ErrUnknownOutcome))
			must.Error(t, err)
			_, err = m.Get(t.Context(), "key")
			must.ErrorIs(t, err, errRefused)
			m.Inject(nil)
			must.EqOp(t, c.at, there())
			m.Deliver()
			must.EqOp(t, c.delivered, there())
		})
	}
}
