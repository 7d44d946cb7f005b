// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"errors"
	"fmt"
	"maps"
)

// errRefused is what a request with the fault Refuse gets.
var errRefused = errors.New("the store can't be reached")

// Inject decides about every later request's fault; nil ends it. It is called without any lock held.
func (m *Memory) Inject(fault func(Call) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// Deliver lets the transactions arrive that were Late, in their order, and returns what became of each.
func (m *Memory) Deliver() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := make([]error, 0, len(m.delayed))
	for _, ops := range m.delayed {
		_, err := m.applyLocked(ops)
		errs = append(errs, err)
	}
	m.delayed = nil
	return errs
}

// Saved is the content of a store at one moment, as a snapshot would hold it.
type Saved struct {
	index    uint64
	entries  map[string]Entry
	removed  map[string]uint64
	sessions map[string]memorySession
}

// Save takes a snapshot.
func (m *Memory) Save() Saved {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Saved{
		index: m.index, entries: maps.Clone(m.entries),
		removed: maps.Clone(m.removed), sessions: maps.Clone(m.sessions),
	}
}

// SetBack puts the store back to a snapshot, with its indexes and sessions, and wakes all watches. The zero Saved makes
// it empty, as if it had been lost.
func (m *Memory) SetBack(to Saved) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index = max(m.index, to.index) // a restore is an entry of the log itself, so that no index is given twice
	m.entries, m.removed, m.sessions = map[string]Entry{}, map[string]uint64{}, map[string]memorySession{}
	maps.Copy(m.entries, to.entries)
	maps.Copy(m.removed, to.removed)
	maps.Copy(m.sessions, to.sessions)
	m.setBack++
	m.wakeLocked()
}

func (m *Memory) faultOf(call Call) Fault {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if fault == nil {
		return None
	}
	return fault(call)
}

// broken is the fault of a request that is no transaction: whatever is injected, it fails.
func (m *Memory) broken(call Call) error {
	if m.faultOf(call) == None {
		return nil
	}
	return fmt.Errorf("%s %s: %w", call.Method, call.Key, errRefused)
}
