// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// Follower is the loop's view of Nomad; *nomad.Follower is one.
type Follower interface {
	State() nomad.State
	Changed() <-chan struct{}
	Track(ids []nomad.JobID)
}

// Options are what the loop needs.
type Options struct {
	Name   string // of this placer
	Ledger *ledger.Ledger
	Nomad  Follower
	Rules  Rules
	Tick   time.Duration // how often to decide although nothing changed
	// Announce tells a job's users something; it must not block. Nil: nobody.
	Announce func(job nomad.JobID, group, text string)
	// Signal sends a signal to a task; it must not block.
	Signal func(ctx context.Context, alloc *nomad.Alloc, task, signal string)
	// WriteJob changes a job in Nomad, unless somebody else has changed it meanwhile; it must not block.
	WriteJob func(ctx context.Context, job *nomad.Job, write nomad.JobWrite)
	// Denied is why the last change of each job failed.
	Denied func() map[nomad.JobID]string
	// Turn is called before each decision; the checker behind Rules.Refusal may forget old answers. Nil: nothing.
	Turn   func()
	Now    func() time.Time
	Logger *slog.Logger
}

// restAfterLead is how long a placer that gave up the lead waits before it tries again, so that another may take over.
const restAfterLead = time.Second

// followWait is how long one blocking read of the ledger waits at most.
const followWait = time.Minute

// troubleEvery is how often a failure that stays is logged.
const troubleEvery = 10 * time.Minute

// errSetBack says that the ledger is in an earlier state than it was: a snapshot was restored. All that is known is
// doubtful, so the lead starts anew.
var errSetBack = errors.New("the ledger was set back")

// Run campaigns and decides as the leader until the context ends, which is no error.
func Run(ctx context.Context, o Options) error {
	spec := ledger.CandidateSpec{Name: o.Name, Levels: o.Rules.Levels, Log: o.Logger}
	var last ledger.Snapshot // of this placer's leaderships
	for ctx.Err() == nil {
		err := o.Ledger.Campaign(ctx, spec, func(ctx context.Context, lease ledger.Lease) error {
			l := newLeader(o, lease, last)
			err := l.lead(ctx)
			last = l.snapshot
			return err
		})
		if ctx.Err() == nil {
			o.Logger.Warn("gave up the lead; starting anew", "error", err)
			sleep(ctx, restAfterLead)
		}
	}
	return nil
}

// leader is one term of leadership.
type leader struct {
	Options
	lease    ledger.Lease
	epoch    string // that this leadership has given the ledger
	snapshot ledger.Snapshot
	fresh    bool // snapshot was read after Nomad's state
	doubtful bool // something may have happened that snapshot does not show: read it before the next decision
	memory   Memory
	troubles map[string]time.Time // failures by their text, and when they were logged
}

// newLeader begins a term. last is what this placer knew of the ledger when it led before; the zero Snapshot: nothing.
func newLeader(o Options, lease ledger.Lease, last ledger.Snapshot) *leader {
	return &leader{Options: o, lease: lease, snapshot: last, doubtful: true, troubles: map[string]time.Time{}}
}

// lead decides until the lease is lost or the context ends.
func (l *leader) lead(ctx context.Context) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel(nil)
	snapshots := make(chan ledger.Snapshot, 1)
	following.Go(func() { cancel(l.follow(ctx, snapshots)) })

	tick := time.NewTicker(l.Tick)
	defer tick.Stop()
	for {
		again, err := l.decide(ctx)
		if err != nil {
			return err
		}
		if again && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, errSetBack) {
				return cause
			}
			return ctx.Err()
		case next := <-snapshots:
			l.take(next)
		case <-l.Nomad.Changed():
		case <-tick.C:
		}
	}
}

// begin gives the ledger the epoch of this leadership, and finds out whether it was set back since the last one.
func (l *leader) begin(ctx context.Context) error {
	snapshot, err := l.Ledger.Load(ctx)
	if err != nil {
		return fmt.Errorf("reading the ledger at the start of the lead: %w", err)
	}
	epoch, err := l.Ledger.NewEpoch(ctx, l.lease)
	if err != nil {
		return fmt.Errorf("giving the ledger its epoch: %w", err)
	}
	l.epoch = epoch.ID
	if l.memory.SetBack = snapshot.SetBackFrom(l.snapshot); l.memory.SetBack {
		l.Logger.Warn("the ledger was lost or set back; nothing is granted before all nodes have said what they remember")
	}
	return nil
}

// checked is a snapshot that this leader may decide on; errSetBack if the ledger is not the one any more that it has read.
func (l *leader) checked(next, last ledger.Snapshot) error {
	if next.EpochID != l.epoch || last.EpochID == l.epoch && next.SetBackFrom(last) {
		return fmt.Errorf("%w: from index %d to %d", errSetBack, last.Index, next.Index)
	}
	return nil
}

