// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
)

// TestMeasure prints, with MUSTER_MEASURE=1, how long a gang takes on an idle cluster from its submission until all of its
// processes run, whose time that is, and how many of Consul's writes it costs.
func TestMeasure(t *testing.T) {
	if os.Getenv("MUSTER_MEASURE") == "" {
		t.Skip("set MUSTER_MEASURE=1 to measure")
	}
	c := startCluster(t, cluster.Config{Name: "measure", Nodes: cluster.FourNodes()})
	tell(t, c, func(s *stage) {
		const rounds = 10
		registered := s.followNodes()
		var all []spans
		var writes []float64
		for i := range rounds {
			must.NoError(s.t, s.AwaitEmpty(s.ctx, endWithin))
			before := s.consulWrites()
			name := "measured-" + strconv.Itoa(i)
			finish := s.submitUntil(gang{name: name, count: 2, gpus: 8})
			all = append(all, s.spansOf(name, 2, registered))
			finish()
			s.awaitFinished(name, endWithin)
			must.NoError(s.t, s.AwaitEmpty(s.ctx, endWithin))
			writes = append(writes, s.consulWrites()-before)
		}
		t.Logf("a gang of 2 x 8 on an idle cluster, %d rounds:\n%s", rounds, table(all))
		slices.Sort(writes)
		t.Logf("writes to Consul from submission to release, per gang of two members: median %.0f (%.0f to %.0f)",
			writes[rounds/2], writes[0], writes[rounds-1])
	})
}

// spans are the parts of a start, one after the other.
type spans struct {
	admit    time.Duration // ours: from Nomad's receipt of the job to the grant
	batch    time.Duration // Nomad's: from the grant until its server has the last node's slot
	schedule time.Duration // Nomad's: from there until the last allocation is made
	prepare  time.Duration // Nomad's: from there until the last driver was asked to start its task
	start    time.Duration // ours: from there until the last process was started
	total    time.Duration
}

// spansOf waits until a gang runs whole and computes the parts of its start.
func (s *stage) spansOf(name string, size int, registered *arrivals) spans {
	s.t.Helper()
	ranks := s.awaitWhole(name, size, startWithin)
	job, _, err := s.Nomad.Jobs().Info(name, nil)
	must.NoError(s.t, err)
	allocs := s.startedAllocations(name, size)
	gang := s.document(name)
	must.NotNil(s.t, gang.Reservation)

	submitted, granted := time.Unix(0, *job.SubmitTime), gang.Reservation.At
	var placed, asked, running time.Time
	for _, alloc := range allocs {
		placed = latest(placed, time.Unix(0, alloc.CreateTime))
		for _, state := range alloc.TaskStates {
			asked = latest(asked, state.StartedAt)
		}
	}
	for _, holder := range ranks {
		running = latest(running, cluster.BootTime().Add(holder.Started))
	}
	offered := registered.lastBefore(placed, granted)
	return spans{
		admit: granted.Sub(submitted), batch: offered.Sub(granted), schedule: placed.Sub(offered), prepare: asked.Sub(placed),
		start: running.Sub(asked), total: running.Sub(submitted),
	}
}

// startedAllocations waits until Nomad's servers know when every member's task was started: its clients tell them a
// little after the fact.
func (s *stage) startedAllocations(name string, size int) []*nomad.AllocationListStub {
	s.t.Helper()
	var allocs []*nomad.AllocationListStub
	s.await("Nomad knows all starts of "+name, startWithin, func() (bool, string) {
		allocs = s.allocations(name)
		started := 0
		for _, alloc := range allocs {
			for _, state := range alloc.TaskStates {
				if !state.StartedAt.IsZero() {
					started++
				}
			}
		}
		return started == size, fmt.Sprintf("%d of %d have started", started, size)
	})
	return allocs
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// arrivals are the moments at which Nomad's server told of a node's registration.
type arrivals struct {
	mu    sync.Mutex // protects times
	times []time.Time
}

// followNodes listens to Nomad's event stream.
func (s *stage) followNodes() *arrivals {
	a := &arrivals{}
	ctx, cancel := context.WithCancel(s.ctx)
	s.t.Cleanup(cancel)
	events, err := s.Nomad.EventStream().Stream(ctx, map[nomad.Topic][]string{nomad.TopicNode: {"*"}}, 0, nil)
	must.NoError(s.t, err)
	go func() {
		for batch := range events {
			if batch.Err == nil && len(batch.Events) > 0 {
				a.mu.Lock()
				a.times = append(a.times, time.Now())
				a.mu.Unlock()
			}
		}
	}()
	return a
}

// lastBefore is the last arrival between two moments; not before the earlier one.
func (a *arrivals) lastBefore(end, start time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := start
	for _, t := range a.times {
		if t.After(last) && t.Before(end.Add(5*time.Millisecond)) { // an event arrives a little after what it tells of
			last = t
		}
	}
	return last
}

// consulWrites is the number of writes to its key-value store that Consul has applied, transactions and single ones.
func (s *stage) consulWrites() float64 {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.ConsulURL()+"/v1/agent/metrics?format=prometheus", nil)
	must.NoError(s.t, err)
	answer, err := http.DefaultClient.Do(request)
	must.NoError(s.t, err)
	defer answer.Body.Close()
	return sumOf(answer.Body, "consul_txn_apply_count", "consul_kvs_apply_count")
}

func sumOf(metrics io.Reader, names ...string) float64 {
	sum := 0.0
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		if number, err := strconv.ParseFloat(value, 64); err == nil && slices.Contains(names, name) {
			sum += number
		}
	}
	return sum
}

// table shows each part's median, least and most.
func table(all []spans) string {
	var b strings.Builder
	row := func(name string, part func(spans) time.Duration) {
		times := make([]time.Duration, len(all))
		for i := range all {
			times[i] = part(all[i]).Round(time.Millisecond)
		}
		slices.Sort(times)
		fmt.Fprintf(&b, "  %-52s median %8s  least %8s  most %8s\n", name, times[len(times)/2], times[0], times[len(times)-1])
	}
	row("ours: job received until reservation granted", func(s spans) time.Duration { return s.admit })
	row("Nomad: granted until the server has all slots (batching)", func(s spans) time.Duration { return s.batch })
	row("Nomad: until all members are placed (scheduling)", func(s spans) time.Duration { return s.schedule })
	row("Nomad: until the drivers are asked to start", func(s spans) time.Duration { return s.prepare })
	row("ours: claim, barrier, start of all processes", func(s spans) time.Duration { return s.start })
	row("total", func(s spans) time.Duration { return s.total })
	return b.String()
}
