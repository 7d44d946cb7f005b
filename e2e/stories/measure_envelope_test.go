// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/e2e/fleet"
	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
)

// The size at which the envelope is measured: every node is held whole by one of four running gangs.
const (
	envelopeNodes   = 500
	envelopeHolders = 4
	envelopeWaiting = 200
	envelopeRounds  = 5
)

// TestMeasureEnvelope prints, with MUSTER_MEASURE=1, what 200 waiting gangs beside 500 nodes that each offer a slot cost:
// how many evaluations a change of one slot wakes and for how long, what ordinary jobs wait for theirs meanwhile, and
// what the placer and the servers use. Nomad's server, Consul and the placer are real; the nodes are package fleet's.
func TestMeasureEnvelope(t *testing.T) {
	if os.Getenv("MUSTER_MEASURE") == "" {
		t.Skip("set MUSTER_MEASURE=1 to measure")
	}
	c := startCluster(t, cluster.Config{Name: "envelope", Limits: cluster.Limits{Heartbeat: time.Hour}})
	s := &stage{t: t, ctx: t.Context(), Cluster: c}
	e := s.newEnvelope()

	t.Logf("%d nodes held by %d gangs, nothing waits:", envelopeNodes, envelopeHolders)
	e.measure()
	began := time.Now()
	for i := range envelopeWaiting {
		s.register(fmt.Sprintf("waiting-%03d", i), 1+i%16, fleet.GPUs)
	}
	s.await("all gangs to wait with a reason", seconds(180), func() (bool, string) {
		snapshot, err := s.Ledger.Load(s.ctx)
		must.NoError(t, err)
		explained := 0
		for _, gang := range snapshot.Gangs {
			if gang.Doc.State == ledger.GangWaiting && gang.Doc.Why != nil {
				explained++
			}
		}
		return explained == envelopeWaiting, fmt.Sprintf("%d of %d", explained, envelopeWaiting)
	})
	t.Logf("%d gangs of 1 to 16 members submitted, admitted and told why they wait within %s", envelopeWaiting, time.Since(began).Round(time.Second))
	e.awaitQuiet()
	e.measure()
}

// envelope measures a fleet.
type envelope struct {
	*stage
	fleet   *fleet.Fleet
	counter int // of ordinary jobs
}

// newEnvelope starts the nodes and fills them with running gangs.
func (s *stage) newEnvelope() *envelope {
	s.t.Helper()
	f, err := fleet.Start(s.ctx, s.NomadRPC(), cluster.Region, s.Ledger, envelopeNodes)
	must.NoError(s.t, err)
	s.t.Cleanup(func() { _ = f.Stop() })
	e := &envelope{stage: s, fleet: f}
	s.await("slot tables of all nodes", seconds(120), func() (bool, string) {
		settled, err := f.Offer(s.ctx)
		must.NoError(s.t, err)
		return settled, "some are missing or ask their node what it remembers"
	})
	for i := range envelopeHolders { // one after the other, so that Nomad places each well within the placer's deadline
		e.hold("holder-" + strconv.Itoa(i))
	}
	e.awaitQuiet()
	return e
}

// hold submits a gang over its share of the nodes and waits until it runs.
func (e *envelope) hold(name string) {
	e.t.Helper()
	e.register(name, envelopeNodes/envelopeHolders, fleet.GPUs)
	e.await("gang "+name+" to run", seconds(120), func() (bool, string) {
		_, err := e.fleet.Offer(e.ctx)
		must.NoError(e.t, err)
		_, err = e.fleet.Run(e.ctx, e.Nomad, name)
		must.NoError(e.t, err)
		doc := e.document(name)
		return doc.State == ledger.GangRunning, describe(doc)
	})
}

// register submits a gang of jobs/gang.nomad.hcl through Nomad's API: two hundred processes would be measured, too.
func (s *stage) register(name string, count, gpus int) {
	s.t.Helper()
	vars := []string{"gang=" + name, "count=" + strconv.Itoa(count), "gpus=" + strconv.Itoa(gpus), "program=/bin/true"}
	job, _, problems := jobspecs.ParseFile(filepath.Join("jobs", "gang.nomad.hcl"), vars, nil)
	must.False(s.t, problems.HasErrors(), must.Sprint(problems))
	_, _, err := s.Nomad.Jobs().Register(job, nil)
	must.NoError(s.t, err)
}

// measure prints everything at the present number of waiting gangs.
func (e *envelope) measure() {
	e.t.Helper()
	e.t.Logf("  an ordinary job's evaluation, nothing else happening: %s", spread(e.latencies(func(int) {})))
	var waves []wave
	for i := range envelopeRounds {
		waves = append(waves, e.change(1, i))
	}
	e.t.Logf("  one slot changes: %s", describeWaves(waves))
	e.t.Logf("  an ordinary job's evaluation just after a slot has changed: %s", spread(e.latencies(e.touch)))
	const share = envelopeNodes / envelopeHolders
	e.t.Logf("  %d slots change at once, as when a gang of so many nodes is granted: %s", share, describeWaves([]wave{e.change(share, 0)}))
	e.resources()
}

func (e *envelope) touch(i int) {
	e.t.Helper()
	must.NoError(e.t, e.fleet.Touch(i%envelopeNodes))
}

// latencies are the times from the registration of an ordinary job until its evaluation is complete, each just after
// something was done.
func (e *envelope) latencies(just func(i int)) []time.Duration {
	e.t.Helper()
	var all []time.Duration
	for i := range envelopeRounds {
		e.awaitQuiet()
		just(i)
		all = append(all, e.ordinaryJob())
	}
	return all
}

