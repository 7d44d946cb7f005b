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

// Limits of one transaction. They are Consul's own (128 operations; a body of 512 KiB, with values in base64) and what
// follows from them.
const (
	// MaxOps is the number of operations of one transaction.
	MaxOps = 128
	// MaxNodes is the number of nodes that one gang may span: MaxOps less the leader's check and the gang document.
	MaxNodes = MaxOps - 2
	// MaxBodyBytes is the size of a transaction's encoded body.
	MaxBodyBytes = 512 << 10
	// MaxSlotTableBytes is the size of a slot table for each eight GPUs begun of its node: 2,560 bytes for a node of 8,
	// 5,120 for one of 16. The nodes of one gang may have MaxNodes such shares together (126 nodes of 8 GPUs or 63 of
	// 16), so that closing and releasing a gang always fits into one transaction, whatever else was granted on its nodes.
	MaxSlotTableBytes = 2560
	// MaxGangBytes is the size of a gang document.
	MaxGangBytes = 24 << 10
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrNotFound says that a key does not exist. It never means that something was revoked: a lost or forbidden ledger
	// looks the same.
	ErrNotFound = errors.New("not in the ledger")
	// ErrConflict says that a transaction's condition did not hold, so that none of it was done. Read again, then decide
	// again.
	ErrConflict = errors.New("the ledger has changed")
	// ErrUnknownOutcome says that a request broke after it may have been sent: it may have been done, may yet be done,
	// or never. Read back before a retry.
	ErrUnknownOutcome = errors.New("the outcome is unknown")
	// ErrForbidden says that the token lacks a right in Consul, so that nothing was done.
	ErrForbidden = errors.New("the token lacks a right in Consul")
	// ErrTooLarge says that a document or a transaction is larger than the ledger takes; nothing was sent.
	ErrTooLarge = errors.New("too large for the ledger")
	// ErrNoSession says that a session does not exist any more.
	ErrNoSession = errors.New("the session has ended")
	// ErrNotLeader says that another placer leads, or none: nothing was changed.
	ErrNotLeader = errors.New("not the leader any more")
	// ErrSetBack says that a node remembers a later slot table than the ledger has: the ledger was set back or lost, and
	// nothing is changed on the node until the two agree.
	ErrSetBack = errors.New("the ledger was set back")
	// ErrNewerVersion says that a document was written by a newer version of Muster, or can't be read at all. It is
	// kept as it is.
	ErrNewerVersion = errors.New("written by a newer version of Muster")
)

// Entry is one key with its value.
type Entry struct {
	Key     string
	Value   []byte
	Index   uint64 // of the last change of this key, by which check-and-set compares
	Session string // that holds the key's lock; empty: nobody
}

// Listing is all keys below a prefix, in key order, as they were at one moment.
type Listing struct {
	Entries []Entry
	Index   uint64 // to watch from
}

// Verb is what one operation of a transaction does.
type Verb string

// The verbs. Those that check or compare make the whole transaction fail when they don't hold.
const (
	Set            Verb = "set"
	CAS            Verb = "cas"        // set if Index is still the key's; Index 0: create only
	Delete         Verb = "delete"     // no failure when the key is missing
	DeleteCAS      Verb = "delete-cas" // delete if Index is still the key's
	DeleteTree     Verb = "delete-tree"
	CheckIndex     Verb = "check-index"
	CheckNotExists Verb = "check-not-exists"
	CheckSession   Verb = "check-session" // the key is locked by Session
	Lock           Verb = "lock"          // set and lock; fails while another session holds the key
	Unlock         Verb = "unlock"        // set and unlock; fails unless Session holds the key
)

// Op is one operation of a transaction.
type Op struct {
	Verb    Verb
	Key     string
	Value   []byte
	Index   uint64
	Session string
}

// sets says whether an operation leaves a value under its key.
func (op Op) sets() bool {
	return op.Verb == Set || op.Verb == CAS || op.Verb == Lock || op.Verb == Unlock
}

