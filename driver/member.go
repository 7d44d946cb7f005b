// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/placer/ledger"
)

// member is this task's document in the ledger. Changes are kept on disk at once and written to the ledger in order, the
// latest overtaking those before it, for as long as an outage lasts; nobody waits for them.
type member struct {
	seat    gang.Seat
	ledger  gang.Ledger
	path    string
	logger  hclog.Logger
	trouble func(error)

	mu      sync.Mutex // protects what follows
	doc     ledger.Member
	changes int
	written int
	gone    bool          // the slot is not in the ledger, so nothing can be written
	wake    chan struct{} // closed and replaced at each change of the above

	silent chan struct{} // closed when nothing more will be written
}

// newMember starts from what an earlier process of the plugin wrote, if there was one.
func newMember(t *task) *member {
	m := &member{
		seat: t.seat, ledger: t.ledger, path: filepath.Join(t.dir, memberFile), logger: t.logger,
		trouble: t.trouble.of("writing this member's state"), wake: make(chan struct{}), silent: make(chan struct{}),
	}
	if t.before != nil {
		m.doc, m.changes = *t.before, 1
		return m
	}
	m.doc = ledger.Member{
		Version: ledger.Version, Rank: t.seat.Rank, Generation: 1, Allocation: t.seat.Allocation, Node: t.seat.Node, Address: t.seat.Address,
	}
	return m
}

// update changes the document.
func (m *member) update(change func(*ledger.Member)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.doc)
	m.changes++
	if err := save(m.path, m.doc); err != nil {
		m.logger.Error("the member's state is not on disk", "error", err)
	}
	m.wakeLocked()
}

// arrive enters a generation.
func (m *member) arrive(generation int) {
	m.update(func(doc *ledger.Member) {
		doc.State, doc.Generation = ledger.MemberArrived, generation
		doc.Started, doc.Ended, doc.ExitCode, doc.Why = nil, nil, nil, ""
	})
}

// again writes the document once more: the ledger may have lost it.
func (m *member) again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes++
	m.wakeLocked()
}

// current is the document as it is now.
func (m *member) current() ledger.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.doc
}

func (m *member) wakeLocked() {
	close(m.wake)
	m.wake = make(chan struct{})
}

// write keeps the ledger up to date until ctx ends. It goes on trying when the slot is gone, as the ledger may have been
// lost and come back; flush does not wait for that.
func (m *member) write(ctx context.Context) {
	defer close(m.silent)
	var retry gang.Retry
	for {
		m.mu.Lock()
		doc, change, wake, idle := m.doc, m.changes, m.wake, m.written == m.changes
		m.mu.Unlock()
		if idle {
			select {
			case <-ctx.Done():
				return
			case <-wake:
			}
			continue
		}
		err := m.ledger.PutMember(ctx, m.seat.Gang, m.seat.Reservation, doc)
		m.trouble(err)
		m.settle(change, err)
		if err == nil {
			retry.Reset()
		} else if retry.Wait(ctx) != nil {
			return
		}
	}
}

func (m *member) settle(change int, err error) {
	var gone *ledger.SlotError
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone = errors.As(err, &gone); err == nil {
		m.written = change
	}
	m.wakeLocked()
}

// flush returns when the ledger has the latest document, or says that the slot is gone.
func (m *member) flush(ctx context.Context) (gone bool, err error) {
	for {
		m.mu.Lock()
		done, gone, wake := m.written == m.changes, m.gone, m.wake
		m.mu.Unlock()
		if done || gone {
			return !done, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-wake:
		}
	}
}
