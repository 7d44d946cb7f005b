// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package gang keeps one member in step with the rest of its gang through the ledger: the entry barrier (nobody starts
// before all have arrived), the exit barrier (nobody ends well before all have), and the environment by which the
// members' processes find one another. Rank 0's driver is the only writer of the run document and gathers the members'
// documents for it; everybody, rank 0 included, follows that one key.
//
// It starts no process and decides nothing about slots. Package driver imports it; of ours it imports placer/ledger only.
package gang

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// Seat is one member's place in its gang.
type Seat struct {
	Gang        string
	Reservation string
	Node        string
	Address     string // where the other members reach this node
	Rank        int
	Size        int // members of the gang
	Allocation  string
}

// Slot is the slot that the seat stands on.
func (s Seat) Slot() ledger.SlotID {
	return ledger.SlotID{Reservation: s.Reservation, Rank: s.Rank}
}

// Ledger is what the package needs of the ledger.
type Ledger interface {
	PutMember(ctx context.Context, gang, reservation string, m ledger.Member) error
	PutRun(ctx context.Context, gang, reservation, node string, rank0 int, r ledger.Versioned[ledger.Run]) (uint64, error)
	WatchRun(ctx context.Context, gang, reservation string, after uint64, wait time.Duration) (ledger.Versioned[ledger.Run], error)
	WatchMembers(ctx context.Context, gang, reservation string, after uint64, wait time.Duration) (map[int]ledger.Versioned[ledger.Member], uint64, error)
	WatchTable(ctx context.Context, node string, after uint64, wait time.Duration) (ledger.Versioned[ledger.SlotTable], error)
}

// watchWait is how long one blocking query lasts; Consul's default.
const watchWait = 5 * time.Minute

// Retry is the pause between tries while the ledger can't be reached: short at first, since most outages are an election
// of a second or two.
type Retry struct{ last time.Duration }

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Reset starts with short pauses again, after a success.
func (r *Retry) Reset() { r.last = 0 }

// Wait pauses, longer each time, or returns the error of a context that ends.
func (r *Retry) Wait(ctx context.Context) error {
	r.last = min(max(2*r.last, firstRetry), lastRetry)
	timer := time.NewTimer(r.last)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// FollowRun delivers the run whenever it has moved on, until ctx ends; then the channel is closed. A reader that is slow
// gets the latest. trouble hears of an error that delays it, and nil when that is over. setBack hears that the run is gone
// or older than before: the ledger was lost or set back; such a run is not delivered.
func FollowRun(ctx context.Context, l Ledger, seat Seat, trouble func(error), setBack func()) <-chan ledger.Run {
	out := make(chan ledger.Run, 1)
	go func() {
		defer close(out)
		var last ledger.Run
		follow(ctx, trouble, func(after uint64) (uint64, error) {
			run, err := l.WatchRun(ctx, seat.Gang, seat.Reservation, after, watchWait)
			switch {
			case err != nil && !errors.Is(err, ledger.ErrNotFound):
			case Older(run.Doc, last):
				setBack()
			case err == nil && run.Index != after:
				last = run.Doc
				replace(out, run.Doc)
			}
			return run.Index, missingIsFine(err)
		})
	}()
	return out
}

// FollowClosing delivers once, when the seat's slot is closing, the reason why; the channel is closed when ctx ends. A
// slot or a table that is missing, forbidden or unreadable is never taken for a revocation. setBack hears that the slot is
// there in a ledger that was lost or set back since it was there last: what its member has written may be missing.
func FollowClosing(ctx context.Context, l Ledger, seat Seat, trouble func(error), setBack func()) <-chan string {
	out := make(chan string, 1)
	go func() {
		defer close(out)
		told := false
		var was lineage
		follow(ctx, trouble, func(after uint64) (uint64, error) {
			table, err := l.WatchTable(ctx, seat.Node, after, watchWait)
			if err != nil && !errors.Is(err, ledger.ErrNotFound) {
				return table.Index, missingIsFine(err)
			}
			slot, there := table.Doc.Find(seat.Slot())
			if was.next(table.Doc, there) {
				setBack()
			}
			if there && slot.State == ledger.SlotClosing && !told {
				told = true
				out <- slot.Why
			}
			return table.Index, missingIsFine(err)
		})
	}()
	return out
}

// lineage is what a slot table shows of the ledger it is in.
type lineage struct {
	seen     bool // the slot was there before
	missing  bool // it has not been since
	epoch    string
	rebuild  bool
	sequence uint64
}

// next takes in a table, in which the slot is there or not, and says whether the ledger was lost or set back since the
// slot was there last.
func (l *lineage) next(table ledger.SlotTable, there bool) (setBack bool) {
	if !there {
		l.missing = true
		return false
	}
	setBack = l.seen && (l.missing || table.Epoch != l.epoch || table.Rebuild != l.rebuild || table.Sequence < l.sequence)
	*l = lineage{seen: true, epoch: table.Epoch, rebuild: table.Rebuild, sequence: table.Sequence}
	return setBack
}

// missingIsFine drops the errors that a blocking query on a key may go on waiting after.
func missingIsFine(err error) error {
	if errors.Is(err, ledger.ErrNotFound) || errors.Is(err, ledger.ErrNewerVersion) {
		return nil
	}
	return err
}

// follow calls watch with the index of its last call until ctx ends.
func follow(ctx context.Context, trouble func(error), watch func(after uint64) (uint64, error)) {
	var after uint64
	var retry Retry
	for ctx.Err() == nil {
		index, err := watch(after)
		if err == nil && index > 0 {
			trouble(nil)
			retry.Reset()
			if index < after { // the store was set back: look again from the start
				index = 0
			}
			after = index
			continue
		}
		if ctx.Err() != nil {
			return
		}
		trouble(err)
		after = 0
		if retry.Wait(ctx) != nil {
			return
		}
	}
}

// replace puts a value into a channel of one place in the place of an unread one. There must be one sender only.
func replace[T any](to chan T, value T) {
	select {
	case <-to:
	default:
	}
	to <- value
}
