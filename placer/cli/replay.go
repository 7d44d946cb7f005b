// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/queues"
	"github.com/nomad-muster/muster/placer/replay"
	"github.com/nomad-muster/muster/placer/replay/baseline"
	"github.com/nomad-muster/muster/placer/replay/report"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// ReplayCommand runs a trace of jobs through the policy on a virtual clock.
type ReplayCommand struct{ Meta }

// Synopsis is one line for the list of commands.
func (c *ReplayCommand) Synopsis() string {
	return "Replay a trace of jobs on a virtual clock, and compare policies"
}

// Help is the whole usage.
func (c *ReplayCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster replay -trace FILE -cluster FILE [options] -out DIR

  Runs the jobs of a trace through the placer's policy, or through others, on
  a virtual clock and a simulated cluster. Audits every decision. Writes
  DIR/replay.json with every figure and DIR/replay.html with plots, and prints
  a table. Needs no Nomad and no Consul. Exits with 1 if the audit finds a
  fault.

Replay Options:

  -trace=<path>
    The jobs: the Philly file, the Muri file, or a CSV file with the columns
    job, queue, submitted (RFC 3339), gpus and duration_s, and any of
    member_gpus, user, comm, priority and max_runtime_s. May be compressed by
    gzip.

  -cluster=<path>
    The machines: Philly's list, or a CSV file with the columns node, gpus and
    rack.

  -queues=<path>
    The queues, as 'muster queue apply' reads them. Without it there is one
    queue without a limit.

  -policy=<names>
    What decides, several separated by commas: ` + strings.Join(baseline.Names(), ", ") + `.
    The default is muster.

  -from=<date>, -to=<date>
    Score the jobs that were submitted from the one date (UTC, 2017-10-01)
    until before the other. The replay itself starts with the trace.

  -ideal
    Distance costs nothing, and ending a gang costs nothing.

  -every=<duration>
    Time between two decisions, at least. The default is 1s, as the placer.

  -out=<directory>
    Where to write.
`)
}

// replayFlags are the options as given.
type replayFlags struct {
	trace, cluster, queues, policy, from, to, out string
	ideal                                         bool
	every                                         time.Duration
}

// Run replays.
func (c *ReplayCommand) Run(args []string) int {
	var f replayFlags
	fs := c.flags("replay")
	fs.StringVar(&f.trace, "trace", "", "")
	fs.StringVar(&f.cluster, "cluster", "", "")
	fs.StringVar(&f.queues, "queues", "", "")
	fs.StringVar(&f.policy, "policy", baseline.Muster, "")
	fs.StringVar(&f.from, "from", "", "")
	fs.StringVar(&f.to, "to", "", "")
	fs.StringVar(&f.out, "out", "", "")
	fs.BoolVar(&f.ideal, "ideal", false, "")
	fs.DurationVar(&f.every, "every", time.Second, "")
	if !c.parse(fs, args, c) {
		return exitFailed
	}
	if f.trace == "" || f.cluster == "" || f.out == "" || fs.NArg() > 0 {
		c.UI.Error("this command takes -trace, -cluster and -out; for additional help try 'muster replay -h'")
		return exitFailed
	}
	results, err := c.replay(f)
	if err == nil {
		err = write(f.out, results)
	}
	if err != nil {
		c.UI.Error(err.Error())
		return exitFailed
	}
	if err := report.Table(c.Stdout, results); err != nil {
		c.UI.Error(err.Error())
		return exitFailed
	}
	return faults(c, results)
}

func faults(c *ReplayCommand, results []*replay.Result) int {
	code := exitDone
	for _, r := range results {
		for _, text := range r.FaultTexts {
			c.UI.Error(fmt.Sprintf("%s: fault: %s", r.Policy, text))
			code = exitFailed
		}
	}
	return code
}

// replay reads the files and runs the policies.
func (c *ReplayCommand) replay(f replayFlags) ([]*replay.Result, error) {
	o := replay.Options{Levels: trace.Levels(), Every: f.every}
	if !f.ideal {
		o.Physics = replay.DefaultPhysics()
	}
	jobs, err := readFile(f.trace, trace.Read)
	if err != nil {
		return nil, err
	}
	nodes, err := readFile(f.cluster, trace.ReadCluster)
	if err != nil {
		return nil, err
	}
	if f.queues != "" {
		doc, err := queues.Load(f.queues)
		if err != nil {
			return nil, err
		}
		tree := queues.New(doc)
		o.Queues, o.Settings = tree.Queues(queues.Account{}), tree.Settings()
	}
	if o.From, err = day(f.from); err != nil {
		return nil, err
	}
	if o.To, err = day(f.to); err != nil {
		return nil, err
	}
	names := strings.Split(f.policy, ",")
	deciders := make([]baseline.Decider, len(names))
	for i, name := range names {
		if deciders[i], err = baseline.New(name); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(f.out, 0o755); err != nil { // before the replay, which may take minutes
		return nil, err
	}
	return c.runAll(jobs, nodes, names, deciders, o), nil
}

// runAll runs one policy after another, as many at a time as there are processors.
func (c *ReplayCommand) runAll(jobs []trace.Job, nodes []model.Node, names []string, deciders []baseline.Decider, o replay.Options) []*replay.Result {
	results, took := make([]*replay.Result, len(names)), make([]time.Duration, len(names))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			o := o
			o.Decide, o.Progress = deciders[i], c.progress(name)
			began := c.Now()
			results[i] = replay.Run(jobs, nodes, o)
			results[i].Policy = name
			took[i] = c.Now().Sub(began)
		})
	}
	wg.Wait()
	for i, r := range results {
		fmt.Fprintf(c.Stderr, "%s: %d jobs in %.1f s\n", r.Policy, r.JobsOut, took[i].Seconds())
	}
	return results
}

// progress returns a function that tells how far a replay has come, every few seconds.
func (c *ReplayCommand) progress(name string) func(replay.Progress) {
	told := c.Now()
	return func(p replay.Progress) {
		if c.Now().Sub(told) < 5*time.Second {
			return
		}
		told = c.Now()
		fmt.Fprintf(c.Stderr, "%s: %s, %d of %d jobs finished, %d waiting, %d decisions\n",
			name, p.Now.Format(time.DateOnly), p.Done, p.Jobs, p.Waiting, p.DecisionsMade)
	}
}

func readFile[T any](path string, read func(io.Reader) (T, error)) (T, error) {
	var none T
	file, err := os.Open(path)
	if err != nil {
		return none, err
	}
	defer file.Close()
	value, err := read(file)
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	return value, nil
}

// day reads a date or a moment; zero if it is empty.
func day(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.DateOnly, text)
	if err == nil {
		return at, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err != nil {
		return at, fmt.Errorf("%q is neither a date (2017-10-01) nor a moment (2017-10-01T00:00:00Z)", text)
	}
	return at.UTC(), nil
}

// write writes both files.
func write(dir string, results []*replay.Result) error {
	for name, render := range map[string]func(io.Writer, []*replay.Result) error{"replay.json": report.JSON, "replay.html": report.HTML} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(render(file, results), file.Close()); err != nil {
			return fmt.Errorf("write %s: %w", file.Name(), err)
		}
	}
	return nil
}
