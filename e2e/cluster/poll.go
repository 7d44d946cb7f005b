// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"time"
)

// pollEvery is how often a condition is looked at.
const pollEvery = 100 * time.Millisecond

// Poll looks at a condition until it holds. The condition says in state what it sees, which the error tells when the
// limit or the context is over first.
func Poll(ctx context.Context, what string, limit time.Duration, holds func(ctx context.Context) (ok bool, state string)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	seen := "not looked yet"
	for {
		ok, state := holds(ctx)
		if ok {
			return nil
		}
		if ctx.Err() == nil { // else it may only say that there was no time to look
			seen = state
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %s", limit, what, seen)
		case <-tick.C:
		}
	}
}

// await is Poll for the start of a cluster: it gives up at once when a program has ended.
func (c *Cluster) await(ctx context.Context, what string, holds func(ctx context.Context) (ok bool, state string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := ""
	err := Poll(ctx, what, readyWithin, func(ctx context.Context) (bool, string) {
		ok, state := holds(ctx)
		if ended = c.ended(); !ok && ended != "" {
			cancel()
		}
		return ok, state
	})
	if err != nil && ended != "" {
		return fmt.Errorf("%s has ended: %w", ended, err)
	}
	return err
}

// ended names a program that does not run; empty: all do.
func (c *Cluster) ended() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if !p.Running() {
			return p.Name
		}
	}
	return ""
}
