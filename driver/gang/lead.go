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
	ports   func() (int, error) // the first of three free ports
	trouble func(error)
	abort   chan string
	done    chan struct{}
	run     ledger.Versioned[ledger.Run]
	told    time.Time // when the run document was last written
}

// NewLeader makes the leader of rank 0's seat.
func NewLeader(l Ledger, seat Seat, ports func() (int, error), trouble func(error)) *Leader {
	return &Leader{ledger: l, seat: seat, ports: ports, trouble: trouble, abort: make(chan string, 1), done: make(chan struct{})}
}

// Abort fails the run for a reason that shows in no member's document: rank 0's slot is closing. A run that has ended
// stays as it ended.
func (l *Leader) Abort(why string) {
	select {
	case l.abort <- why:
	default: // it has a reason already
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
		next, changed := l.next(members, aborted)
		if !changed {
			return over(l.run.Doc), nil
		}
		err := l.write(ctx, next)
		switch {
		case err == nil:
			return over(l.run.Doc), nil
		case errors.Is(err, ledger.ErrConflict):
			err = l.reload(ctx)
		}
		if err != nil {
			l.trouble(err)
			if err := retry.Wait(ctx); err != nil {
				return false, err
			}
		}
	}
}

func (l *Leader) next(members map[int]ledger.Member, aborted string) (ledger.Run, bool) {
	now := time.Now().UTC()
	next, changed := Next(l.run.Doc, members, l.seat.Size, now)
	if aborted != "" && !over(next) {
		return Failed(next, aborted, true), true
	}
	if next.Phase == ledger.RunGathering {
		ownMissing := slices.Contains(next.Missing, l.seat.Rank) // on its way
		changed = changed && !ownMissing && (l.run.Index == 0 || now.Sub(l.told) >= gatherPause)
	}
	return next, changed
}

func over(run ledger.Run) bool {
	return run.Phase == ledger.RunSucceeded || run.Phase == ledger.RunFailed
}

func (l *Leader) write(ctx context.Context, next ledger.Run) error {
	if next.Phase == ledger.RunRunning && l.run.Doc.Phase != ledger.RunRunning {
		port, err := l.ports()
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
	l.run, l.told = ledger.Versioned[ledger.Run]{Doc: next, Index: index}, time.Now()
	return nil
}

// reload reads the run that is there: ours of before a restart, since nobody else writes it.
func (l *Leader) reload(ctx context.Context) error {
	run, err := l.ledger.WatchRun(ctx, l.seat.Gang, l.seat.Reservation, 0, 0)
	if errors.Is(err, ledger.ErrNotFound) {
		l.run = ledger.Versioned[ledger.Run]{}
		return nil
	}
	if err == nil {
		l.run = run
	}
	return err
}
