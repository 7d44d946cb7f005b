// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// TestDelaysSumToTheWait: whenever and however often the account is written, its labels sum to the time waited.
func TestDelaysSumToTheWait(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		begin := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
		now, delay, waited, since := begin, Delay{}, time.Duration(0), time.Time{}
		byCause := map[string]time.Duration{}
		settle := func() { // what nobody has looked at when the wait ends is of neither label
			byCause["own"] += byCause[""]
			byCause[""] = 0
		}
		for range rapid.IntRange(1, 50).Draw(rt, "steps") {
			step := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(rt, "step"))
			now = now.Add(step)
			if !since.IsZero() {
				waited += step
				byCause[delay.Cause] += step
			}
			switch rapid.SampledFrom([]string{"wait", "cause", "start", "look"}).Draw(rt, "event") {
			case "wait":
				settle()
				delay, since = delay.From(now), now
			case "start":
				settle()
				delay, since = delay.Ended(now), time.Time{}
			case "cause":
				if since.IsZero() {
					continue
				}
				cause := rapid.SampledFrom([]string{DelayFairShare, DelayFragmentation, "own"}).Draw(rt, "cause")
				if delay.Cause == "" {
					byCause[cause] += byCause[""]
					byCause[""] = 0
				}
				delay = delay.Becoming(cause, now)
			case "look":
			}
		}
		seen := delay.At(now)
		must.Between(rt, waited-100*time.Millisecond, seen.Total(), waited)
		near := func(want time.Duration, ms int64) {
			must.Between(rt, want-100*time.Millisecond, time.Duration(ms)*time.Millisecond, want+100*time.Millisecond)
		}
		near(byCause[DelayFairShare], seen.FairShareMS)
		near(byCause[DelayFragmentation], seen.FragmentationMS)
		settle()
		near(byCause["own"], seen.OwnMS)
	})
}
