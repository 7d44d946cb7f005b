// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// epoch is when every script starts; times in scripts are durations since then.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// TestScripts runs testdata/scripts/*: a cluster, gangs, and what is decided about them. The commands:
//
//	cluster                     one line per node, or per run of nodes (n[1-4]):
//	                            NAME gpus=8 [links=switch|pairs|quads|dgx1|none] [used=0-3] [path=zone/rack] [fabric=F]
//	                            [cpu=MHz] [mem=MiB] [disk=MiB] [closed="why"]; a line "levels zone rack" names the levels
//	gangs                       one line per gang: NAME GROUP=COUNTxGPUS[,cpu=..,mem=..,disk=..]... [prio=..] [at=..]
//	                            [since=..] [notbefore=..] [nvlink] [locality=..] [relax=10m|never] [avoid=n1,n2]
//	                            [refuse=GROUP:n1,n2:"why"]; adds to those that wait
//	                            [queue=Q] [max=2h] [expect=1h] (stated longest run time, and what is expected)
//	                            [evicted=-2h,-1h]
//	queues                      one line per queue: NAME [quota=8] [max=16] [weight=2] [preempt] [gpuhours=..]
//	settings KEY=VALUE...       halflife, minruntime, above, evictions, agebound, defragment, maxnodes
//	decide [at=DURATION]        prints the decision; granted gangs leave the queue and run, evicted ones are closing
//	free NAME                   a running gang has ended
//	gone NAME at=DURATION       an evicted gang has given its GPUs back and waits again
//	saved NAME at=DURATION      a running gang has finished a checkpoint
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "cluster":
				w = newWorld()
				for line := range strings.Lines(d.Input) {
					w.node(t, words(line))
				}
			case "gangs":
				for line := range strings.Lines(d.Input) {
					w.gang(t, words(line))
				}
			case "decide":
				now := epoch
				if d.HasArg("at") {
					var at string
					d.ScanArgs(t, "at", &at)
					now = epoch.Add(duration(t, at))
				}
				return w.decide(now)
			case "queues":
				for line := range strings.Lines(d.Input) {
					w.queue(t, words(line))
				}
			case "settings":
				for _, arg := range d.CmdArgs {
					w.setting(t, arg.Key, arg.Vals[0])
				}
			case "free":
				w.free(d.CmdArgs[0].Key)
			case "gone", "saved":
				var at string
				d.ScanArgs(t, "at", &at)
				w.happened(d.Cmd, d.CmdArgs[0].Key, epoch.Add(duration(t, at)))
			default:
				d.Fatalf(t, "no command %q", d.Cmd)
			}
			return ""
		})
	})
}

// world is the cluster and the queue of one script.
type world struct {
	snapshot  model.Snapshot
	submitted int // gangs so far
}

func newWorld() *world { return &world{} }

// words splits a line at spaces outside of double quotes.
func words(line string) []string {
	quoted := false
	return strings.FieldsFunc(strings.TrimSpace(line), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	})
}

func (w *world) node(t *testing.T, words []string) {
	t.Helper()
	if words[0] == "levels" {
		w.snapshot.Levels = words[1:]
		return
	}
	n := model.Node{CPUMHz: 1e6, MemoryMB: 1e7, DiskMB: 1e7}
	gpus, links, used := 0, "switch", gpu.Set(0)
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		value = strings.Trim(value, `"`)
		switch key {
		case "gpus":
			gpus = int(number(t, value))
		case "links":
			links = value
		case "used":
			set, err := gpu.ParseSet(value)
			must.NoError(t, err)
			used = set
		case "path":
			n.Path = strings.Split(value, "/")
		case "fabric":
			n.Fabric = value
		case "cpu":
			n.CPUMHz = number(t, value)
		case "mem":
			n.MemoryMB = number(t, value)
		case "disk":
			n.DiskMB = number(t, value)
		case "closed":
			n.Closed = value
		default:
			t.Fatalf("no node option %q", key)
		}
	}
	n.Topology = gpu.NewTopology(machine(gpus, links))
	n.Usable = gpu.FirstN(gpus)
	n.Free = n.Usable &^ used
	for _, n.Name = range expand(t, words[0]) {
		w.snapshot.Nodes = append(w.snapshot.Nodes, n)
	}
}

// expand turns n[1-3] into n1, n2, n3.
func expand(t *testing.T, name string) []string {
	t.Helper()
	stem, rest, isRange := strings.Cut(name, "[")
	if !isRange {
		return []string{name}
	}
	from, to, _ := strings.Cut(strings.TrimSuffix(rest, "]"), "-")
	var names []string
	for i := number(t, from); i <= number(t, to); i++ {
		names = append(names, fmt.Sprintf("%s%d", stem, i))
	}
	return names
}

