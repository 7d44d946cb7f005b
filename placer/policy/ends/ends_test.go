// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ends

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/model"
)

func TestEnd(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		stated, expected, passed time.Duration
		closing                  bool
		want                     time.Duration // after the start; negative: not known
		sure                     bool
	}{
		"as stated":                           {stated: 2 * time.Hour, expected: time.Hour, passed: time.Hour, want: 2 * time.Hour, sure: true},
		"at the very moment":                  {stated: 2 * time.Hour, passed: 2 * time.Hour, want: 2 * time.Hour, sure: true},
		"one that overruns is not sure":       {stated: 2 * time.Hour, passed: 10 * time.Hour, want: 11 * time.Hour},
		"as others like it":                   {expected: 2 * time.Hour, passed: time.Hour, want: 2 * time.Hour},
		"one that has outlasted others":       {expected: 2 * time.Hour, passed: 10 * time.Hour, want: 11 * time.Hour},
		"nothing is known":                    {passed: time.Hour, want: -1},
		"one that closes, whatever it stated": {stated: 2 * time.Hour, passed: time.Hour, closing: true, want: time.Hour, sure: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := model.Running{Gang: model.Gang{MaxRuntime: tc.stated, Expected: tc.expected}, Started: start, Closing: tc.closing}
			at, sure := End(&r, start.Add(tc.passed))
			must.EqOp(t, tc.sure, sure)
			must.EqOp(t, tc.want < 0, at.IsZero())
			if tc.want >= 0 {
				must.EqOp(t, tc.want, at.Sub(start))
			}
		})
	}
}