// follow hands out what the ledger holds whenever it changes, the newest only, until the context ends or the ledger was
// set back.
func (l *leader) follow(ctx context.Context, out chan ledger.Snapshot) error {
	down := false
	for last := (ledger.Snapshot{}); ; {
		next, err := l.Ledger.Follow(ctx, last.Index, followWait)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			if !down {
				l.Logger.Warn("consul does not answer; decisions are frozen", "error", err)
			}
			down = true
			sleep(ctx, time.Second)
			continue
		}
		if err := l.checked(next, last); err != nil {
			return err
		}
		if down {
			l.Logger.Info("consul answers")
			down = false
		}
		last = next
		select {
		case <-out: // replaced by a newer one
		default:
		}
		out <- next
	}
}

// take makes a snapshot that was followed the current one, unless a newer one was read meanwhile.
func (l *leader) take(next ledger.Snapshot) {
	if l.doubtful || next.Index < l.snapshot.Index {
		l.doubtful = true // read by itself: an index alone may mislead after deletions
		return
	}
	l.snapshot, l.fresh = next, false
}

// load reads the ledger as it is now.
func (l *leader) load(ctx context.Context) error {
	snapshot, err := l.Ledger.Load(ctx)
	if err != nil {
		return fmt.Errorf("reading the ledger: %w", err)
	}
	if err := l.checked(snapshot, l.snapshot); err != nil {
		return err
	}
	l.snapshot, l.fresh, l.doubtful = snapshot, true, false
	return nil
}

// decide takes one step and does what it says; again means that something was done, so that another step may follow at
// once. The only errors are those that end the lead.
func (l *leader) decide(ctx context.Context) (again bool, err error) {
	state := l.Nomad.State()
	if l.doubtful {
		if err := l.load(ctx); err != nil {
			return false, l.failed(ctx, err)
		}
	} else {
		l.fresh = false
	}
	actions := l.step(state)
	if !l.fresh && slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == Close }) {
		// Nomad may have told of an end before the ledger told of its success: ask the ledger again before judging.
		if err := l.load(ctx); err != nil {
			return false, l.failed(ctx, err)
		}
		actions = l.step(state)
	}
	for _, action := range actions {
		err := l.do(ctx, action, state)
		switch {
		case err == nil:
			again, l.doubtful = true, true
		case impossible(err): // and the others are none the worse for it
			l.noteTrouble(ctx, err)
		default:
			l.doubtful = true
			return false, l.failed(ctx, err)
		}
	}
	return again, nil
}

// impossible says whether an action fails for itself alone, however often it is tried.
func impossible(err error) bool {
	return errors.Is(err, errImpossible) || errors.Is(err, ledger.ErrTooLarge) || errors.Is(err, ledger.ErrForbidden) ||
		errors.Is(err, ledger.ErrNewerVersion)
}

// step is one pure step on what is known.
func (l *leader) step(state nomad.State) []Action {
	if l.Turn != nil {
		l.Turn()
	}
	now := l.Now()
	v := View{Ledger: l.snapshot, Nomad: state, Denied: l.Denied()}
	l.memory = Remember(l.memory, v, now)
	v.Memory = l.memory
	l.Nomad.Track(Tracked(l.snapshot))
	return l.Rules.Step(v, now)
}

// Tracked are the jobs whose end matters to the ledger.
func Tracked(s ledger.Snapshot) []nomad.JobID {
	var ids []nomad.JobID
	for _, g := range s.Gangs {
		ids = append(ids, jobOf(g.Doc))
	}
	for _, r := range s.Refusals {
		ids = append(ids, nomad.JobID{Namespace: r.Doc.Namespace, ID: r.Doc.Job})
	}
	slices.SortFunc(ids, nomad.JobID.Compare)
	return slices.Compact(ids)
}

// failed returns a failure that ends the lead; any other is logged and tried again later.
func (l *leader) failed(ctx context.Context, err error) error {
	if errors.Is(err, ledger.ErrNotLeader) || errors.Is(err, errSetBack) {
		return err
	}
	l.noteTrouble(ctx, err)
	return nil
}

// noteTrouble logs a failure that will be tried again, once for as long as it is the same. A conflict is none: somebody
// else wrote meanwhile.
func (l *leader) noteTrouble(ctx context.Context, err error) {
	text, now := err.Error(), l.Now()
	switch {
	case ctx.Err() != nil: // the lead ends anyway
	case errors.Is(err, ledger.ErrConflict):
		l.Logger.Debug("the ledger has changed; deciding again", "error", err)
	case l.troubles[text].IsZero() || now.Sub(l.troubles[text]) > troubleEvery:
		l.troubles[text] = now
		l.Logger.Warn("a decision could not be written; it will be tried again", "error", err)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
