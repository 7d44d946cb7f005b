// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a Store in this process, for tests and for replaying traces. It keeps Consul's rules, and can be told to
// lose requests and answers, to end sessions and to go back to an earlier state.
type Memory struct {
	mu       sync.Mutex
	index    uint64
	entries  map[string]Entry
	removed  map[string]uint64 // index of the deletion
	sessions map[string]memorySession
	checks   map[string]memoryCheck
	created  int           // sessions so far, to name them
	changed  chan struct{} // closed at the next change
	setBack  uint64        // how often SetBack was called, so that watches end
	fault    func(Call) Fault
	delayed  [][]Op
}

type memorySession struct {
	spec  SessionSpec
	timer *time.Timer // nil: no limit in time
}

type memoryCheck struct {
	passing bool
	timer   *time.Timer
}

// Fault is what becomes of one request.
type Fault int

// The faults. Late applies to transactions only: the caller is told that the outcome is unknown, and the transaction
// arrives when Deliver is called.
const (
	None   Fault = iota
	Refuse       // not done, and the caller knows
	Lose         // done, but the answer is lost
	Drop         // never done, and the caller does not know
	Late         // done at Deliver, and the caller does not know
)

// Call is one request, for deciding about its fault. Method is the Store method's name.
type Call struct {
	Method string
	Key    string // or prefix, session or check
	Ops    []Op
}

