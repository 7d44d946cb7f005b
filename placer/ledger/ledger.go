// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

// Ledger reads and writes the documents of one Nomad region. It is safe for concurrent use.
type Ledger struct {
	store Store
	keys  Keys

	mu    sync.Mutex
	seed  maphash.Seed
	nodes map[string]decodedNode // inventories as last read, by key: they are large and change rarely
}

type decodedNode struct {
	hash uint64 // of the text; a ledger that was set back may use an index twice
	doc  Node
}

// New opens the ledger of one Nomad region ("global" is Nomad's default).
func New(store Store, region string) *Ledger {
	return &Ledger{store: store, keys: NewKeys(region), seed: maphash.MakeSeed(), nodes: map[string]decodedNode{}}
}

// Keys are the ledger's keys.
func (l *Ledger) Keys() Keys { return l.keys }

// Store is where the ledger is kept.
func (l *Ledger) Store() Store { return l.store }

// Versioned is a document as it was read, with the index by which a change of it is guarded. Index 0: it does not exist
// yet. Documents are shared between readers: never change what maps, slices and pointers in them lead to; make new ones.
type Versioned[T any] struct {
	Doc   T
	Index uint64
}

// read reads one document, ErrNotFound or ErrNewerVersion.
func read[T document](ctx context.Context, store Store, key string) (Versioned[T], error) {
	entry, err := store.Get(ctx, key)
	if err != nil {
		return Versioned[T]{}, err
	}
	return decode[T](entry)
}

// watch waits for one document. With an error that the document caused (ErrNotFound, ErrNewerVersion) the index to go on
// from is returned as well.
func watch[T document](ctx context.Context, store Store, key string, after uint64, wait time.Duration) (Versioned[T], error) {
	entry, index, err := store.Watch(ctx, key, after, wait)
	if err != nil {
		return Versioned[T]{Index: index}, err
	}
	doc, err := decode[T](entry)
	doc.Index = entry.Index
	return doc, err
}

// write sets a document of which the caller is the only writer, unless what is there now is of a newer version. Guards
// are further conditions of the transaction; when one fails the ConflictError names it.
func write[T document](ctx context.Context, store Store, key string, doc T, guards ...Op) (uint64, error) {
	for {
		old, err := read[T](ctx, store, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		changed, err := store.Txn(ctx, append([]Op{{Verb: CAS, Key: key, Value: encode(doc), Index: old.Index}}, guards...))
		if err == nil {
			return changed[0].Index, nil
		}
		if guardFailed(err, guards) || !retry(ctx, err) {
			return 0, err
		}
	}
}

// retry says whether a single writer of a document may simply read and write again: the outcome is unknown and the next
// read will tell, or the document moved. It waits a moment, unless ctx ends.
func retry(ctx context.Context, err error) bool {
	if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnknownOutcome) {
		return false
	}
	return pause(ctx, retryPause)
}

// retryPause is short, as retries follow a conflict with another writer who has just finished.
const retryPause = 2 * time.Millisecond

// pause waits, and says whether ctx is still good.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func guardFailed(err error, guards []Op) bool {
	var conflict *ConflictError
	if !errors.As(err, &conflict) {
		return false
	}
	for _, guard := range guards {
		if conflict.failed(guard.Verb, guard.Key) {
			return true
		}
	}
	return false
}

// SlotError says that a slot can't be used: State is closing, or empty when it is not in the table (any more).
type SlotError struct {
	Node  string
	ID    SlotID
	State SlotState
	Why   string
}

// Error says what happened to the slot.
func (e *SlotError) Error() string {
	text := fmt.Sprintf("slot %s on node %s is gone", e.ID, e.Node)
	if e.State != "" {
		text = fmt.Sprintf("slot %s on node %s is %s", e.ID, e.Node, e.State)
	}
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// ClaimedError says that somebody else has claimed the slot.
type ClaimedError struct {
	Node  string
	Claim Claim
}

// Error names the holder.
func (e *ClaimedError) Error() string {
	return fmt.Sprintf("slot %s on node %s is claimed by task %s of allocation %s of job %s in namespace %s",
		SlotID{Reservation: e.Claim.Reservation, Rank: e.Claim.Rank}, e.Node, e.Claim.Task, e.Claim.Allocation, e.Claim.Job, e.Claim.Namespace)
}

// NameTakenError says that another machine that is alive uses the node's name.
type NameTakenError struct {
	Node      string
	MachineID string // of the other machine
	Address   string // of the other machine
}

// Error names the other machine.
func (e *NameTakenError) Error() string {
	return fmt.Sprintf("node name %s is taken by another machine that is alive (machine ID %s, address %s): give this one another name",
		e.Node, e.MachineID, e.Address)
}

// TooLargeError says that a gang is larger than one transaction takes. It is an ErrTooLarge.
type TooLargeError struct {
	What  string // what is too large, with its size and the limit
	Nodes int    // of the change
	Bytes int    // of the change's transaction
}

// Error says what is too large, and the limit.
func (e *TooLargeError) Error() string { return ErrTooLarge.Error() + ": " + e.What }

// Is makes it an ErrTooLarge.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }
