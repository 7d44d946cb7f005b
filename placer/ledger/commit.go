// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Lease is a placer's leadership, as Campaign hands it to the leader.
type Lease struct {
	Session string
	Key     string // the leader key, which Session holds
}

// guard is the operation that makes a transaction fail when the lease is over.
func (lease Lease) guard() Op { return Op{Verb: CheckSession, Key: lease.Key, Session: lease.Session} }

// Change is one decision about one gang: what Commit writes, whole or not at all. The pure builders BuildGrant,
// BuildClose and BuildRelease make those that touch slots.
type Change struct {
	Gang       *Versioned[Gang]                // new content, and the index it was read at (0: create)
	DeleteGang bool                            // delete the gang at Gang.Index instead
	Tables     map[string]Versioned[SlotTable] // by node: new content, and the index it was read at
	Claims     []NodeSlot                      // claims to delete, with slots that a person vouches for
	Order      *Versioned[Order]               // carried out by this, and deleted; nil: none
	RunTime    *RunTime                        // learned by this, see Learn; nil: nothing
	Forgotten  []RunTimeID                     // run times that make room for that one
}

// Commit makes a change in one transaction, provided that the lease still holds and that neither the gang nor any of
// the tables has changed since it was read. It returns the new index of each key. Errors: ErrNotLeader, ErrConflict,
// *TooLargeError, and ErrUnknownOutcome: then load the ledger before any other decision about this gang. Whichever of
// the lost transaction and the next one about the gang comes first, the other one fails.
func (l *Ledger) Commit(ctx context.Context, lease Lease, c Change) (map[string]uint64, error) {
	ops, err := l.changeOps(lease, c)
	if err != nil {
		return nil, err
	}
	changed, err := l.store.Txn(ctx, ops)
	if err != nil {
		return nil, fmt.Errorf("committing gang %s: %w", c.Gang.Doc.Name, leaseError(err, lease))
	}
	indexes := make(map[string]uint64, len(changed))
	for _, entry := range changed {
		indexes[entry.Key] = entry.Index
	}
	return indexes, nil
}

// Surplus are claims that must be deleted before a change is built anew, since it is too large with them: as many as
// EndClaims takes at once.
func (c Change) Surplus() []NodeSlot {
	const others = 4 // the lease, the gang, and two about an order
	if others+len(c.Tables)+len(c.Claims) <= MaxOps {
		return nil
	}
	return c.Claims[:min(len(c.Claims), MaxOps-others)]
}

// EndClaims deletes claims on a closing gang's slots that a person vouches for with an order, ahead of a release that would
// be too large with all of them. It does so only while the gang and the order are as they were read. The slots stay, closing,
// so that nobody gets in, and whoever comes next goes on from there.
func (l *Ledger) EndClaims(ctx context.Context, lease Lease, gang Versioned[Gang], o Versioned[Order], claims []NodeSlot) error {
	ops := []Op{
		{Verb: CheckIndex, Key: l.keys.Gang(gang.Doc.Name), Index: gang.Index},
		{Verb: CheckIndex, Key: l.keys.Order(o.Doc.Gang), Index: o.Index},
	}
	return l.lead(ctx, lease, append(ops, l.deleteClaims(claims)...)...)
}

// changeOps is the transaction of a change: the leader's check, the gang, then the tables in node order.
func (l *Ledger) changeOps(lease Lease, c Change) ([]Op, error) {
	if c.Gang == nil {
		return nil, errors.New("a change without its gang: a delayed one could land after another decision")
	}
	gangOp := Op{Verb: CAS, Key: l.keys.Gang(c.Gang.Doc.Name), Value: encode(c.Gang.Doc), Index: c.Gang.Index}
	if c.DeleteGang {
		gangOp.Verb, gangOp.Value = DeleteCAS, nil
	}
	ops := append(make([]Op, 0, 2+len(c.Tables)), lease.guard(), gangOp)
	for _, node := range slices.Sorted(maps.Keys(c.Tables)) {
		table := c.Tables[node]
		ops = append(ops, Op{Verb: CAS, Key: l.keys.Slots(node), Value: encode(table.Doc), Index: table.Index})
	}
	ops = append(ops, l.deleteClaims(c.Claims)...)
	if len(ops) > MaxOps {
		return nil, &TooLargeError{Nodes: len(c.Tables), What: fmt.Sprintf("gang %s: %d slot tables and %d claims at once", c.Gang.Doc.Name, len(c.Tables), len(c.Claims))}
	}
	if c.Order != nil && len(ops) < MaxOps-1 { // else the leader sees by itself later that it was carried out
		ops = append(ops, l.takeOrder(*c.Order)...)
	}
	if more := slices.Concat(ops, l.runTimeOps(c)); len(more) <= MaxOps && bodyBytes(more) <= MaxBodyBytes {
		ops = more // else this run teaches nothing
	}
	bytes := bodyBytes(ops)
	large := func(format string, args ...any) error {
		return &TooLargeError{Nodes: len(c.Tables), Bytes: bytes, What: "gang " + c.Gang.Doc.Name + ": " + fmt.Sprintf(format, args...)}
	}
	switch {
	case len(c.Tables) > MaxNodes:
		return nil, large("it spans %d nodes; the limit is %d", len(c.Tables), MaxNodes)
	case len(gangOp.Value) > MaxGangBytes:
		return nil, large("its document has %d bytes; the limit is %d", len(gangOp.Value), MaxGangBytes)
	case bytes > MaxBodyBytes:
		return nil, large("its transaction has %d bytes; the limit is %d", bytes, MaxBodyBytes)
	}
	return ops, nil
}

// leaseError makes a conflict about the leader's lock an ErrNotLeader.
func leaseError(err error, lease Lease) error {
	if guardFailed(err, []Op{lease.guard()}) {
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	return err
}

// lead runs a transaction of the leader that touches no slot with content and no gang.
func (l *Ledger) lead(ctx context.Context, lease Lease, ops ...Op) error {
	_, err := l.store.Txn(ctx, append([]Op{lease.guard()}, ops...))
	return leaseError(err, lease)
}

// PutRefusal writes why a job was not admitted.
func (l *Ledger) PutRefusal(ctx context.Context, lease Lease, r Refusal) error {
	_, err := write(ctx, l.store, l.keys.Refusal(r.Namespace, r.Job), r, lease.guard())
	return leaseError(err, lease)
}

// DeleteRefusal removes what PutRefusal wrote; none there is no error.
func (l *Ledger) DeleteRefusal(ctx context.Context, lease Lease, namespace, job string) error {
	return l.lead(ctx, lease, Op{Verb: Delete, Key: l.keys.Refusal(namespace, job)})
}

// DeleteRun removes a run and its members, after its reservation was released.
func (l *Ledger) DeleteRun(ctx context.Context, lease Lease, run RunID) error {
	return l.lead(ctx, lease,
		Op{Verb: Delete, Key: l.keys.Run(run.Gang, run.Reservation)},
		Op{Verb: DeleteTree, Key: l.keys.Members(run.Gang, run.Reservation)})
}

// NewEpoch gives the ledger a new identity, at the start of each leadership: from then on no table is of the current
// epoch, so that every node is to be asked (BuildAsk).
func (l *Ledger) NewEpoch(ctx context.Context, lease Lease) (Epoch, error) {
	epoch := Epoch{Version: Version, ID: rand.Text()}
	_, err := write(ctx, l.store, l.keys.Epoch(), epoch, lease.guard())
	return epoch, leaseError(err, lease)
}