// ordinaryJob registers a job that has nothing to do with Muster, and returns how long its evaluation took.
func (e *envelope) ordinaryJob() time.Duration {
	e.t.Helper()
	e.counter++
	name := fmt.Sprintf("ordinary-%03d", e.counter)
	job := nomad.NewBatchJob(name, name, cluster.Region, 50).AddDatacenter("dc1").AddTaskGroup(
		nomad.NewTaskGroup("all", 1).AddTask(nomad.NewTask("one", "raw_exec").SetConfig("command", "/bin/true")))
	began := time.Now()
	answer, _, err := e.Nomad.Jobs().Register(job, nil)
	must.NoError(e.t, err)
	for options := (&nomad.QueryOptions{WaitTime: time.Minute}).WithContext(e.ctx); ; {
		eval, meta, err := e.Nomad.Evaluations().Info(answer.EvalID, options)
		must.NoError(e.t, err)
		if eval.Status == nomad.EvalStatusComplete {
			return time.Since(began)
		}
		options.WaitIndex = meta.LastIndex
	}
}

// wave is what a change of slots caused.
type wave struct {
	evaluations int           // of batch jobs, processed by Nomad's schedulers
	busy        time.Duration // until the last of them
	server      time.Duration // of a core, used by Nomad's server, which also has to say how far it is
}

// change changes slots and waits until Nomad is idle again.
func (e *envelope) change(slots, first int) wave {
	e.t.Helper()
	e.awaitQuiet()
	server := e.Process("nomad-server")
	before, began, used := e.evaluations(), time.Now(), server.CPUTime()
	for i := range slots {
		e.touch(first + i)
	}
	after, last := e.settle()
	return wave{int(after - before), max(last.Sub(began), 0), server.CPUTime() - used}
}

// describeWaves says what one of them costs.
func describeWaves(waves []wave) string {
	evaluations, busy := 0, make([]time.Duration, 0, len(waves))
	var server time.Duration
	for _, w := range waves {
		evaluations += w.evaluations
		server += w.server
		busy = append(busy, w.busy)
	}
	n := len(waves)
	return fmt.Sprintf("%d evaluations, at most %s of CPU in Nomad's server; Nomad is idle again after %s",
		evaluations/n, (server / time.Duration(n)).Round(time.Millisecond), spread(busy))
}

// settle waits until no evaluation has been processed for a second, and returns their number and when the last one was.
func (e *envelope) settle() (count float64, last time.Time) {
	e.t.Helper()
	count, last = e.evaluations(), time.Now()
	changed := last
	e.await("Nomad to be idle", seconds(300), func() (bool, string) {
		now := e.evaluations()
		if now != count {
			count, changed, last = now, time.Now(), time.Now()
		}
		return time.Since(changed) > seconds(1), "it is not"
	})
	return count, last
}

func (e *envelope) awaitQuiet() { e.t.Helper(); e.settle() }

// evaluations is how many evaluations of batch jobs Nomad's schedulers have processed.
func (e *envelope) evaluations() float64 {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.ctx, http.MethodGet, e.Nomad.Address()+"/v1/metrics?format=prometheus", nil)
	must.NoError(e.t, err)
	answer, err := http.DefaultClient.Do(request)
	must.NoError(e.t, err)
	defer answer.Body.Close()
	return sumOf(answer.Body, "nomad_nomad_worker_invoke_scheduler_batch_count")
}

// resources prints what the processes use while nothing happens, and how large Nomad's state is.
func (e *envelope) resources() {
	e.t.Helper()
	const window = 15 * time.Second
	processes := map[string]*cluster.Process{"placer": e.Placers[0], "Nomad's server": e.Process("nomad-server"), "Consul": e.Process("consul")}
	before := map[string]time.Duration{}
	for name, p := range processes {
		before[name] = p.CPUTime()
	}
	timer := time.NewTimer(window)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.ctx.Done():
	}
	for name, p := range processes {
		used := p.CPUTime() - before[name]
		e.t.Logf("  at rest: %s uses %.2f of a core, %d MiB", name, used.Seconds()/window.Seconds(), p.ResidentMiB())
	}
	blocked, _, err := e.Nomad.Evaluations().List((&nomad.QueryOptions{Filter: `Status == "blocked"`}).WithContext(e.ctx))
	must.NoError(e.t, err)
	bytes := 0
	for _, eval := range blocked {
		text, err := json.Marshal(eval)
		must.NoError(e.t, err)
		bytes += len(text)
	}
	snapshot, err := e.Nomad.Operator().Snapshot((&nomad.QueryOptions{}).WithContext(context.WithoutCancel(e.ctx)))
	must.NoError(e.t, err)
	defer snapshot.Close()
	size, err := io.Copy(io.Discard, snapshot)
	must.NoError(e.t, err)
	e.t.Logf("  Nomad's state: %d blocked evaluations with %d KiB of JSON each; a snapshot (gzip) has %d KiB",
		len(blocked), bytes/1024/max(len(blocked), 1), size/1024)
}

// spread shows the median, the least and the most.
func spread(times []time.Duration) string {
	slices.Sort(times)
	unit := time.Millisecond / 10
	return fmt.Sprintf("median %s (%s to %s)", times[len(times)/2].Round(unit), times[0].Round(unit), times[len(times)-1].Round(unit))
}
