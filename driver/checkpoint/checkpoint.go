// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package checkpoint decides when a task is asked to checkpoint, which of its processes are asked, and whether a
// checkpoint has been finished. It sends no signal and keeps no timer: the decisions are functions of values, and Scan
// alone reads files. Package driver imports it.
package checkpoint

import "time"

// Next is the first instant after a given one at which a checkpoint is due: a whole number of intervals after start, so
// that a late one shifts none of those that follow, and those missed meanwhile are not made up for. interval must be
// positive.
func Next(start time.Time, interval time.Duration, after time.Time) time.Time {
	passed := after.Sub(start)
	if passed < 0 {
		return start.Add(interval)
	}
	return start.Add((passed/interval + 1) * interval)
}
