// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	// LeaseTTL is how long a leader that can't be reached keeps the lead: its check fails after that time without a
	// sign of life.
	LeaseTTL = 3 * time.Second
	// actFor is how long a leader acts after its last sign of life by its own clock: shorter than LeaseTTL, so that two
	// clocks that run a little apart never make two leaders.
	actFor = LeaseTTL * 9 / 10
	// renewEvery leaves two more tries when one fails.
	renewEvery = LeaseTTL / 3
	// stepDownTimeout is how long a leader tries to hand over when it ends.
	stepDownTimeout = 2 * time.Second
	// watchWait is how long a candidate asks at a time whether the lead is free.
	watchWait = time.Minute
	// campaignPause is how long a candidate waits after an error.
	campaignPause = time.Second
	// candidateService is the name under which the checks of placers appear in Consul.
	candidateService = "muster-placer"
)

// CandidateSpec describes a placer that wants to lead.
type CandidateSpec struct {
	Name   string       // for people: shown as the leader's name
	Levels []string     // topology levels by which it decides, outermost first: for whoever asks what it would decide
	Log    *slog.Logger // told when the lead is won or lost, and what keeps this placer from it; nil: nobody is
}

// Campaign waits until this placer can lead, calls lead, and starts over when the lease is lost. It returns when ctx ends
// or lead returns while it still leads: then it hands over at once and returns what lead returned. The context of lead
// ends when the lease is lost, or could not be renewed within nine tenths of LeaseTTL by this process's monotonic clock; a change that
// is under way then is refused by the ledger. A store that can't be reached is waited for.
func (l *Ledger) Campaign(ctx context.Context, spec CandidateSpec, lead func(ctx context.Context, lease Lease) error) error {
	if spec.Log == nil {
		spec.Log = slog.New(slog.DiscardHandler)
	}
	for said := ""; ; {
		led, err := l.round(ctx, spec, lead)
		switch {
		case led:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			said = ""
			continue
		case err.Error() != said:
			said = err.Error()
			spec.Log.Warn("can't lead; trying on", "error", err)
		}
		if !pause(ctx, campaignPause) {
			return ctx.Err()
		}
	}
}

// round is one try to lead; led says that lead was called and returned while it led, with its error.
func (l *Ledger) round(ctx context.Context, spec CandidateSpec, lead func(context.Context, Lease) error) (led bool, err error) {
	if err := l.awaitFree(ctx); err != nil {
		return false, err
	}
	check := CheckSpec{ID: candidateService + "-" + rand.Text(), Service: candidateService, TTL: LeaseTTL}
	start := time.Now()
	var session string
	defer func() {
		if err := l.stepDown(ctx, check, session); err != nil {
			spec.Log.Warn("could not hand the lead over cleanly; the next placer waits for up to 3 s", "error", err)
		}
	}()
	if err := l.store.RegisterCheck(ctx, check); err != nil {
		return false, err
	}
	session, err = l.store.CreateSession(ctx, SessionSpec{Name: candidateService + " " + spec.Name, Checks: []string{check.ID}})
	if err != nil {
		return false, err
	}
	lease := Lease{Session: session, Key: l.keys.Leader()}
	if won, err := l.lock(ctx, lease, spec); err != nil || !won {
		return false, err
	}
	spec.Log.Info("leading")
	err = l.hold(ctx, lease, check, start, lead)
	if errors.Is(err, ErrNotLeader) {
		spec.Log.Warn("not leading any more")
		return false, nil
	}
	return true, err
}

// hold calls lead and renews the lease meanwhile; ErrNotLeader: it was lost.
func (l *Ledger) hold(ctx context.Context, lease Lease, check CheckSpec, renewed time.Time, lead func(context.Context, Lease) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		cancel(l.renew(ctx, lease, check, renewed))
	}()
	err := lead(ctx, lease)
	cancel(nil)
	<-renewing
	if cause := context.Cause(ctx); errors.Is(cause, ErrNotLeader) {
		return cause
	}
	return err
}

// awaitFree waits until nobody holds the leader key.
func (l *Ledger) awaitFree(ctx context.Context) error {
	for index := uint64(0); ; {
		entry, next, err := l.store.Watch(ctx, l.keys.Leader(), index, watchWait)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("waiting to lead: %w", err)
		}
		if entry.Session == "" {
			return nil
		}
		index = next
	}
}

// errLeaseLost is why the context of a leader ends that has lost its lease.
var errLeaseLost = fmt.Errorf("the lease was lost: %w", ErrNotLeader)

// lock takes the leader key; won is false when somebody else has it.
func (l *Ledger) lock(ctx context.Context, lease Lease, spec CandidateSpec) (won bool, err error) {
	value, err := json.Marshal(leaderDoc{Name: spec.Name, Since: time.Now().UTC(), Levels: spec.Levels})
	if err != nil {
		return false, err
	}
	for {
		_, err := l.store.Txn(ctx, []Op{{Verb: Lock, Key: lease.Key, Value: value, Session: lease.Session}})
		if err == nil || !retry(ctx, err) {
			return err == nil, err
		}
		// Refused while the lock delay of the last holder runs, or because somebody else has it.
		entry, err := l.store.Get(ctx, lease.Key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return false, err
		}
		if entry.Session != "" {
			return entry.Session == lease.Session, nil
		}
		// On a machine that is too busy the candidate's own check may have failed already: then another round helps.
		if err := l.store.RenewSession(ctx, lease.Session); errors.Is(err, ErrNoSession) {
			return false, nil
		}
	}
}

// renew keeps the lease until ctx ends or it is lost, and says which.
func (l *Ledger) renew(ctx context.Context, lease Lease, check CheckSpec, renewed time.Time) error {
	deadline := time.NewTimer(time.Until(renewed.Add(actFor)))
	defer deadline.Stop()
	results := make(chan error, 1)
	for start := time.Now(); ; {
		go func() { results <- l.renewOnce(ctx, lease, check) }()
		select {
		case <-ctx.Done():
			return ctx.Err() // renewOnce ends with ctx
		case <-deadline.C:
			return errLeaseLost
		case err := <-results:
			if errors.Is(err, ErrNotLeader) {
				return errLeaseLost
			}
			if err == nil {
				deadline.Reset(time.Until(start.Add(actFor)))
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return errLeaseLost
		case <-time.After(time.Until(start.Add(renewEvery))):
		}
		start = time.Now()
	}
}

// renewOnce gives a sign of life to the agent, and asks the servers whether the lock is still held: an agent that is cut
// off from them would go on passing the check.
func (l *Ledger) renewOnce(ctx context.Context, lease Lease, check CheckSpec) error {
	if err := l.store.PassCheck(ctx, check); err != nil {
		return err
	}
	entry, err := l.store.Get(ctx, lease.Key)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && entry.Session != lease.Session:
		return ErrNotLeader
	default:
		return err
	}
}

// stepDown ends the session, which frees the leader key, and removes the check. It goes on when ctx has ended.
func (l *Ledger) stepDown(ctx context.Context, check CheckSpec, session string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepDownTimeout)
	defer cancel()
	var err error
	if session != "" {
		err = l.store.DestroySession(ctx, session)
	}
	return errors.Join(err, l.store.RemoveCheck(ctx, check))
}
