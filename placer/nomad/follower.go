// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// FollowerOptions says how to follow Nomad.
type FollowerOptions struct {
	// Asks says whether a job asks for a gang. Only such jobs are kept.
	Asks func(*api.Job) bool
	// RelistInterval is how often everything is listed although no event told of a change. Default 30 s.
	RelistInterval time.Duration
	// Settle is the least time between two lists, so that a burst of events costs one. Default 100 ms. After a list that
	// took longer, the follower rests as long as it took.
	Settle time.Duration
	// Retry is the time between two tries while Nomad does not answer. Default 1 s.
	Retry time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger hears of outages, once per change. Default: nobody.
	Logger *slog.Logger
}

// listTimeout bounds one list, so that a Nomad that hangs shows as an outage.
const listTimeout = 30 * time.Second

func (o *FollowerOptions) defaults() {
	setDefault(&o.RelistInterval, 30*time.Second)
	setDefault(&o.Settle, 100*time.Millisecond)
	setDefault(&o.Retry, time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}

// Follower keeps a State up to date.
type Follower struct {
	options FollowerOptions
	lister  *lister
	changed chan struct{}

	mu      sync.Mutex // protects the fields below
	state   State
	tracked []JobID
}

// NewFollower makes a follower of the Nomad that the client reaches. Its state is stale until Run has listed once.
func NewFollower(c *api.Client, options FollowerOptions) *Follower {
	return newFollower(client{api: c}, options)
}

func newFollower(from source, options FollowerOptions) *Follower {
	options.defaults()
	return &Follower{
		options: options,
		lister:  newLister(from, options.Asks),
		changed: make(chan struct{}, 1),
		state:   State{Stale: "Nomad has not been listed yet"},
	}
}

// Read lists everything once. Tracked are the jobs whose end matters, see Follower.Track.
func Read(ctx context.Context, c *api.Client, asks func(*api.Job) bool, tracked []JobID, now time.Time) (State, error) {
	state, _, err := newLister(client{api: c}, asks).list(ctx, everything, tracked)
	state.FreshAt = now
	return state, err
}

// State is what Nomad said last.
func (f *Follower) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// Changed receives after the state has changed; several changes may show as one.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Track names the jobs whose end matters: when one of them is in no list any more, it is read by itself, and only a clear
// answer makes it Gone. A list that is filtered by rights thus never looks like a purge.
func (f *Follower) Track(ids []JobID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tracked = slices.Clone(ids)
}

// Run follows Nomad until the context ends. It never gives up: while Nomad does not answer, the last state stays, marked
// stale.
func (f *Follower) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			f.outage(err)
			rest(ctx, f.options.Retry)
		}
	}
}

// follow lists everything, then listens to events from there on until something breaks; nil means the stream ended.
func (f *Follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.list(ctx, everything); err != nil {
		return err
	}
	hints, err := f.lister.from.Events(ctx, f.State().Index)
	if err != nil {
		return err
	}
	relist := time.NewTicker(f.options.RelistInterval)
	defer relist.Stop()
	for {
		what := everything
		select {
		case <-ctx.Done():
			return nil
		case <-relist.C:
		case hint, open := <-hints:
			if !open {
				rest(ctx, f.options.Settle)
				return nil
			}
			if hint == 0 {
				continue
			}
			what = f.settle(ctx, hints, hint)
		}
		if err := f.list(ctx, what); err != nil {
			return err
		}
	}
}

// settle waits for a burst of events to pass and returns all that it asks for.
func (f *Follower) settle(ctx context.Context, hints <-chan kind, hint kind) kind {
	pause := time.NewTimer(max(f.options.Settle, min(f.lister.took, f.options.RelistInterval)))
	defer pause.Stop()
	for {
		select {
		case more, open := <-hints:
			if !open {
				return everything
			}
			hint |= more
		case <-pause.C:
			return hint
		case <-ctx.Done():
			return hint
		}
	}
}

// list brings the state up to date and publishes it.
func (f *Follower) list(ctx context.Context, what kind) error {
	f.mu.Lock()
	tracked := f.tracked
	f.mu.Unlock()
	begin := f.options.Now()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	next, moved, err := f.lister.list(ctx, what, tracked)
	if err != nil {
		return err
	}
	f.lister.took = f.options.Now().Sub(begin)
	next.FreshAt = begin
	f.mu.Lock()
	recovered := f.state.Stale != ""
	f.state = next
	f.mu.Unlock()
	if recovered {
		f.options.Logger.Info("nomad answers", "jobs", len(next.Jobs), "nodes", len(next.Nodes), "index", next.Index)
	}
	if moved || recovered {
		f.notify()
	}
	return nil
}

// outage marks the state as stale.
func (f *Follower) outage(err error) {
	f.mu.Lock()
	already := f.state.Stale == err.Error()
	was := f.state.Stale
	f.state.Stale = err.Error()
	first := f.state.FreshAt.IsZero()
	f.mu.Unlock()
	if already {
		return
	}
	if was == "" || first {
		f.options.Logger.Warn("nomad does not answer; decisions are frozen", "error", err)
	}
	f.notify()
}

func (f *Follower) notify() {
	select {
	case f.changed <- struct{}{}:
	default: // a notice is waiting already
	}
}

// rest waits, or returns at once when the context ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
