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
	s.run("checkpoint.nomad.hcl", map[string]string{
		"gang": "saver", "count": "2", "gpus": "2", "args": hclList([]string{"-for", "10m", "-checkpoint", dir, "-takes", "200ms"}),
		"checkpoint_path": dir, "checkpoint_interval": seconds(interval).String(),
	})
	ranks := s.awaitWhole("saver", 2, startWithin)
	s.await("some checkpoints of each rank", seconds(interval*(rounds+2)), func() (bool, string) {
		zero, one := checkpoints(s, dir, 0), checkpoints(s, dir, 1)
		return min(len(zero), len(one)) >= rounds, fmt.Sprintf("%d and %d", len(zero), len(one))
	})
	for rank := range ranks {
		times := checkpoints(s, dir, rank)
		for i := 1; i < len(times); i++ {
			gap := times[i].Sub(times[i-1])
			must.Between(s.t, seconds(interval-1), gap, seconds(interval+1),
				must.Sprintf("rank %d was asked for checkpoints %d and %d %s apart", rank, i, i+1, gap))
		}
	}
	shown, err := s.MusterCommand(s.ctx, "gang", "saver")
	must.NoError(s.t, err)
	must.StrContains(s.t, shown, "checkpoint")

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

// checkpoints reads when the checkpoints of a rank were asked for, in order; the files hold the time.
func checkpoints(s *stage, dir string, rank int) []time.Time {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "rank"+strconv.Itoa(rank)+"-*.ckpt"))
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
