// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoenig/test/must"
)

// keepsCheckpointInterval: the declared interval is kept within 1 s, and a stop checkpoints first.
func keepsCheckpointInterval(s *stage) {
	const interval, rounds = 5, 4
	dir := s.sharedDir("saver")
	// Each member has a place of its own: in a common one the first finished checkpoint would be taken for all.
	s.run("checkpoint.nomad.hcl", map[string]string{
		"gang": "saver", "count": "2", "gpus": "2", "checkpoint_path": dir + "/${NOMAD_ALLOC_INDEX}", "checkpoint_interval": seconds(interval).String(),
		"args": hclList([]string{"-for", clusterLifetime.String(), "-checkpoint", dir + "/$${NOMAD_ALLOC_INDEX}", "-takes", "200ms"}),
	})
	ranks := s.awaitWhole("saver", 2, startWithin)
	for rank := range ranks {
		s.await(fmt.Sprintf("rank %d to be asked for %d checkpoints in a row as declared", rank, rounds), seconds(interval*rounds*10), func() (bool, string) {
			gaps := gapsOf(checkpoints(s, dir, rank))
			return longestRun(gaps, seconds(interval-1), seconds(interval+1)) >= rounds-1, fmt.Sprintf("they came %s apart", gaps)
		})
		s.t.Logf("rank %d was asked for checkpoints %s apart", rank, gapsOf(checkpoints(s, dir, rank)))
	}
	s.awaitShown(func() []string { return []string{"checkpoint"} }, "gang", "saver")

	stopped := time.Now()
	must.NoError(s.t, s.StopJob(s.ctx, "saver", false))
	s.await("the stopped gang to end", endWithin, func() (bool, string) {
		left := s.ranks("saver")
		return len(left) == 0, fmt.Sprintf("%d members", len(left))
	})
	for rank := range ranks {
		times := checkpoints(s, dir, rank)
		last := times[len(times)-1]
		s.t.Logf("rank %d: last checkpoint asked for %s after the stop", rank, last.Sub(stopped).Round(time.Millisecond))
		must.True(s.t, last.After(stopped), must.Sprintf("rank %d was stopped without a checkpoint", rank))
	}
}

// gapsOf are the times between each moment and the next.
func gapsOf(times []time.Time) []time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i].Sub(times[i-1]).Round(time.Millisecond))
	}
	return gaps
}

// longestRun is how many durations in a row are between two bounds.
func longestRun(all []time.Duration, least, most time.Duration) int {
	longest, run := 0, 0
	for _, d := range all {
		if run++; d < least || d > most {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// checkpoints reads when the checkpoints of a rank were asked for, in order; the files hold the time.
func checkpoints(s *stage, dir string, rank int) []time.Time {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "rank"+strconv.Itoa(rank)+"-*.ckpt"))
	must.NoError(s.t, err)
	slices.Sort(files)
	times := make([]time.Time, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		must.NoError(s.t, err)
		times[i], err = time.Parse(time.RFC3339Nano, strings.TrimSpace(string(text)))
		must.NoError(s.t, err)
	}
	return times
}
