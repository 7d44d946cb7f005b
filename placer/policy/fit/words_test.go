// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestRoughly(t *testing.T) {
	cases := map[string]struct {
		of   time.Duration
		want string
	}{
		"nothing left":                 {0, "10s"},
		"a moment":                     {time.Millisecond, "10s"},
		"rounded up to ten seconds":    {31 * time.Second, "40s"},
		"whole minutes below two":      {time.Minute, "1m"},
		"just two minutes":             {2 * time.Minute, "2m"},
		"rounded up to minutes":        {2*time.Minute + time.Second, "3m"},
		"ten minutes keep their zero":  {10 * time.Minute, "10m"},
		"an hour":                      {time.Hour, "1h"},
		"hours and minutes":            {90*time.Minute - time.Second, "1h30m"},
		"days are told in hours":       {49 * time.Hour, "49h"},
		"seconds between two minutes":  {71 * time.Second, "1m20s"},
		"rounds up to the next hour":   {59*time.Minute + 30*time.Second, "1h"},
		"rounds up from below minutes": {51 * time.Second, "1m"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { must.Eq(t, c.want, roughly(c.of)) })
	}
}

func TestWords(t *testing.T) {
	must.Eq(t, "", list(nil))
	must.Eq(t, "a", list([]string{"a"}))
	must.Eq(t, "a and b", list([]string{"a", "b"}))
	must.Eq(t, "a, b and c", list([]string{"a", "b", "c"}))
	must.Eq(t, "1 node", count(1, "node"))
	must.Eq(t, "0 nodes", count(0, "node"))
	must.Eq(t, "b (2 of 3); a (1 of 3)", mostOften([]string{"b", "a", "b"}))
	must.Eq(t, "a (1 of 5); b (1 of 5); c (1 of 5); 2 other reasons", mostOften([]string{"e", "d", "c", "b", "a"}))
}

// TestPick checks that pick takes as few rooms as any choice could, and takes from the front where it may.
func TestPick(t *testing.T) {
	cases := map[string]struct {
		rooms       []int
		need, limit int
		want        []int
	}{
		"nothing needed":                    {[]int{1, 2}, 0, 9, nil},
		"the first that is large enough":    {[]int{1, 4, 8}, 3, 9, []int{1}},
		"fewest, though the first would do": {[]int{1, 1, 2}, 2, 9, []int{2}},
		"small ones where the rest allows":  {[]int{1, 2, 3, 4}, 5, 9, []int{0, 3}},
		"too little, all that there is":     {[]int{1, 2}, 9, 9, []int{1, 0}},
		"too little within the limit":       {[]int{1, 2, 3}, 6, 2, []int{2, 1}},
		"no room at all":                    {[]int{0, 0}, 1, 9, []int{0}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { must.Eq(t, c.want, pick(c.rooms, c.need, c.limit, nil)) })
	}
	rapid.Check(t, func(t *rapid.T) {
		rooms := rapid.SliceOfN(rapid.IntRange(0, 6), 0, 8).Draw(t, "rooms")
		need := rapid.IntRange(1, 20).Draw(t, "need")
		picked := pick(rooms, need, len(rooms), nil)
		got := 0
		for _, at := range picked {
			got += rooms[at]
		}
		fewestOf := len(rooms) + 1
		for chosen := range 1 << len(rooms) {
			total, n := 0, 0
			for at, room := range rooms {
				if chosen>>at&1 == 1 {
					total, n = total+room, n+1
				}
			}
			if total >= need {
				fewestOf = min(fewestOf, n)
			}
		}
		if fewestOf <= len(rooms) {
			must.Eq(t, fewestOf, len(picked))
			must.GreaterEq(t, need, got)
		}
	})
}
