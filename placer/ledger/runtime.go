// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// MaxRunTimes is how many names run times are remembered for; the one that finished a run longest ago leaves first.
const MaxRunTimes = 500

// RunTimeID names gangs that are expected to run for about as long as one another: those of one job name in one queue.
type RunTimeID struct{ Queue, Namespace, Job string }

// RunTime is how long the gangs of one name have run.
type RunTime struct {
	Version   int       `json:"version"`
	Queue     string    `json:"queue"`
	Namespace string    `json:"namespace"`
	Job       string    `json:"job"`       // without what Nomad adds to the ID of a dispatched or periodic child
	TypicalS  float64   `json:"typical_s"` // seconds; see With
	Count     int       `json:"count"`     // runs that it rests on
	At        time.Time `json:"at"`        // end of the last one
}

// runTimeMemory is after how many runs the weight of a new one stops to shrink, so that old ones fade.
const runTimeMemory = 8

// With is the run time with one more run. TypicalS is the geometric mean, which for times that are spread over orders of
// magnitude (as they are: Jeon et al., USENIX ATC 2019, section 3.1) lies near the median and is not moved by one that is far
// out: of the first runs with equal weight, from then on exponentially weighted in the logarithm.
func (r RunTime) With(ran time.Duration, now time.Time) RunTime {
	x := math.Log(max(ran.Seconds(), 1))
	r.Count++
	weight := 1 / float64(min(r.Count, runTimeMemory))
	if r.Count > 1 {
		x = (1-weight)*math.Log(max(r.TypicalS, 1)) + weight*x
	}
	r.TypicalS, r.At = math.Round(math.Exp(x)*1000)/1000, now
	return r
}

// Typical is how long another such gang is expected to run; 0: nothing is known.
func (r RunTime) Typical() time.Duration { return time.Duration(r.TypicalS * float64(time.Second)) }

func (r RunTime) id() RunTimeID { return RunTimeID{Queue: r.Queue, Namespace: r.Namespace, Job: r.Job} }

// leaving are the run times that make room for another one.
func leaving(known map[RunTimeID]Versioned[RunTime], next RunTimeID) []RunTimeID {
	if _, there := known[next]; there || len(known) < MaxRunTimes {
		return nil
	}
	byAge := slices.SortedFunc(maps.Keys(known), func(a, b RunTimeID) int {
		return cmp.Or(known[a].Doc.At.Compare(known[b].Doc.At), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
	})
	return byAge[:1]
}

// Learn adds a run that has ended to a change, if there is room in it: how long gangs of that name have run is written in
// the transaction in which one of them ends.
func (c Change) Learn(s Snapshot, id RunTimeID, ran time.Duration, now time.Time) Change {
	if s.unreadable(s.keys.RunTime(id)) {
		return c
	}
	r := s.RunTimes[id].Doc
	r.Version, r.Queue, r.Namespace, r.Job = Version, id.Queue, id.Namespace, id.Job
	r = r.With(ran, now)
	c.RunTime, c.Forgotten = &r, leaving(s.RunTimes, id)
	return c
}

// runTimeOps writes what was learned. The leader is the only writer, so that no index need be right.
func (l *Ledger) runTimeOps(c Change) []Op {
	if c.RunTime == nil {
		return nil
	}
	ops := []Op{{Verb: Set, Key: l.keys.RunTime(c.RunTime.id()), Value: encode(*c.RunTime)}}
	for _, id := range c.Forgotten {
		ops = append(ops, Op{Verb: Delete, Key: l.keys.RunTime(id)})
	}
	return ops
}
