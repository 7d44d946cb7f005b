// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// orderWait is how long one blocking read of an order waits at most.
const orderWait = time.Minute

// PutOrder hands an order to the leader, if none is pending for the gang (*OrderPendingError); the answer to an earlier
// one makes room. It returns the order as it was written, with an ID of its own.
func (l *Ledger) PutOrder(ctx context.Context, o Order) (Versioned[Order], error) {
	o.Version, o.ID, o.Answer = Version, rand.Text(), nil
	key := l.keys.Order(o.Gang)
	for {
		there, err := read[Order](ctx, l.store, key)
		switch {
		case err != nil && !errors.Is(err, ErrNotFound):
			return Versioned[Order]{}, err
		case err == nil && there.Doc.ID == o.ID: // an answer was lost, and it had been written all the same
			return there, nil
		case err == nil && there.Doc.Answer == nil:
			return Versioned[Order]{}, &OrderPendingError{Order: there.Doc}
		}
		changed, err := l.store.Txn(ctx, []Op{{Verb: CAS, Key: key, Value: encode(o), Index: there.Index}})
		if err == nil {
			return Versioned[Order]{Doc: o, Index: changed[0].Index}, nil
		}
		if !retry(ctx, err) {
			return Versioned[Order]{}, fmt.Errorf("writing the order for gang %s: %w", o.Gang, err)
		}
	}
}

// AwaitOrder waits until the leader has carried an order out (nil) or has written why it does not.
func (l *Ledger) AwaitOrder(ctx context.Context, o Versioned[Order]) (*Answer, error) {
	key := l.keys.Order(o.Doc.Gang)
	for after := uint64(0); ; {
		there, err := watch[Order](ctx, l.store, key, after, orderWait)
		switch {
		case errors.Is(err, ErrNotFound) || err == nil && there.Doc.ID != o.Doc.ID:
			return nil, nil //nolint:nilnil // no answer is the answer: it was carried out
		case err != nil:
			return nil, err
		case there.Doc.Answer != nil:
			return there.Doc.Answer, nil
		}
		after = there.Index
	}
}

// WithdrawOrder takes back an order that the leader has neither carried out nor answered; withdrawn is false when it has.
func (l *Ledger) WithdrawOrder(ctx context.Context, o Versioned[Order]) (withdrawn bool, err error) {
	_, err = l.store.Txn(ctx, l.takeOrder(o))
	if errors.Is(err, ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// AnswerOrder writes the answer that an order carries, as long as the order is still what was answered.
func (l *Ledger) AnswerOrder(ctx context.Context, lease Lease, o Versioned[Order]) error {
	return l.lead(ctx, lease, Op{Verb: CAS, Key: l.keys.Order(o.Doc.Gang), Value: encode(o.Doc), Index: o.Index})
}

// DeleteOrder removes an order, as long as it is still what was read.
func (l *Ledger) DeleteOrder(ctx context.Context, lease Lease, o Versioned[Order]) error {
	return l.lead(ctx, lease, l.takeOrder(o)...)
}

// takeOrder deletes an order that is still there as it was read. Of two who try only one succeeds, so that an order that
// was withdrawn is never carried out; deletion by check-and-set alone would not see that the key has gone.
func (l *Ledger) takeOrder(o Versioned[Order]) []Op {
	key := l.keys.Order(o.Doc.Gang)
	return []Op{{Verb: CheckIndex, Key: key, Index: o.Index}, {Verb: Delete, Key: key}}
}

// OrderPendingError says that the leader has not acted yet on another order for the gang.
type OrderPendingError struct{ Order Order }

// Error names the order and who gave it.
func (e *OrderPendingError) Error() string {
	return fmt.Sprintf("an order to %s gang %s, given by %s at %s, is still pending; is a placer leading?",
		e.Order.Kind, e.Order.Gang, e.Order.By, e.Order.At.Format(time.RFC3339))
}

// Keeps says what keeps a slot from being released, in its node's own words where it has said so; empty: nothing.
func (s Snapshot) Keeps(node string, slot Slot) string {
	why := s.unclear(node, slot)
	if busy := s.Acks[node].Doc.Busy[slot.ID().String()]; why != "" && busy != "" && slot.State == SlotClosing {
		return busy
	}
	return why
}
