// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

func TestNext(t *testing.T) {
	cases := map[string]struct{ after, want time.Duration }{
		"before the start":        {-time.Hour, 15 * time.Minute},
		"at the start":            {0, 15 * time.Minute},
		"just before one is due":  {15*time.Minute - 1, 15 * time.Minute},
		"at the instant":          {15 * time.Minute, 30 * time.Minute},
		"a late one":              {16 * time.Minute, 30 * time.Minute},
		"after being down for 5h": {5*time.Hour + time.Minute, 5*time.Hour + 15*time.Minute},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			must.Eq(t, at(c.want), Next(start, 15*time.Minute, at(c.after)))
		})
	}
}

func TestNextNeverDrifts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "interval"))
		after := at(time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "after")))
		next := Next(start, interval, after)
		if !next.After(after) || next.Sub(after) > interval || next.Sub(start)%interval != 0 {
			t.Fatalf("next checkpoint after %s, every %s, is %s", after, interval, next)
		}
	})
}

// A loop as the driver's, in fake time: however long a checkpoint takes, the next keeps to the grid.
func TestTimersKeepTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, interval := time.Now(), time.Minute
		last := begun
		for _, takes := range []time.Duration{time.Second, 30 * time.Second, 59 * time.Second, 150 * time.Second, 0} {
			due := Next(begun, interval, last)
			time.Sleep(time.Until(due))
			must.Eq(t, 0, time.Since(begun)%interval)
			time.Sleep(takes)
			last = time.Now()
		}
		must.Eq(t, 7*time.Minute, time.Since(begun)) // 1, 2, 3, 4 and, as the fourth took until 6:30, 7
	})
}

func file(name string, modified time.Duration, bytes int64) Entry {
	return Entry{Name: name, Modified: at(modified), Bytes: bytes, Files: 1}
}

type look struct {
	now     time.Duration
	entries []Entry
}