// machine makes up a machine whose NVLinks join all GPUs, pairs, quads, those of a DGX-1 or none.
func machine(gpus int, links string) gpu.Machine {
	m := gpu.Machine{}
	for i := range gpus {
		m.GPUs = append(m.GPUs, gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, NUMANode: i * 2 / max(gpus, 1)})
		m.Links = append(m.Links, make([]gpu.Link, gpus))
	}
	joined := map[string]func(i, j int) bool{
		"switch": func(i, j int) bool { return true },
		"pairs":  func(i, j int) bool { return i/2 == j/2 },
		"quads":  func(i, j int) bool { return i/4 == j/4 },
		"dgx1":   func(i, j int) bool { return i/4 == j/4 || i+4 == j || j+4 == i },
		"none":   func(i, j int) bool { return false },
	}[links]
	for i := range gpus {
		for j := range gpus {
			switch {
			case i == j:
			case joined(i, j):
				m.Links[i][j] = gpu.Link{NVLinks: 4, NVLinkMBps: 100_000, PCIe: gpu.PathSYS}
			default:
				m.Links[i][j] = gpu.Link{PCIe: gpu.PathSYS}
			}
		}
	}
	return m
}

func (w *world) gang(t *testing.T, words []string) {
	t.Helper()
	g := model.Gang{Name: words[0], Priority: 50, Locality: model.LocalityAny, RelaxAfter: 10 * time.Minute}
	// Gangs are submitted a second apart, in the order of the script, unless they say when.
	w.submitted++
	g.Submitted = epoch.Add(-time.Hour + time.Duration(w.submitted)*time.Second)
	g.WaitingSince = epoch
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "prio":
			g.Priority = int(number(t, value))
		case "at":
			g.Submitted = epoch.Add(duration(t, value))
		case "since":
			g.WaitingSince = epoch.Add(duration(t, value))
		case "notbefore":
			g.NotBefore = epoch.Add(duration(t, value))
		case "held":
			g.Held = true
		case "nvlink":
			g.NVLinkRequired = true
		case "locality":
			g.Locality = value
		case "relax":
			if g.RelaxNever = value == "never"; !g.RelaxNever {
				g.RelaxAfter = duration(t, value)
			}
		case "avoid":
			g.Avoid = strings.Split(value, ",")
		case "refuse":
			refuse(t, &g, value)
		case "queue":
			g.Queue = value
		case "max":
			g.MaxRuntime = duration(t, value)
		case "evicted":
			for at := range strings.SplitSeq(value, ",") {
				g.Evicted = append(g.Evicted, epoch.Add(duration(t, at)))
			}
		case "expect":
			g.Expected = duration(t, value)
		default:
			g.Groups = append(g.Groups, group(t, key, value))
		}
	}
	w.snapshot.Gangs = append(w.snapshot.Gangs, g)
}

// group reads 4x8,cpu=8000,mem=65536.
func group(t *testing.T, name, text string) model.Group {
	t.Helper()
	parts := strings.Split(text, ",")
	members, gpus, found := strings.Cut(parts[0], "x")
	must.True(t, found, must.Sprintf("group %s=%s is not COUNTxGPUS", name, text))
	g := model.Group{Name: name, Count: int(number(t, members)), GPUs: int(number(t, gpus))}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "cpu":
			g.CPUMHz = number(t, value)
		case "mem":
			g.MemoryMB = number(t, value)
		case "disk":
			g.DiskMB = number(t, value)
		default:
			t.Fatalf("no group option %q", key)
		}
	}
	return g
}

// refuse reads GROUP:n1,n2:"why".
func refuse(t *testing.T, g *model.Gang, text string) {
	t.Helper()
	name, rest, _ := strings.Cut(text, ":")
	nodes, why, _ := strings.Cut(rest, ":")
	at := slices.IndexFunc(g.Groups, func(group model.Group) bool { return group.Name == name })
	must.NonNegative(t, at, must.Sprintf("refuse names group %q, which does not come before it", name))
	if g.Groups[at].Refused == nil {
		g.Groups[at].Refused = make(map[string]string)
	}
	for node := range strings.SplitSeq(nodes, ",") {
		g.Groups[at].Refused[node] = strings.Trim(why, `"`)
	}
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	must.NoError(t, err)
	return n
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	must.NoError(t, err)
	return d
}
