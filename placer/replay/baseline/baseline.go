// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package baseline holds the schedulers that a replay compares with: what clusters commonly run, and what could be had by
// knowing the future. They choose which gangs start; where members go package fit decides for all of them, so that a
// comparison is about the rules alone. They are pure functions like the policy itself and serve no cluster. Package
// replay imports them.
package baseline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

// Decider is a scheduler.
type Decider func(s model.Snapshot, k Knowledge, now time.Time) model.Decision

// Knowledge is what only a replay knows of a gang that waits or runs.
type Knowledge struct {
	Remaining func(gang string) time.Duration // run time that is left at full speed
	Served    func(gang string) float64       // GPU-seconds that it has had so far
}

// Muster is the name of the policy that the placer runs.
const Muster = "muster"

// New returns a scheduler by its name. It is for one replay: what it keeps from one decision to the next makes it faster,
// and never shows in an answer.
func New(name string) (Decider, error) {
	if name == Muster {
		var muster policy.Decider
		return func(s model.Snapshot, _ Knowledge, now time.Time) model.Decision { return muster.Decide(s, now) }, nil
	}
	decide, known := baselines()[name]
	if !known {
		return nil, fmt.Errorf("no policy is called %q: there are %s", name, strings.Join(Names(), ", "))
	}
	cluster := &fit.Cluster{}
	return func(s model.Snapshot, k Knowledge, now time.Time) model.Decision {
		r := newRound(cluster, s, k, now)
		decide(r)
		return r.decision
	}, nil
}

// baselines are all schedulers but the placer's. Only srtf, srtf-preempt and las ask for knowledge.
func baselines() map[string]func(*round) {
	return map[string]func(*round){
		"fifo": fifo, "firstfit": firstFit, "philly": philly, "las": las, "srtf": srtf, "srtf-preempt": srtfPreempt,
	}
}

// Names lists the schedulers, the placer's first.
func Names() []string { return append([]string{Muster}, slices.Sorted(maps.Keys(baselines()))...) }