func TestObserve(t *testing.T) {
	old := file("step-100.pt", -time.Hour, 10)
	whole := Entry{Name: "step-200", Modified: at(2 * time.Second), Bytes: 100, Files: 4}
	marked := whole
	marked.Marked, marked.Files = true, 5
	cases := map[string]struct {
		before []Entry
		looks  []look
		want   string        // entry; empty: not finished
		at     time.Duration // when it was complete
	}{
		"nothing new": {before: []Entry{old}, looks: []look{{time.Second, []Entry{old}}, {time.Hour, []Entry{old}}}},
		"a file that appears and settles": {
			before: []Entry{old},
			looks: []look{
				{time.Second, []Entry{old, file("step-200.pt", time.Second, 5)}},
				{2 * time.Second, []Entry{old, file("step-200.pt", 2*time.Second, 10)}},
				{3 * time.Second, []Entry{old, file("step-200.pt", 2*time.Second, 10)}},
				{4 * time.Second, []Entry{old, file("step-200.pt", 2*time.Second, 10)}},
			},
			want: "step-200.pt", at: 2 * time.Second,
		},
		"a file that still grows": {
			looks: []look{
				{time.Second, []Entry{file("a", time.Second, 5)}},
				{3 * time.Second, []Entry{file("a", 3*time.Second, 6)}},
				{4 * time.Second, []Entry{file("a", 3*time.Second, 6)}},
			},
		},
		"one file written over": {
			before: []Entry{file("last.pt", 0, 10)},
			looks:  []look{{time.Second, []Entry{file("last.pt", time.Second, 10)}}, {3 * time.Second, []Entry{file("last.pt", time.Second, 10)}}},
			want:   "last.pt", at: time.Second,
		},
		"a temporary name counts for nothing": {
			looks: []look{{time.Second, []Entry{file("step.pt.tmp", 0, 1), file("tmp_x", 0, 1), file(".step", 0, 1)}}, {time.Hour, []Entry{file("step.pt.tmp", 0, 1), file("tmp_x", 0, 1), file(".step", 0, 1)}}},
		},
		"renamed into place, it must settle": {
			looks: []look{
				{time.Second, []Entry{file("step.pt.tmp", 0, 9)}},
				{2 * time.Second, []Entry{file("step.pt", 0, 9)}},
				{4 * time.Second, []Entry{file("step.pt", 0, 9)}},
			},
			want: "step.pt", at: 2 * time.Second,
		},
		"a marker needs no settling": {
			looks: []look{{3 * time.Second, []Entry{marked}}},
			want:  "step-200", at: 3 * time.Second,
		},
		"a pointer file says that it is done": {
			before: []Entry{file("latest", -time.Hour, 8)},
			looks:  []look{{3 * time.Second, []Entry{whole, file("latest", 3*time.Second, 8)}}},
			want:   "step-200", at: 3 * time.Second,
		},
		"a pointer alone is no checkpoint": {
			looks: []look{{3 * time.Second, []Entry{file("latest", 0, 8)}}, {time.Hour, []Entry{file("latest", 0, 8)}}},
		},
		"two shards settle together, the newest names it": {
			looks: []look{
				{time.Second, []Entry{file("rank-0.pt", time.Second, 5)}},
				{2 * time.Second, []Entry{file("rank-0.pt", time.Second, 5), file("rank-1.pt", 2*time.Second, 5)}},
				{3 * time.Second, []Entry{file("rank-0.pt", time.Second, 5), file("rank-1.pt", 2*time.Second, 5)}},
				{4 * time.Second, []Entry{file("rank-0.pt", time.Second, 5), file("rank-1.pt", 2*time.Second, 5)}},
			},
			want: "rank-1.pt", at: 2 * time.Second,
		},
		"a new one replaces an old one that is deleted": {
			before: []Entry{old},
			looks:  []look{{time.Second, []Entry{file("step-200.pt", time.Second, 5)}}, {3 * time.Second, []Entry{file("step-200.pt", time.Second, 5)}}},
			want:   "step-200.pt", at: time.Second,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			watch := NewWatch(c.before)
			var got Finished
			var done bool
			for i, look := range c.looks {
				got, done = watch.Observe(at(look.now), look.entries)
				must.True(t, !done || i == len(c.looks)-1, must.Sprintf("finished too early, at look %d", i))
			}
			must.Eq(t, c.want != "", done)
			if done {
				must.Eq(t, Finished{Entry: c.want, At: at(c.at)}, got)
			}
		})
	}
}

func TestObserveDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Entry {
			return file(rapid.StringMatching(`[a-c]{1,2}`).Draw(t, "name"), time.Duration(rapid.IntRange(0, 3).Draw(t, "modified"))*time.Second, 1)
		}), 1, 6, func(e Entry) string { return e.Name }).Draw(t, "entries")
		shuffled := rapid.Permutation(entries).Draw(t, "shuffled")
		one, other := NewWatch(nil), NewWatch(nil)
		for _, now := range []time.Duration{0, Settle} {
			a, doneA := one.Observe(at(now), entries)
			b, doneB := other.Observe(at(now), shuffled)
			if a != b || doneA != doneB {
				t.Fatalf("%v %v, shuffled %v %v", a, doneA, b, doneB)
			}
		}
	})
}

func TestScan(t *testing.T) {
	dir := t.TempDir()
	entries, err := Scan(filepath.Join(dir, "not-there"))
	must.NoError(t, err)
	must.SliceEmpty(t, entries)
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "step-1", "rank0"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "step-1", "rank0", "data"), []byte("12345"), 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "step-1", ".metadata"), []byte("1"), 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "single.pt"), []byte("123"), 0o600))
	entries, err = Scan(dir)
	must.NoError(t, err)
	must.Len(t, 2, entries)
	must.Eq(t, "single.pt", entries[0].Name)
	must.Eq(t, 3, entries[0].Bytes)
	must.Eq(t, "step-1", entries[1].Name)
	must.Eq(t, 2, entries[1].Files)
	must.Eq(t, 6, entries[1].Bytes)
	must.True(t, entries[1].Marked)
	entries, err = Scan(filepath.Join(dir, "single.pt"))
	must.NoError(t, err)
	must.Eq(t, "single.pt", entries[0].Name)
}
