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

// WatchTable waits until a node's slot table has changed after an index, or wait is over, and reads it then. ErrNotFound
// and ErrNewerVersion say that the slots are unknown, never that they are gone; the index to go on from comes with them.
func (l *Ledger) WatchTable(ctx context.Context, node string, after uint64, wait time.Duration) (Versioned[SlotTable], error) {
	return watch[SlotTable](ctx, l.store, l.keys.Slots(node), after, wait)
}

// WatchClaims waits until a node's claims have changed after an index, or wait is over, and reads them with the index to
// go on from. A claim of a newer version comes with its slot alone.
func (l *Ledger) WatchClaims(ctx context.Context, node string, after uint64, wait time.Duration) (map[SlotID]Versioned[Claim], uint64, error) {
	prefix := l.keys.Claims(node)
	listing, err := l.store.WatchPrefix(ctx, prefix, after, wait)
	if err != nil {
		return nil, 0, err
	}
	claims := make(map[SlotID]Versioned[Claim], len(listing.Entries))
	for _, entry := range listing.Entries {
		if id, claim, _ := decodeClaim(strings.TrimPrefix(entry.Key, prefix), entry); id != (SlotID{}) {
			claims[id] = claim
		}
	}
	return claims, listing.Index, nil
}

// NodeSession describes the session that a device plugin holds its inventory by: it rests on the agent's membership
// alone and has no time limit, and its end marks the node silent without removing anything.
func NodeSession(node string) SessionSpec { return SessionSpec{Name: "muster node " + node} }

