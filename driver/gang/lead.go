// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// gatherPause is the least time between two run documents that only say who is missing: every member reads each.
const gatherPause = 3 * time.Second

// Leader moves the run document of one gang; it lives in rank 0's driver, from arrival to the end of the run.
type Leader struct {
	ledger  Ledger
	seat    Seat
	ports   func(generation int) (int, error) // the first of three free ports
	trouble func(error)
	abort   chan string
	look    chan struct{}
	done    chan struct{}
	run     ledger.Versioned[ledger.Run] // as last known
	read    bool                         // the index is of what the ledger has
	lost    bool                         // the ledger has nothing, or an older run: it was lost or set back
	told    time.Time                    // when the run document was last written
}

// NewLeader makes the leader of rank 0's seat.
func NewLeader(l Ledger, seat Seat, ports func(generation int) (int, error), trouble func(error)) *Leader {
	return &Leader{
		ledger: l, seat: seat, ports: ports, trouble: trouble,
		abort: make(chan string, 1), look: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// Abort fails the run for a reason that shows in no member's document: rank 0's slot is closing. A run that has ended
// stays as it ended.
func (l *Leader) Abort(why string) {
	select {
	case l.abort <- why:
	default: // it has a reason already
	}
}

// Look makes the leader read the run again, and write what it knows if the ledger was lost or set back.
func (l *Leader) Look() {
	select {
	case l.look <- struct{}{}:
	default: // it is about to
	}
}

// Start leads in a goroutine of its own.
func (l *Leader) Start(ctx context.Context) {
	go func() {
		defer close(l.done)
		_ = l.lead(ctx) // it fails only with ctx
	}()
}

// Done is closed when the run has ended and the ledger says so, or the context has ended.
func (l *Leader) Done() <-chan struct{} { return l.done }

// lead runs until the run has ended and the ledger says so, or ctx ends. A slot of rank 0 that is gone delays it like an
// outage: the ledger may have been lost and come back.
func (l *Leader) lead(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	members := l.followMembers(ctx)
	var latest map[int]ledger.Member
	later := time.NewTimer(gatherPause)
	defer later.Stop()
	for {
		var aborted string
		select {
		case <-ctx.Done():
			return ctx.Err()
		case latest = <-members:
		case aborted = <-l.abort:
		case <-l.look:
			l.read = false
		case <-later.C:
		}
		ended, err := l.step(ctx, latest, aborted)
		if ended || err != nil {
			return err
		}
		later.Reset(gatherPause)
	}
}

func (l *Leader) followMembers(ctx context.Context) <-chan map[int]ledger.Member {
	out := make(chan map[int]ledger.Member, 1)
	go follow(ctx, l.trouble, func(after uint64) (uint64, error) {
		read, index, err := l.ledger.WatchMembers(ctx, l.seat.Gang, l.seat.Reservation, after, watchWait)
		if err == nil {
			members := make(map[int]ledger.Member, len(read))
			for rank, member := range read {
				members[rank] = member.Doc
			}
			replace(out, members)
		}
		return index, missingIsFine(err)
	})
	return out
}

// step writes the next run document, if there is one, until it is written. It says whether the run has ended.
func (l *Leader) step(ctx context.Context, members map[int]ledger.Member, aborted string) (ended bool, err error) {
	var retry Retry
	for {
		moved, err := l.try(ctx, members, aborted)
		switch {
		case err == nil && !moved:
			return over(l.run.Doc), nil
		case err == nil, errors.Is(err, ledger.ErrConflict):
			continue
		}
		l.trouble(err)
		if err := retry.Wait(ctx); err != nil {
			return false, err
		}
	}
}

// try reads what is there if that is not known, and writes the next document if there is one.
func (l *Leader) try(ctx context.Context, members map[int]ledger.Member, aborted string) (moved bool, err error) {
	if !l.read {
		if err := l.load(ctx); err != nil {
			return false, err
		}
	}
	next, changed := l.next(members, aborted)
	if !changed {
		return false, nil
	}
	if err := l.write(ctx, next); err != nil {
		l.read = !errors.Is(err, ledger.ErrConflict)
		return false, err
	}
	return true, nil
}

func (l *Leader) next(members map[int]ledger.Member, aborted string) (ledger.Run, bool) {
	if l.lost {
		return l.run.Doc, true
	}
	now := time.Now().UTC()
	next, changed := Next(l.run.Doc, members, l.seat.Size, now)
	if aborted != "" && !over(next) {
		return Failed(next, aborted, true), true
	}
	again := next.Generation > 1 && next.Generation != l.run.Doc.Generation // for which others have to end their processes
	if next.Phase == ledger.RunGathering && !again {
		ownMissing := slices.Contains(next.Missing, l.seat.Rank) // on its way
		changed = changed && !ownMissing && (l.run.Index == 0 || now.Sub(l.told) >= gatherPause)
	}
	return next, changed
}

func (l *Leader) write(ctx context.Context, next ledger.Run) error {
	if next.Phase == ledger.RunRunning && (l.run.Doc.Phase != ledger.RunRunning || l.run.Doc.Generation != next.Generation) {
		port, err := l.ports(next.Generation)
		if err != nil {
			next = Failed(next, fmt.Sprintf("rank 0 on node %s: %v", l.seat.Node, err), false)
		}
		next.MasterAddr, next.MasterPort = l.seat.Address, port
	}
	index, err := l.ledger.PutRun(ctx, l.seat.Gang, l.seat.Reservation, l.seat.Node, l.seat.Rank,
		ledger.Versioned[ledger.Run]{Doc: next, Index: l.run.Index})
	if err != nil {
		return err
	}
	l.trouble(nil)
	l.run, l.told, l.lost = ledger.Versioned[ledger.Run]{Doc: next, Index: index}, time.Now(), false
	return nil
}

// load reads the run that is there: ours, or of before a restart, since nobody else writes it. One that is missing or
// older than what is known was lost with the ledger, or set back.
func (l *Leader) load(ctx context.Context) error {
	run, err := l.ledger.WatchRun(ctx, l.seat.Gang, l.seat.Reservation, 0, 0)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	if err != nil {
		run = ledger.Versioned[ledger.Run]{}
	}
	known := l.run.Doc
	l.run, l.read, l.lost = run, true, Older(run.Doc, known)
	if l.lost {
		l.run.Doc = known
	}
	return nil
}
