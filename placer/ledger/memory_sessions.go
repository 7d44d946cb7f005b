// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// RegisterCheck implements Store.
func (m *Memory) RegisterCheck(_ context.Context, spec CheckSpec) error {
	if err := m.broken(Call{Method: "RegisterCheck", Key: spec.ID}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checks[spec.ID] = memoryCheck{passing: true, timer: time.AfterFunc(spec.TTL, func() { m.FailCheck(spec.ID) })}
	return nil
}

// PassCheck implements Store.
func (m *Memory) PassCheck(_ context.Context, spec CheckSpec) error {
	if err := m.broken(Call{Method: "PassCheck", Key: spec.ID}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	check, ok := m.checks[spec.ID]
	if !ok {
		return fmt.Errorf("check %s: %w", spec.ID, ErrNotFound)
	}
	check.timer.Reset(spec.TTL)
	check.passing = true
	m.checks[spec.ID] = check
	return nil
}

// RemoveCheck implements Store.
func (m *Memory) RemoveCheck(_ context.Context, spec CheckSpec) error {
	if err := m.broken(Call{Method: "RemoveCheck", Key: spec.ID}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if check, ok := m.checks[spec.ID]; ok {
		check.timer.Stop()
		delete(m.checks, spec.ID)
		m.endSessionsLocked(func(s SessionSpec) bool { return slices.Contains(s.Checks, spec.ID) })
	}
	return nil
}

// FailCheck makes a check fail, which ends the sessions that rest on it, as the death of its process would.
func (m *Memory) FailCheck(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	check, ok := m.checks[id]
	if !ok {
		return
	}
	check.passing = false
	m.checks[id] = check
	m.endSessionsLocked(func(s SessionSpec) bool { return slices.Contains(s.Checks, id) })
}

// CreateSession implements Store.
func (m *Memory) CreateSession(_ context.Context, spec SessionSpec) (string, error) {
	if err := m.broken(Call{Method: "CreateSession", Key: spec.Name}); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range spec.Checks {
		if !m.checks[id].passing {
			return "", fmt.Errorf("session %s: check %s is missing or failing", spec.Name, id)
		}
	}
	m.created++
	id := fmt.Sprintf("session-%d", m.created)
	session := memorySession{spec: spec}
	if spec.TTL > 0 {
		session.timer = time.AfterFunc(2*spec.TTL, func() { m.ExpireSession(id) })
	}
	m.sessions[id] = session
	return id, nil
}

// RenewSession implements Store.
func (m *Memory) RenewSession(_ context.Context, id string) error {
	if err := m.broken(Call{Method: "RenewSession", Key: id}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	session, ok := m.sessions[id]
	if !ok {
		return fmt.Errorf("session %s: %w", id, ErrNoSession)
	}
	if session.timer != nil {
		session.timer.Reset(2 * session.spec.TTL)
	}
	return nil
}

// DestroySession implements Store.
func (m *Memory) DestroySession(_ context.Context, id string) error {
	if err := m.broken(Call{Method: "DestroySession", Key: id}); err != nil {
		return err
	}
	m.ExpireSession(id)
	return nil
}

// ExpireSession ends a session, as the death of its holder would.
func (m *Memory) ExpireSession(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endSessionLocked(id)
}

func (m *Memory) endSessionsLocked(match func(SessionSpec) bool) {
	for _, id := range slices.Sorted(maps.Keys(m.sessions)) {
		if match(m.sessions[id].spec) {
			m.endSessionLocked(id)
		}
	}
}

func (m *Memory) endSessionLocked(id string) {
	session, ok := m.sessions[id]
	if !ok {
		return
	}
	if session.timer != nil {
		session.timer.Stop()
	}
	delete(m.sessions, id)
	written := map[string]*Entry{}
	for key, entry := range m.entries {
		if entry.Session != id {
			continue
		}
		if session.spec.Delete {
			written[key] = nil
			continue
		}
		entry.Session, entry.Index = "", m.index+1
		written[key] = &entry
	}
	if len(written) > 0 {
		m.commitLocked(written)
	}
}
