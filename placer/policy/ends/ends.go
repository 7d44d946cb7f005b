// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package ends says when gangs that run are expected to end. It reads no clock. The packages of the policy that plan ahead
// import it.
package ends

import (
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// outlasted is the part of what a gang has run by which it is expected to run on when it has outlasted all others like it.
const outlasted = 10

// Length returns how long a gang may run, or is expected to, and which of the two; zero if nothing is known.
func Length(g *model.Gang) (length time.Duration, stated bool) {
	if g.MaxRuntime > 0 {
		return g.MaxRuntime, true
	}
	return max(0, g.Expected), false
}

// End returns when a running gang is expected to end: after its stated longest run time, else after the time that others
// like it have taken, and when that has passed, after a tenth of what it has run. It is never in the past. The time is
// zero if nothing is known, and sure if it was stated and has not passed: nobody ends a gang that runs on.
func End(r *model.Running, now time.Time) (at time.Time, sure bool) {
	if r.Closing {
		return now, true
	}
	length, stated := Length(&r.Gang)
	if length == 0 {
		return time.Time{}, false
	}
	start := since(r)
	at = start.Add(length)
	if at.After(now) || stated && at.Equal(now) {
		return at, stated
	}
	return now.Add(max(0, now.Sub(start)) / outlasted), false
}

// DefaultLength is what a gang is taken to run of which nothing is known, where a guess is better than nothing: between the
// median and the mean of Philly's jobs, 15 minutes and 5 hours.
const DefaultLength = time.Hour

// Guess is End, but where nothing is known it guesses: DefaultLength in all, and when that has passed, as long again as the
// gang has run. The longer a training job has run, the longer it is likely to go on.
func Guess(r *model.Running, now time.Time) time.Time {
	if at, _ := End(r, now); !at.IsZero() {
		return at
	}
	start := since(r)
	if at := start.Add(DefaultLength); at.After(now) {
		return at
	}
	return now.Add(now.Sub(start))
}

func since(r *model.Running) time.Time {
	if r.Started.IsZero() {
		return r.Granted
	}
	return r.Started
}
