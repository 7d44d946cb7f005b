// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/placer/ledger"
)

// The limits of what is awaited are for machines that are busy with other things: whatever is waited for comes much sooner
// on a quiet one. What the product promises in seconds is measured by itself, and tried again where the machine was in
// the way.
const (
	// clusterLifetime bounds a cluster's life whatever happens.
	clusterLifetime = 50 * time.Minute
	// noticeWithin is how long anybody may take to notice something and say so.
	noticeWithin = 2 * time.Minute
	// startWithin is how long a granted gang may take until its processes run: Nomad's clients tell their server of new
	// slots in batches of 5 to 10 s, and a start may have to be tried again.
	startWithin = 3 * time.Minute
	// endWithin is how long a gang may take to end and give its GPUs back.
	endWithin = 2 * time.Minute
	// tries is how often a promise in seconds is put to the test before it counts as broken.
	tries = 3
)

// soak says whether long stories are told in full.
func soak() bool { return os.Getenv("MUSTER_SOAK") != "" }

// startCluster starts a cluster for one test and removes it afterwards; its logs are kept if the test failed.
func startCluster(t *testing.T, config cluster.Config) *cluster.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real agents for minutes; not in -short mode")
	}
	if os.Geteuid() != 0 {
		t.Skip("Nomad's clients need root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterLifetime)
	began := time.Now()
	c, err := cluster.Start(ctx, config)
	if err != nil {
		cancel()
		t.Fatalf("starting the cluster: %v", err)
	}
	t.Logf("cluster of %d nodes ready after %s", len(config.Nodes), time.Since(began).Round(100*time.Millisecond))
	t.Cleanup(func() {
		defer cancel()
		must.NoError(t, c.Stop(t.Failed()))
	})
	return c
}

// stage is where one story is told: a cluster that others may have used before, watched by a checker.
type stage struct {
	t   *testing.T
	ctx context.Context
	*cluster.Cluster
	vars map[string]string // for every job
}

// tell tells one story, and checks that nothing happened meanwhile that must never happen and that nothing is left.
func tell(t *testing.T, c *cluster.Cluster, story func(s *stage)) {
	t.Helper()
	s := &stage{t: t, ctx: t.Context(), Cluster: c, vars: map[string]string{"program": c.TestProgram()}}
	checker := c.StartChecker(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		report := checker.Stop()
		if len(report.Violations) > 0 {
			t.Errorf("what must never be:\n%s", strings.Join(report.Violations[:min(len(report.Violations), mostShown)], "\n"))
		}
		t.Log(report)
		if t.Failed() {
			s.showTrouble()
		}
		s.cleanUp()
	})
	story(s)
	must.NoError(t, c.AwaitEmpty(t.Context(), endWithin))
}

// mostShown is how many of a kind a failed story shows: whoever reads it may have a log of limited length and nothing else.
const mostShown = 12

// showTrouble logs what a story that failed has left: its gangs, what its newest tasks went through and printed last,
// and the ends of the logs.
func (s *stage) showTrouble() {
	ctx := context.WithoutCancel(s.ctx)
	gangs, _ := s.MusterCommand(ctx, "gangs") // an error is in the text, too
	s.t.Log("\n" + gangs)
	allocs, _, err := s.Nomad.Allocations().List(nil)
	if err != nil {
		s.t.Logf("listing allocations: %v", err)
	}
	slices.SortFunc(allocs, func(a, b *nomad.AllocationListStub) int { return cmp.Compare(b.ModifyIndex, a.ModifyIndex) })
	for _, alloc := range allocs[:min(len(allocs), mostShown)] {
		s.t.Log(trail(alloc))
		if alloc.ClientStatus == nomad.AllocClientStatusComplete {
			continue
		}
		for _, stream := range []string{"-stdout", "-stderr"} {
			if text, err := s.NomadCommand(ctx, "alloc", "logs", stream, "-tail", "-n", "5", alloc.ID); err == nil && text != "" {
				s.t.Logf("its %s:\n%s", stream, text)
			}
		}
	}
	s.t.Log(s.Tails())
}

