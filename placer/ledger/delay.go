// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import "time"

// The labels of queued time, as package model names its causes.
const (
	DelayFairShare     = "fair-share"
	DelayFragmentation = "fragmentation"
)

// Delay is what the time is put down to that a gang has waited, over all its runs: the split of Jeon et al., USENIX ATC
// 2019, section 3.1, and what is neither of the two. Of the time since Since, which is in no sum yet, only the label is
// kept, so that nothing need be written for time to pass; At adds it.
type Delay struct {
	FairShareMS     int64      `json:"fair_share_ms,omitempty"`
	FragmentationMS int64      `json:"fragmentation_ms,omitempty"`
	OwnMS           int64      `json:"own_ms,omitempty"` // held, in back-off, no placer led, or asking for what the cluster can't give
	Cause           string     `json:"cause,omitempty"`  // of the time since Since; empty: nobody has looked yet
	Since           *time.Time `json:"since,omitempty"`  // nil: the gang does not wait
}

// At has the time until now in the sums, and goes on from there. Parts of a millisecond are left for the next time, so that
// the sums never lose any.
func (d Delay) At(now time.Time) Delay {
	if d.Since == nil {
		return d
	}
	ms := max(now.Sub(*d.Since), 0).Milliseconds()
	switch d.Cause {
	case DelayFairShare:
		d.FairShareMS += ms
	case DelayFragmentation:
		d.FragmentationMS += ms
	default:
		d.OwnMS += ms
	}
	since := d.Since.Add(time.Duration(ms) * time.Millisecond)
	d.Since = &since
	return d
}

// From is a delay that runs from a moment on, with its cause not known yet.
func (d Delay) From(since time.Time) Delay {
	d = d.Ended(since)
	d.Since = &since
	return d
}

// Becoming is a delay whose time is of another cause from now on. Time before anybody has looked is of the first cause.
func (d Delay) Becoming(cause string, now time.Time) Delay {
	if d.Cause == "" {
		d.Cause = cause
	}
	d = d.At(now)
	d.Cause = cause
	return d
}

// Ended is a delay of a gang that waits no more.
func (d Delay) Ended(now time.Time) Delay {
	d = d.At(now)
	d.Cause, d.Since = "", nil
	return d
}

// Total is the time in the sums.
func (d Delay) Total() time.Duration {
	return time.Duration(d.FairShareMS+d.FragmentationMS+d.OwnMS) * time.Millisecond
}
