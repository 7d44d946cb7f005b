// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package queues

import (
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestAdvance(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	empty := Account{At: start}
	for name, tc := range map[string]struct {
		before  map[string]float64
		held    map[string]int
		after   time.Duration
		want    map[string]float64
		nearest float64
	}{
		"a moment counts in full":           {held: map[string]int{"a": 8}, after: time.Second, want: map[string]float64{"a": 8}, nearest: 0.01},
		"half is left after a half-life":    {before: map[string]float64{"a": 100}, after: time.Hour, want: map[string]float64{"a": 50}, nearest: 1e-9},
		"use for ever comes to h/ln 2":      {held: map[string]int{"a": 1}, after: 1000 * time.Hour, want: map[string]float64{"a": 5193.7}, nearest: 0.1},
		"queues are apart":                  {before: map[string]float64{"a": 4}, held: map[string]int{"b": 2}, after: time.Second, want: map[string]float64{"a": 4, "b": 2}, nearest: 0.01},
		"what is next to nothing goes":      {before: map[string]float64{"a": 1}, after: 10 * time.Hour, want: map[string]float64{}},
		"a clock that went back adds none":  {before: map[string]float64{"a": 4}, held: map[string]int{"a": 8}, after: -time.Hour, want: map[string]float64{"a": 4}},
		"nobody has used or holds anything": {after: time.Hour, want: map[string]float64{}},
	} {
		t.Run(name, func(t *testing.T) {
			a := empty
			a.GPUSeconds = tc.before
			got := a.Advance(start.Add(tc.after), tc.held, time.Hour)
			must.MapLen(t, len(tc.want), got.GPUSeconds)
			for queue, want := range tc.want {
				must.InDelta(t, want, got.GPUSeconds[queue], tc.nearest+1e-12)
			}
			must.Eq(t, start.Add(tc.after), got.At)
		})
	}
}

// TestAdvance_AnotherHalfLife: an operator who changes the half-life does not change what queues have used on average.
func TestAdvance_AnotherHalfLife(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	steady := Account{At: start}.Advance(start.Add(1000*time.Hour), map[string]int{"a": 8}, time.Hour)
	for _, halfLife := range []time.Duration{time.Hour, 24 * time.Hour, time.Minute} {
		got := steady.Advance(steady.At, nil, halfLife)
		must.InDelta(t, 8, got.GPUSeconds["a"]*math.Ln2/halfLife.Seconds(), 1e-9)
		must.Eq(t, got, got.Advance(got.At, nil, halfLife))
	}
}

// TestAdvance_InAnySteps: cutting time into pieces changes nothing.
func TestAdvance_InAnySteps(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		halfLife := time.Duration(rapid.Int64Range(int64(time.Minute), int64(30*24*time.Hour)).Draw(t, "half-life"))
		used := rapid.Float64Range(0, 1e9).Draw(t, "used")
		held := map[string]int{"a": rapid.IntRange(1, 10000).Draw(t, "held")}
		whole := time.Duration(rapid.Int64Range(0, int64(60*24*time.Hour)).Draw(t, "time"))
		part := time.Duration(rapid.Int64Range(0, int64(whole)).Draw(t, "part"))

		before := Account{At: start, GPUSeconds: map[string]float64{"a": used}}
		once := before.Advance(start.Add(whole), held, halfLife)
		twice := before.Advance(start.Add(part), held, halfLife).Advance(start.Add(whole), held, halfLife)
		must.InDelta(t, once.GPUSeconds["a"], twice.GPUSeconds["a"], 1e-6*(1+once.GPUSeconds["a"]))
		must.LessEq(t, used+float64(held["a"])*whole.Seconds()+1e-6, once.GPUSeconds["a"])
	})
}