// trail is what an allocation went through, on a few lines.
func trail(alloc *nomad.AllocationListStub) string {
	var b strings.Builder
	fmt.Fprintf(&b, "allocation %.8s of %s on %s: %s, %s", alloc.ID, alloc.Name, alloc.NodeName, alloc.DesiredStatus, alloc.ClientStatus)
	for _, state := range alloc.TaskStates {
		for _, event := range state.Events[max(0, len(state.Events)-6):] {
			fmt.Fprintf(&b, "\n  %s %s: %s", time.Unix(0, event.Time).Format("15:04:05.000"), event.Type, event.DisplayMessage)
		}
	}
	return b.String()
}

// cleanUp makes room for the next story if this one failed halfway.
func (s *stage) cleanUp() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), endWithin)
	defer cancel()
	jobs, _, err := s.Nomad.Jobs().List((&nomad.QueryOptions{}).WithContext(ctx))
	if err != nil {
		s.t.Logf("listing jobs to clean up: %v", err)
		return
	}
	for _, job := range jobs {
		if err := s.StopJob(ctx, job.ID, true); err != nil {
			s.t.Logf("cleaning up: %v", err)
		}
	}
	if err := s.AwaitEmpty(ctx, endWithin); err != nil && !errors.Is(err, context.Canceled) {
		s.t.Errorf("after all jobs were purged: %v", err)
	}
}

// run submits a job of this package's folder jobs.
func (s *stage) run(file string, vars map[string]string) {
	s.t.Helper()
	all := maps.Clone(s.vars)
	maps.Copy(all, vars)
	must.NoError(s.t, s.Run(s.ctx, filepath.Join("jobs", file), all))
}

// gang describes one gang of jobs/gang.nomad.hcl.
type gang struct {
	name    string
	count   int
	gpus    int
	runFor  time.Duration
	nodes   string // regular expression; empty: all
	more    map[string]string
	program []string // further arguments of the test program
}

// submit runs the gang's job.
func (s *stage) submit(g gang) {
	s.t.Helper()
	args := append([]string{"-for", g.runFor.String()}, g.program...)
	vars := map[string]string{
		"gang": g.name, "count": strconv.Itoa(g.count), "gpus": strconv.Itoa(g.gpus), "args": hclList(args), "nodes": g.nodes,
	}
	maps.Copy(vars, g.more)
	s.run("gang.nomad.hcl", vars)
}

// submitUntil runs the gang's job for as long as the story wants, and returns what ends it well.
func (s *stage) submitUntil(g gang) (release func()) {
	s.t.Helper()
	g.runFor = clusterLifetime
	file := filepath.Join(s.sharedDir("releases"), g.name)
	must.NoError(s.t, os.RemoveAll(file)) // of an earlier gang of this name
	g.program = append(g.program, "-until", file)
	s.submit(g)
	return func() {
		s.t.Helper()
		must.NoError(s.t, os.WriteFile(file, nil, 0o644))
	}
}

func hclList(values []string) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = strconv.Quote(value)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// sharedDir is a folder for checkpoints that all nodes share.
func (s *stage) sharedDir(name string) string {
	s.t.Helper()
	path, err := s.SharedDir(name)
	must.NoError(s.t, err)
	return path
}

// await waits for a condition.
func (s *stage) await(what string, limit time.Duration, holds func() (bool, string)) {
	s.t.Helper()
	must.NoError(s.t, cluster.Poll(s.ctx, what, limit, func(context.Context) (bool, string) { return holds() }))
}

// document reads a gang; the zero gang while it does not exist.
func (s *stage) document(name string) ledger.Gang {
	s.t.Helper()
	var doc ledger.Gang
	s.await("Consul to answer", noticeWithin, func() (bool, string) {
		var err error
		doc, err = s.Gang(s.ctx, name)
		return err == nil || errors.Is(err, ledger.ErrNotFound), fmt.Sprint(err)
	})
	return doc
}

// snapshot reads the whole ledger.
func (s *stage) snapshot() ledger.Snapshot {
	s.t.Helper()
	var snapshot ledger.Snapshot
	s.await("Consul to answer", noticeWithin, func() (bool, string) {
		var err error
		snapshot, err = s.Ledger.Load(s.ctx)
		return err == nil, fmt.Sprint(err)
	})
	return snapshot
}

// allocations lists what Nomad has made of a job as it is now, not of an earlier one of this name.
func (s *stage) allocations(job string) []*nomad.AllocationListStub {
	s.t.Helper()
	allocs, _, err := s.Nomad.Jobs().Allocations(job, false, nil)
	must.NoError(s.t, err)
	return allocs
}

