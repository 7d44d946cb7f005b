// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// PutMember writes what a member's driver says about it; that driver is the only writer. It takes the member's slot to
// do so, open or closing: *SlotError when it is gone, so that a late driver never brings a run back to life.
func (l *Ledger) PutMember(ctx context.Context, gang, reservation string, m Member) error {
	key := l.keys.Member(gang, reservation, m.Rank)
	for {
		guard, err := l.slotGuard(ctx, m.Node, SlotID{Reservation: reservation, Rank: m.Rank})
		if err != nil {
			return err
		}
		_, err = write(ctx, l.store, key, m, guard)
		if err == nil {
			return nil
		}
		if !retry(ctx, err) {
			return fmt.Errorf("writing member %d of gang %s: %w", m.Rank, gang, err)
		}
	}
}

// slotGuard is the condition that a node's table is still the one in which a slot was found.
func (l *Ledger) slotGuard(ctx context.Context, node string, id SlotID) (Op, error) {
	table, _, err := l.readSlot(ctx, node, id)
	return Op{Verb: CheckIndex, Key: l.keys.Slots(node), Index: table.Index}, err
}

// PutRun writes a run for rank 0's driver, if the run is still at r.Index (0: does not exist) and the slot of rank 0 is
// still there (*SlotError), and returns its new index. ErrConflict: somebody else has written it.
func (l *Ledger) PutRun(ctx context.Context, gang, reservation, node string, rank0 int, r Versioned[Run]) (uint64, error) {
	key := l.keys.Run(gang, reservation)
	for {
		guard, err := l.slotGuard(ctx, node, SlotID{Reservation: reservation, Rank: rank0})
		if err != nil {
			return 0, err
		}
		changed, err := l.store.Txn(ctx, []Op{{Verb: CAS, Key: key, Value: encode(r.Doc), Index: r.Index}, guard})
		if err == nil {
			return changed[0].Index, nil
		}
		if !guardFailed(err, []Op{guard}) && !errors.Is(err, ErrUnknownOutcome) {
			return 0, fmt.Errorf("writing the run of gang %s: %w", gang, err)
		}
		// An answer was lost, or the table moved for another gang: see what is there before the next try.
		there, readErr := read[Run](ctx, l.store, key)
		switch {
		case readErr != nil && !errors.Is(readErr, ErrNotFound):
			return 0, readErr
		case there.Index != r.Index && sameRun(there.Doc, r.Doc):
			return there.Index, nil
		case there.Index != r.Index:
			return 0, fmt.Errorf("writing the run of gang %s: %w", gang, ErrConflict)
		case !retry(ctx, err):
			return 0, fmt.Errorf("writing the run of gang %s: %w", gang, err)
		}
	}
}

func sameRun(a, b Run) bool {
	return string(encode(a)) == string(encode(b))
}

// WatchRun waits until a run has changed after an index, or wait is over, and reads it then. ErrNotFound, with the index
// to go on from, until rank 0 has written it.
func (l *Ledger) WatchRun(ctx context.Context, gang, reservation string, after uint64, wait time.Duration) (Versioned[Run], error) {
	return watch[Run](ctx, l.store, l.keys.Run(gang, reservation), after, wait)
}

// WatchMembers waits until a run's members have changed after an index, or wait is over, and reads them by rank, with
// the index to go on from.
func (l *Ledger) WatchMembers(ctx context.Context, gang, reservation string, after uint64, wait time.Duration) (map[int]Versioned[Member], uint64, error) {
	prefix := l.keys.Members(gang, reservation)
	listing, err := l.store.WatchPrefix(ctx, prefix, after, wait)
	if err != nil {
		return nil, 0, err
	}
	members := make(map[int]Versioned[Member], len(listing.Entries))
	for _, entry := range listing.Entries {
		addMember(members, strings.TrimPrefix(entry.Key, prefix), entry)
	}
	return members, listing.Index, nil
}
