// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestPreempt tells what operators do, on a cluster of two racks with one node of four GPUs each.
func TestPreempt(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "preempt", Nodes: []cluster.Node{
		{Name: "n1", Topology: map[string]string{"zone": "z1", "rack": "r1"}, Machine: cluster.CrossedPairs("preempt-1")},
		{Name: "n2", Topology: map[string]string{"zone": "z1", "rack": "r2"}, Machine: cluster.CrossedPairs("preempt-2")},
	}})
	for _, story := range []struct {
		name string
		told func(s *stage)
	}{
		{"10 a gang of 8 is preempted, and another gets its GPUs", preemptsAGang},
		{"muster run follows a gang to its end", runsToTheEnd},
		{"muster set lets a waiting gang start", setsAKnob},
		{"muster release takes slots by force", releasesByForce},
	} {
		t.Run(story.name, func(t *testing.T) { tell(t, c, story.told) })
	}
}

const (
	victimSize = 8
	// evaluateEvery is how often Nomad is asked to place the victim's members again while their slots go over. It would do
	// so by itself, as soon as each has ended, but not when the story wants it.
	evaluateEvery = 150 * time.Millisecond
	// near is how close to the release one of those must have come, for a seed to count.
	near = 200 * time.Millisecond
)

// preemptsAGang: a gang of 8 whose members' checkpoints take different times is preempted, and another gang gets the
// same GPUs. Meanwhile Nomad tries to place the members that have ended again, within 200 ms of the release too: the
// moment at which a GPU that is free too early would be given twice. Each seed is one preemption; the two gangs take
// turns, and both finish.
func preemptsAGang(s *stage) {
	seeds, slowest := 3, seconds(6)
	if soak() {
		seeds, slowest = 20, seconds(20)
	}
	durations := filepath.Join(s.sharedDir("victim"), "durations")
	until := filepath.Join(s.sharedDir("releases"), "victim")
	must.NoError(s.t, os.RemoveAll(until))
	s.run("checkpoint.nomad.hcl", map[string]string{
		"gang": "victim", "count": strconv.Itoa(victimSize), "gpus": "1", "checkpoint_interval": "1h", "checkpoint_timeout": "45s",
		// Each member has a place of its own: in a common one the first finished checkpoint would be taken for all.
		"checkpoint_path": "${NOMAD_ALLOC_DIR}/data/checkpoints",
		"args": hclList([]string{
			"-for", clusterLifetime.String(), "-until", until, "-checkpoint", "$${NOMAD_ALLOC_DIR}/data/checkpoints", "-takes-from", durations,
		}),
	})
	s.awaitWhole("victim", victimSize, startWithin)
	hits := 0
	for seed := 0; seed < seeds || hits == 0 && seed < tries*seeds; seed++ {
		random := rand.New(rand.NewPCG(10, uint64(seed)))
		takes := make([]string, victimSize)
		for rank := range takes {
			takes[rank] = (time.Second + time.Duration(random.Int64N(int64(slowest-time.Second)))).Round(time.Millisecond).String()
		}
		must.NoError(s.t, os.WriteFile(durations, []byte(strings.Join(takes, "\n")), 0o644))
		began := time.Now()
		closest, evaluations := s.preempt(fmt.Sprintf("winner-%d", seed), time.Duration(random.Int64N(int64(evaluateEvery))))
		s.t.Logf("seed %d: checkpoints took %s; of %d further evaluations the closest to the release was %s away; all in %s",
			seed, strings.Join(takes, " "), evaluations, closest.Round(time.Millisecond), time.Since(began).Round(time.Second))
		if closest <= near {
			hits++
		}
	}
	s.t.Logf("%d releases came within %s of a re-placement", hits, near)
	must.Positive(s.t, hits)
	must.NoError(s.t, os.WriteFile(until, nil, 0o644))
	s.startedOnce(s.awaitFinished("victim", endWithin)) // a preemption counts as no attempt
}

// preempt lets a winner wait for the victim's GPUs, preempts the victim, and waits until the winner has finished and the
// victim runs whole again. Meanwhile Nomad is asked to place the victim's members again, from a phase on and every
// evaluateEvery. It returns how close to the winner's grant the closest of those came, and how many there were.
func (s *stage) preempt(winner string, phase time.Duration) (closest time.Duration, evaluations int) {
	s.t.Helper()
	before := s.document("victim")
	s.submit(gang{name: winner, count: victimSize, gpus: 1, runFor: seconds(1)})
	s.awaitState(winner, ledger.GangWaiting, noticeWithin)
	stop := s.keepEvaluating("victim", phase)
	output, err := s.MusterCommand(s.ctx, "preempt", "-wait", "-reason", "the winner is in a hurry", "victim")
	must.NoError(s.t, err)
	must.StrContains(s.t, output, "Gang victim is closing: its members checkpoint and end, then it waits at the end of its queue")
	must.StrContains(s.t, output, "Its GPUs are free after")

	after := s.document("victim")
	must.NotNil(s.t, after.LastRun)
	must.Eq(s.t, before.Reservation.ID, after.LastRun.Reservation)
	must.EqOp(s.t, "preempted", after.LastRun.Result)
	must.EqOp(s.t, "preempted by an operator: the winner is in a hurry", after.LastRun.Reason.Text)
	granted := s.awaitGranted(winner)
	times := stop()

	s.awaitFinished(winner, startWithin+endWithin)
	s.awaitWhole("victim", victimSize, startWithin)
	must.NotEq(s.t, before.Reservation.ID, s.document("victim").Reservation.ID)
	must.SliceNotEmpty(s.t, times)
	closest = clusterLifetime
	for _, asked := range times {
		closest = min(closest, max(asked.from.Sub(granted.At), granted.At.Sub(asked.to), 0))
	}
	return closest, len(times)
}

// span is the time that a request took.
type span struct{ from, to time.Time }

// keepEvaluating asks Nomad again and again to place what is missing of a job, until it is stopped; then it returns when.
func (s *stage) keepEvaluating(job string, phase time.Duration) (stop func() []span) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan []span)
	go func() {
		var times []span
		timer := time.NewTimer(phase)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- times
				return
			case <-timer.C:
				timer.Reset(evaluateEvery)
				from := time.Now()
				if _, _, err := s.Nomad.Jobs().ForceEvaluate(job, (&nomad.WriteOptions{}).WithContext(ctx)); err == nil {
					times = append(times, span{from, time.Now()})
				}
			}
		}
	}()
	return func() []span {
		cancel()
		return <-done
	}
}