// awaitShown waits until a muster command prints all of some texts, which may depend on what the story sees meanwhile.
func (s *stage) awaitShown(texts func() []string, args ...string) {
	s.t.Helper()
	s.await("muster "+strings.Join(args, " ")+" to show it", noticeWithin, func() (bool, string) {
		wanted := texts()
		shown, err := s.MusterCommand(s.ctx, args...)
		missing := slices.DeleteFunc(wanted, func(text string) bool { return text != "" && strings.Contains(shown, text) })
		return err == nil && len(missing) == 0, fmt.Sprintf("%q missing, %v in\n%s", missing, err, shown)
	})
}

// awaitState waits until a gang is in a state.
func (s *stage) awaitState(name string, state ledger.GangState, limit time.Duration) ledger.Gang {
	s.t.Helper()
	var doc ledger.Gang
	s.await("gang "+name+" to be "+string(state), limit, func() (bool, string) {
		doc = s.document(name)
		return doc.State == state, describe(doc)
	})
	return doc
}

func describe(doc ledger.Gang) string {
	text := "it is " + string(doc.State)
	if doc.Name == "" {
		text = "it is not in the ledger"
	}
	if doc.Why != nil {
		text += ": " + doc.Why.Text
	}
	return text
}

// ranks returns, by rank, the processes of a gang that hold its GPUs open.
func (s *stage) ranks(name string) map[int]cluster.TaskProcess {
	ranks := map[int]cluster.TaskProcess{}
	for _, h := range s.Processes() {
		if h.Gang == name && len(h.Minors) > 0 {
			ranks[h.Rank] = h
		}
	}
	return ranks
}

// awaitReason waits until a gang waits and says why.
func (s *stage) awaitReason(name string) ledger.Gang {
	s.t.Helper()
	var doc ledger.Gang
	s.await("gang "+name+" to wait for a reason", noticeWithin, func() (bool, string) {
		doc = s.document(name)
		return doc.State == ledger.GangWaiting && doc.Why != nil, describe(doc)
	})
	return doc
}

// awaitWhole waits until every member of a gang holds its GPUs open, and returns their processes by rank.
func (s *stage) awaitWhole(name string, size int, limit time.Duration) map[int]cluster.TaskProcess {
	s.t.Helper()
	var ranks map[int]cluster.TaskProcess
	s.await("gang "+name+" to run whole", limit, func() (bool, string) {
		ranks = s.ranks(name)
		return len(ranks) == size, fmt.Sprintf("%d of %d members; %s", len(ranks), size, describe(s.document(name)))
	})
	return ranks
}

// awaitFinished waits until a gang has finished by its own account and by Nomad's.
func (s *stage) awaitFinished(name string, limit time.Duration) ledger.Gang {
	s.t.Helper()
	doc := s.awaitState(name, ledger.GangFinished, limit)
	s.await("Nomad to count job "+name+" as done", limit, func() (bool, string) {
		return s.nomadDone(name, doc.Spec.Size())
	})
	return doc
}

func (s *stage) nomadDone(job string, size int) (bool, string) {
	info, _, err := s.Nomad.Jobs().Info(job, nil)
	if err != nil {
		return false, err.Error()
	}
	allocs := s.allocations(job)
	complete := 0
	for _, alloc := range allocs {
		if alloc.ClientStatus == nomad.AllocClientStatusComplete {
			complete++
		}
	}
	return complete == size && *info.Status == "dead",
		fmt.Sprintf("status %s, %d allocations of which %d are complete", *info.Status, len(allocs), complete)
}

// pids returns the process IDs of a gang's members by rank, in order.
func pids(ranks map[int]cluster.TaskProcess) []int {
	var all []int
	for _, rank := range slices.Sorted(maps.Keys(ranks)) {
		all = append(all, ranks[rank].PID)
	}
	return all
}

// nodesOf returns the nodes on which a gang's members run, each once, in order.
func nodesOf(ranks map[int]cluster.TaskProcess) []string {
	seen := map[string]bool{}
	for _, h := range ranks {
		seen[h.Node] = true
	}
	return slices.Sorted(maps.Keys(seen))
}