// NewMemory makes an empty store.
func NewMemory() *Memory {
	return &Memory{
		index:    1, // as in Consul, whose first entry is past what a watch of nothing reports
		entries:  map[string]Entry{},
		removed:  map[string]uint64{},
		sessions: map[string]memorySession{},
		checks:   map[string]memoryCheck{},
		changed:  make(chan struct{}),
	}
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (Entry, error) {
	entry, _, err := m.Watch(ctx, key, 0, 0)
	return entry, err
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix string) (Listing, error) {
	return m.WatchPrefix(ctx, prefix, 0, 0)
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, key string, after uint64, wait time.Duration) (Entry, uint64, error) {
	if err := m.broken(Call{Method: "Watch", Key: key}); err != nil {
		return Entry{}, 0, err
	}
	var entry Entry
	var found bool
	index, err := m.block(ctx, after, wait, func() uint64 {
		if entry, found = m.entries[key]; found {
			return entry.Index
		}
		return max(m.removed[key], 1)
	})
	switch {
	case err != nil:
		return Entry{}, 0, err
	case !found:
		return Entry{}, index, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	return cloneEntry(entry), index, nil
}

// WatchPrefix implements Store.
func (m *Memory) WatchPrefix(ctx context.Context, prefix string, after uint64, wait time.Duration) (Listing, error) {
	if err := m.broken(Call{Method: "WatchPrefix", Key: prefix}); err != nil {
		return Listing{}, err
	}
	var listing Listing
	_, err := m.block(ctx, after, wait, func() uint64 {
		listing = m.listLocked(prefix)
		return listing.Index
	})
	return listing, err
}

func (m *Memory) listLocked(prefix string) Listing {
	listing := Listing{Index: 1}
	for key, entry := range m.entries {
		if strings.HasPrefix(key, prefix) {
			listing.Entries = append(listing.Entries, cloneEntry(entry))
			listing.Index = max(listing.Index, entry.Index)
		}
	}
	for key, index := range m.removed {
		if strings.HasPrefix(key, prefix) {
			listing.Index = max(listing.Index, index)
		}
	}
	slices.SortFunc(listing.Entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return listing
}

// block calls look under the lock until the index that it returns is past after, wait is over, or the store was set
// back.
func (m *Memory) block(ctx context.Context, after uint64, wait time.Duration, look func() uint64) (uint64, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for start, over := m.setBack, wait <= 0; ; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if index := look(); index > after || over || m.setBack != start {
			return index, nil
		}
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
			over = true
		}
		m.mu.Lock()
	}
}

// Txn implements Store.
func (m *Memory) Txn(ctx context.Context, ops []Op) ([]Entry, error) {
	if err := checkSize(ops); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lost := fmt.Errorf("transaction: answer lost: %w", ErrUnknownOutcome)
	fault := m.faultOf(Call{Method: "Txn", Key: firstKey(ops), Ops: ops})
	m.mu.Lock()
	defer m.mu.Unlock()
	switch fault {
	case Refuse:
		return nil, fmt.Errorf("transaction: %w", errRefused)
	case Drop:
		return nil, lost
	case Late:
		m.delayed = append(m.delayed, cloneOps(ops))
		return nil, lost
	case Lose:
		_, _ = m.applyLocked(ops) // whether it worked is what the caller can't know
		return nil, lost
	default:
		return m.applyLocked(ops)
	}
}

func firstKey(ops []Op) string {
	if len(ops) == 0 {
		return ""
	}
	return ops[0].Key
}

// applyLocked works on a copy, so that a failing operation leaves nothing behind. All changes get one index.
func (m *Memory) applyLocked(ops []Op) ([]Entry, error) {
	t := memoryTxn{Memory: m, index: m.index + 1, written: map[string]*Entry{}}
	var conflict ConflictError
	var changed []Entry
	for i, op := range ops {
		entry, why := t.apply(op)
		if why != "" {
			conflict.Ops = append(conflict.Ops, OpError{Op: i, Verb: op.Verb, Key: op.Key, Why: why})
		} else if entry != nil {
			changed = append(changed, Entry{Key: entry.Key, Index: entry.Index, Session: entry.Session})
		}
	}
	if len(conflict.Ops) > 0 {
		return nil, &conflict
	}
	if len(t.written) > 0 {
		m.commitLocked(t.written)
	}
	return changed, nil
}

// commitLocked stores the new entries (nil: deleted) at the next index and wakes the watches.
func (m *Memory) commitLocked(written map[string]*Entry) {
	m.index++
	for key, entry := range written {
		if entry == nil {
			delete(m.entries, key)
			m.removed[key] = m.index
			continue
		}
		m.entries[key] = *entry
		delete(m.removed, key)
	}
	m.wakeLocked()
}

func (m *Memory) wakeLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// memoryTxn is a transaction under way.
type memoryTxn struct {
	*Memory
	index   uint64
	written map[string]*Entry // nil: deleted
}

func (t memoryTxn) lookup(key string) (Entry, bool) {
	if entry, ok := t.written[key]; ok {
		if entry == nil {
			return Entry{}, false
		}
		return *entry, true
	}
	entry, ok := t.entries[key]
	return entry, ok
}

// apply does one operation; why is empty if it held.
func (t memoryTxn) apply(op Op) (entry *Entry, why string) {
	old, exists := t.lookup(op.Key)
	if why := refusal(op, old, exists); why != "" {
		return nil, why
	}
	switch op.Verb {
	case Set, CAS:
		return t.put(op, old, old.Session), ""
	case Lock:
		if _, ok := t.sessions[op.Session]; !ok {
			return nil, fmt.Sprintf("no session %q", op.Session)
		}
		return t.put(op, old, op.Session), ""
	case Unlock:
		return t.put(op, old, ""), ""
	case Delete, DeleteCAS:
		if exists {
			t.written[op.Key] = nil
		}
	case DeleteTree:
		for key := range t.entries {
			if strings.HasPrefix(key, op.Key) {
				t.written[key] = nil
			}
		}
		for key := range t.written {
			if strings.HasPrefix(key, op.Key) {
				t.written[key] = nil
			}
		}
	default: // the checks change nothing
	}
	return nil, ""
}

// put sets an entry; one that would be the same keeps its index, as in Consul.
func (t memoryTxn) put(op Op, old Entry, session string) *Entry {
	if old.Index > 0 && old.Session == session && bytes.Equal(old.Value, op.Value) {
		return &old
	}
	entry := &Entry{Key: op.Key, Value: bytes.Clone(op.Value), Index: t.index, Session: session}
	t.written[op.Key] = entry
	return entry
}

// refusal says why an operation does not hold for a key as it is; empty: it holds.
func refusal(op Op, old Entry, exists bool) string {
	switch op.Verb {
	case Set, Delete, DeleteTree:
		return ""
	case CAS, DeleteCAS, CheckIndex:
		if op.Verb == CheckIndex && !exists {
			return "the key does not exist"
		}
		if op.Verb == DeleteCAS && !exists {
			return "" // as Consul does
		}
		if old.Index != op.Index {
			return fmt.Sprintf("index is %d, not %d", old.Index, op.Index)
		}
	case CheckNotExists:
		if exists {
			return "the key exists"
		}
	case CheckSession, Unlock:
		if !exists || old.Session != op.Session || op.Session == "" {
			return fmt.Sprintf("held by session %q, not %q", old.Session, op.Session)
		}
	case Lock:
		if old.Session != "" && old.Session != op.Session {
			return fmt.Sprintf("held by session %q", old.Session)
		}
	default:
		return fmt.Sprintf("unknown verb %q", op.Verb)
	}
	return ""
}

func cloneEntry(e Entry) Entry {
	e.Value = bytes.Clone(e.Value)
	return e
}

func cloneOps(ops []Op) []Op {
	ops = slices.Clone(ops)
	for i := range ops {
		ops[i].Value = bytes.Clone(ops[i].Value)
	}
	return ops
}