// SessionSpec describes a session. All sessions have a lock delay of 1 ms: the ledger's transactions check who holds
// what, so there is nothing to wait for.
type SessionSpec struct {
	Name   string
	TTL    time.Duration // ends when it is not renewed for so long, up to twice; 0: it has no limit in time
	Checks []string      // checks of this agent whose failure ends it, besides the agent's own membership (serfHealth)
	Delete bool          // the end of the session deletes the keys that it holds; else it only releases them
}

// CheckSpec describes a health check that a process registers for itself at its agent, as the check of a service of its
// own, so that its failure says nothing about the node or other services.
type CheckSpec struct {
	ID      string
	Service string
	TTL     time.Duration // fails when it was not passed for so long
}

// Store is what the ledger needs of a store. Consul and Memory implement it, and one suite of tests holds both to it.
// All methods are safe for concurrent use; entries that they return belong to the caller.
type Store interface {
	// Get reads a key as it is now (a consistent read); ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// List reads all keys below a prefix as they are now, at one moment. None is not an error.
	List(ctx context.Context, prefix string) (Listing, error)
	// Watch waits until a key's index is past after, or wait is over, and reads it then. It also returns the index to go
	// on from, which may be smaller than after if the store was set back. A missing key is ErrNotFound, with an index.
	Watch(ctx context.Context, key string, after uint64, wait time.Duration) (Entry, uint64, error)
	// WatchPrefix is Watch for all keys below a prefix.
	WatchPrefix(ctx context.Context, prefix string, after uint64, wait time.Duration) (Listing, error)
	// Txn does all operations or none. It returns the changed keys with their new indexes, without values. Errors:
	// *ConflictError, ErrUnknownOutcome, ErrForbidden, ErrTooLarge; after any other error nothing was done.
	Txn(ctx context.Context, ops []Op) ([]Entry, error)
	// CreateSession makes a session and returns its ID.
	CreateSession(ctx context.Context, spec SessionSpec) (string, error)
	// RenewSession starts the session's time again; ErrNoSession.
	RenewSession(ctx context.Context, id string) error
	// DestroySession ends a session; one that has ended already is no error.
	DestroySession(ctx context.Context, id string) error
	// RegisterCheck makes a check, passing, at this process's agent.
	RegisterCheck(ctx context.Context, spec CheckSpec) error
	// PassCheck starts the check's time again.
	PassCheck(ctx context.Context, spec CheckSpec) error
	// RemoveCheck removes a check; one that is missing is no error.
	RemoveCheck(ctx context.Context, spec CheckSpec) error
}

// OpError says why one operation of a transaction failed.
type OpError struct {
	Op   int // its position
	Verb Verb
	Key  string
	Why  string
}

// ConflictError is a transaction that was refused because of the operations named. It is an ErrConflict.
type ConflictError struct{ Ops []OpError }

// Error names the operations.
func (e *ConflictError) Error() string {
	parts := make([]string, 0, len(e.Ops))
	for _, op := range e.Ops {
		parts = append(parts, fmt.Sprintf("%s %s: %s", op.Verb, op.Key, op.Why))
	}
	return ErrConflict.Error() + ": " + strings.Join(parts, "; ")
}

// Is makes it an ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// failed says whether an operation of a kind on a key is among those that failed.
func (e *ConflictError) failed(verb Verb, key string) bool {
	for _, op := range e.Ops {
		if op.Verb == verb && op.Key == key {
			return true
		}
	}
	return false
}

// checkSize refuses a transaction that the store would refuse for its size.
func checkSize(ops []Op) error {
	if len(ops) > MaxOps {
		return fmt.Errorf("%w: a transaction of %d operations; the limit is %d", ErrTooLarge, len(ops), MaxOps)
	}
	if n := bodyBytes(ops); n > MaxBodyBytes {
		return fmt.Errorf("%w: a transaction of %d bytes; the limit is %d", ErrTooLarge, n, MaxBodyBytes)
	}
	return nil
}

// opFrameBytes is the most that the encoding of one operation takes besides its key, value and session.
const opFrameBytes = 128

// bodyBytes is an upper bound of a transaction's encoded body.
func bodyBytes(ops []Op) int {
	n := 0
	for _, op := range ops {
		n += opFrameBytes + len(op.Key) + len(op.Session) + (len(op.Value)+2)/3*4
	}
	return n
}
