// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

var someTime = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// TestTypicalRunTimeIsNearTheMedian: also of times that are spread over orders of magnitude.
func TestTypicalRunTimeIsNearTheMedian(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const median, trials = 3600.0, 400
	sum := 0.0
	for range trials {
		var r RunTime
		for range 30 {
			r = r.With(time.Duration(median*math.Exp(random.NormFloat64())*float64(time.Second)), someTime)
		}
		sum += math.Log(r.TypicalS / median)
	}
	must.Between(t, -0.1, sum/trials, 0.1)
}

// TestTypicalRunTimeFollows: one run is all that is known, one far out moves little, and what was long ago fades.
func TestTypicalRunTimeFollows(t *testing.T) {
	r := RunTime{}.With(time.Hour, someTime)
	must.Eq(t, time.Hour, r.Typical().Round(time.Second))
	for range 9 {
		r = r.With(time.Hour, someTime)
	}
	must.Less(t, 2*time.Hour, r.With(100*time.Hour, someTime).Typical())
	for range 30 {
		r = r.With(time.Minute, someTime)
	}
	must.Between(t, time.Minute, r.Typical(), 2*time.Minute)
	must.Eq(t, 40, r.Count)
}

// TestRunTimesAreBounded: names that nobody uses any more make room.
func TestRunTimesAreBounded(t *testing.T) {
	l := New(NewMemory(), "global")
	lease := lead(t, l, "placer")
	for i := range MaxRunTimes + 3 {
		s := load(t, l)
		g := Gang{Version: Version, Name: fmt.Sprintf("g%d", i), State: GangFinished}
		c := Change{Gang: &Versioned[Gang]{Doc: g}}
		_, err := l.Commit(t.Context(), lease, c.Learn(s, RunTimeID{"default", "default", g.Name}, time.Minute, someTime.Add(time.Duration(i)*time.Second)))
		must.NoError(t, err)
	}
	known := load(t, l).RunTimes
	must.MapLen(t, MaxRunTimes, known)
	must.MapNotContainsKey(t, known, RunTimeID{"default", "default", "g2"})
	must.MapContainsKey(t, known, RunTimeID{"default", "default", "g3"})
}