// PublishNode writes the inventory and holds it by the caller's session. A session of the same machine that still holds
// it (a plugin that was started anew) is ended and replaced; if another machine that is alive holds it, it is a
// *NameTakenError. ErrNoSession: the caller's session has ended.
func (l *Ledger) PublishNode(ctx context.Context, session string, n Node) error {
	key := l.keys.Node(n.Node)
	for {
		// A plugin whose own session is dead must not end that of its successor.
		if err := l.store.RenewSession(ctx, session); err != nil {
			return fmt.Errorf("publishing node %s: %w", n.Node, err)
		}
		entry, err := l.store.Get(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err == nil {
			if err := l.takeOver(ctx, entry, session, n); err != nil {
				return err
			}
		}
		_, err = l.store.Txn(ctx, []Op{
			{Verb: Lock, Key: key, Value: encode(n), Session: session},
			{Verb: CheckSession, Key: key, Session: session},
		})
		if err == nil {
			return nil
		}
		if !retry(ctx, err) {
			return fmt.Errorf("publishing node %s: %w", n.Node, err)
		}
	}
}

// takeOver makes an inventory that exists free for the caller, if it may.
func (l *Ledger) takeOver(ctx context.Context, entry Entry, session string, n Node) error {
	old, err := decode[Node](entry)
	if err != nil {
		return err
	}
	if entry.Session == "" || entry.Session == session {
		return nil
	}
	if old.Doc.MachineID != n.MachineID {
		return &NameTakenError{Node: n.Node, MachineID: old.Doc.MachineID, Address: old.Doc.Address}
	}
	return l.store.DestroySession(ctx, entry.Session)
}

// PublishHealth writes the health of a node's GPUs; its device plugin is the only writer.
func (l *Ledger) PublishHealth(ctx context.Context, node string, h Health) error {
	_, err := write(ctx, l.store, l.keys.Health(node), h)
	return err
}

// PublishAck writes what a node has acted on; its device plugin is the only writer.
func (l *Ledger) PublishAck(ctx context.Context, node string, a Ack) error {
	_, err := write(ctx, l.store, l.keys.Ack(node), a)
	return err
}

// Claim takes a slot for one allocation's task, if it is open, was granted on the claim's boot, and match (the owner
// check) agrees. The same task gets its own claim again. Errors: *SlotError, *ClaimedError, what match said. After any
// other error the claim may exist or come to exist: Claim again, or Unclaim.
func (l *Ledger) Claim(ctx context.Context, node string, c Claim, match func(Slot) error) (Slot, error) {
	id := SlotID{Reservation: c.Reservation, Rank: c.Rank}
	key := l.keys.Claim(node, id)
	for {
		table, slot, err := l.readSlot(ctx, node, id)
		if err != nil {
			return Slot{}, err
		}
		if slot.State != SlotOpen {
			return Slot{}, &SlotError{Node: node, ID: id, State: slot.State, Why: slot.Why}
		}
		if c.BootID != slot.BootID {
			return Slot{}, &SlotError{Node: node, ID: id, State: slot.State, Why: "it was granted before the machine started anew"}
		}
		if err := match(slot); err != nil {
			return Slot{}, err
		}
		_, err = l.store.Txn(ctx, []Op{
			{Verb: CheckIndex, Key: l.keys.Slots(node), Index: table.Index},
			{Verb: CAS, Key: key, Value: encode(c)},
		})
		if err == nil {
			return slot, nil
		}
		if own, readErr := l.ownClaim(ctx, node, key, c, err); own || readErr != nil {
			return slot, readErr
		}
		if !retry(ctx, err) {
			return Slot{}, fmt.Errorf("claiming slot %s on node %s: %w", id, node, err)
		}
	}
}

// ownClaim says, after a claim's transaction has failed, whether the claim is there all the same.
func (l *Ledger) ownClaim(ctx context.Context, node, key string, c Claim, failed error) (bool, error) {
	var conflict *ConflictError
	if errors.As(failed, &conflict) && !conflict.failed(CAS, key) || !errors.As(failed, &conflict) && !errors.Is(failed, ErrUnknownOutcome) {
		return false, nil
	}
	there, err := read[Claim](ctx, l.store, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case there.Doc.Allocation != c.Allocation || there.Doc.Task != c.Task:
		return false, &ClaimedError{Node: node, Claim: there.Doc}
	}
	return true, nil
}

// readSlot reads a node's table and finds a slot in it; *SlotError if it is not there.
func (l *Ledger) readSlot(ctx context.Context, node string, id SlotID) (Versioned[SlotTable], Slot, error) {
	table, err := read[SlotTable](ctx, l.store, l.keys.Slots(node))
	if errors.Is(err, ErrNotFound) {
		return table, Slot{}, &SlotError{Node: node, ID: id, Why: "the node has no slot table"}
	}
	if err != nil {
		return table, Slot{}, err
	}
	slot, ok := table.Doc.Find(id)
	if !ok {
		return table, Slot{}, &SlotError{Node: node, ID: id}
	}
	return table, slot, nil
}

// Unclaim ends the claim of an allocation on a slot, when its processes are gone. A claim that is not there, or is
// somebody else's, is left alone and no error. A device plugin also ends the claims that an earlier boot has left.
func (l *Ledger) Unclaim(ctx context.Context, node string, id SlotID, allocation string) error {
	key := l.keys.Claim(node, id)
	for {
		claim, err := read[Claim](ctx, l.store, key)
		if errors.Is(err, ErrNotFound) || err == nil && claim.Doc.Allocation != allocation {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = l.store.Txn(ctx, []Op{{Verb: DeleteCAS, Key: key, Index: claim.Index}})
		if err == nil {
			return nil
		}
		if !retry(ctx, err) {
			return fmt.Errorf("ending the claim on slot %s on node %s: %w", id, node, err)
		}
	}
}

// GetGang reads a gang; ErrNotFound.
func (l *Ledger) GetGang(ctx context.Context, gang string) (Versioned[Gang], error) {
	return read[Gang](ctx, l.store, l.keys.Gang(gang))
}

// WatchGang waits until a gang has changed after an index, or wait is over, and reads it then. ErrNotFound, with the index
// to go on from, while it does not exist.
func (l *Ledger) WatchGang(ctx context.Context, gang string, after uint64, wait time.Duration) (Versioned[Gang], error) {
	return watch[Gang](ctx, l.store, l.keys.Gang(gang), after, wait)
}

// WatchRefusal is WatchGang for the reason why a job is not admitted.
func (l *Ledger) WatchRefusal(ctx context.Context, namespace, job string, after uint64, wait time.Duration) (Versioned[Refusal], error) {
	return watch[Refusal](ctx, l.store, l.keys.Refusal(namespace, job), after, wait)
}
