// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

// kept is a cluster that goes through many changes, with the snapshot that New would have to be given to be the same.
type kept struct {
	*fit.Cluster
	snapshot model.Snapshot
	running  []running
	withheld [][]model.Earmark
}

type running struct {
	gang  model.Gang
	grant model.Grant
}

func (k *kept) node(name string) *model.Node {
	return &k.snapshot.Nodes[slices.IndexFunc(k.snapshot.Nodes, func(n model.Node) bool { return n.Name == name })]
}

// use takes what a grant holds from the snapshot, or with -1 gives it back.
func (k *kept) use(r running, sign int64) {
	for _, m := range r.grant.Members {
		n := k.node(m.Node)
		if n.Free &^= m.GPUs; sign < 0 {
			n.Free |= m.GPUs & n.Usable
		}
		for _, group := range r.gang.Groups {
			if group.Name == m.Group {
				n.CPUMHz -= sign * group.CPUMHz
				n.MemoryMB -= sign * group.MemoryMB
			}
		}
	}
}

func drawCluster(t *rapid.T) model.Snapshot {
	s := model.Snapshot{Levels: []string{"zone", "rack"}}
	topologies := []*gpu.Topology{joined(8, true), joined(8, false), joined(2, true)}
	nodes := rapid.IntRange(1, 80).Draw(t, "nodes")
	alike := rapid.Bool().Draw(t, "alike")
	for i := range nodes {
		n := model.Node{
			Name: fmt.Sprintf("n%03d", i*97%151), Topology: topologies[0], CPUMHz: 1000, MemoryMB: 1000,
			Path: []string{rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "zone"), rapid.SampledFrom([]string{"r1", "r2", "r3", ""}).Draw(t, "rack")},
		}
		if n.Usable = gpu.FirstN(8); !alike {
			n.Topology = rapid.SampledFrom(topologies).Draw(t, "links")
			n.MemoryMB = rapid.Int64Range(0, 60).Draw(t, "mem")
			n.Fabric = rapid.SampledFrom([]string{"", "", "f"}).Draw(t, "fabric")
			if n.Topology == topologies[2] {
				n.Usable = gpu.FirstN(2)
			}
		}
		n.Free = n.Usable & gpu.Set(rapid.Uint64().Draw(t, "free"))
		if rapid.IntRange(0, 2).Draw(t, "whole") == 0 {
			n.Free = n.Usable
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

func drawWaiting(t *rapid.T, s model.Snapshot, i int) model.Gang {
	g := gang(i, rapid.IntRange(1, 20).Draw(t, "count"), rapid.SampledFrom([]int{1, 1, 2, 3, 4, 8}).Draw(t, "gpus"),
		rapid.SampledFrom([]string{model.LocalityNode, "rack", "zone", model.LocalityAny}).Draw(t, "locality"))
	g.NVLinkRequired = rapid.IntRange(0, 3).Draw(t, "nvlink") == 0
	g.RelaxNever = rapid.Bool().Draw(t, "never")
	g.RelaxAuto = rapid.IntRange(0, 3).Draw(t, "auto") == 0
	g.Groups[0].CPUMHz, g.Groups[0].MemoryMB = 5, rapid.Int64Range(0, 9).Draw(t, "asked")
	if rapid.IntRange(0, 3).Draw(t, "groups") == 0 {
		g.Groups = append(g.Groups, model.Group{Name: "launcher", Count: rapid.IntRange(1, 3).Draw(t, "more"), GPUs: 1, MemoryMB: 2})
	}
	if rapid.IntRange(0, 3).Draw(t, "refuses") == 0 {
		refused := map[string]string{}
		for at := range s.Nodes {
			if at%3 == i%3 {
				refused[s.Nodes[at].Name] = "missing drivers"
			}
		}
		for at := range g.Groups {
			g.Groups[at].Refused = refused
		}
	}
	if rapid.IntRange(0, 5).Draw(t, "avoids") == 0 {
		g.Avoid = []string{s.Nodes[0].Name, s.Nodes[len(s.Nodes)/2].Name, "gone"}
	}
	return g
}

// TestKeptCluster checks that what a cluster remembers never shows: after any changes it answers as a new one does.
func TestKeptCluster(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawCluster(t)
		k := &kept{Cluster: fit.New(s), snapshot: s}
		k.snapshot.Nodes = slices.Clone(s.Nodes)
		var gangs []model.Gang
		for i := range 4 {
			gangs = append(gangs, drawWaiting(t, s, i))
		}
		t.Repeat(map[string]func(*rapid.T){
			"":         func(t *rapid.T) { k.compare(t, gangs) },
			"take":     func(t *rapid.T) { k.take(rapid.SampledFrom(gangs).Draw(t, "gang")) },
			"give":     k.give,
			"withhold": k.withhold,
			"restore":  k.restore,
			"renew":    k.renew,
			"clone":    func(*rapid.T) { k.Cluster = k.Clone() },
		})
	})
}

func (k *kept) compare(t *rapid.T, gangs []model.Gang) {
	fresh := fit.New(k.snapshot)
	inUse, usable := k.Load()
	wantUse, wantUsable := fresh.Load()
	must.Eq(t, []int{wantUse, wantUsable}, []int{inUse, usable})
	for _, g := range gangs {
		want, fits := fresh.Fit(g, epoch)
		got, found := k.Fit(g, epoch)
		must.Eq(t, fits, found, must.Sprintf("%+v", g))
		must.Eq(t, want, got)
		reason, at := fresh.Explain(g, epoch)
		told, until := k.Explain(g, epoch)
		must.Eq(t, reason, told)
		must.Eq(t, at, until)
	}
}

func (k *kept) take(g model.Gang) {
	if grant, found := k.Fit(g, epoch); found {
		k.Take(g, grant)
		r := running{gang: g, grant: grant}
		k.use(r, 1)
		k.running = append(k.running, r)
	}
}

func (k *kept) give(t *rapid.T) {
	if len(k.running) == 0 {
		t.Skip("nothing runs")
	}
	at := rapid.IntRange(0, len(k.running)-1).Draw(t, "which")
	r := k.running[at]
	k.running = slices.Delete(k.running, at, at+1)
	k.Give(r.gang, r.grant.Members)
	k.use(r, -1)
}

func (k *kept) withhold(t *rapid.T) {
	var marks []model.Earmark
	for range rapid.IntRange(1, 4).Draw(t, "marks") {
		n := rapid.SampledFrom(k.snapshot.Nodes).Draw(t, "node")
		marks = append(marks, model.Earmark{Node: n.Name, GPUs: gpu.Set(rapid.Uint64().Draw(t, "GPUs"))})
	}
	held := k.Withhold(marks)
	for _, m := range held {
		k.node(m.Node).Free &^= m.GPUs
	}
	k.withheld = append(k.withheld, held)
}

func (k *kept) restore(t *rapid.T) {
	if len(k.withheld) == 0 {
		t.Skip("nothing is withheld")
	}
	at := rapid.IntRange(0, len(k.withheld)-1).Draw(t, "which")
	for _, m := range k.withheld[at] {
		k.node(m.Node).Free |= m.GPUs & k.node(m.Node).Usable
	}
	k.Restore(k.withheld[at])
	k.withheld = slices.Delete(k.withheld, at, at+1)
}

// renew changes the snapshot by itself: nodes fill, drain and come back.
func (k *kept) renew(t *rapid.T) {
	for range rapid.IntRange(0, 3).Draw(t, "changes") {
		n := &k.snapshot.Nodes[rapid.IntRange(0, len(k.snapshot.Nodes)-1).Draw(t, "node")]
		switch rapid.IntRange(0, 3).Draw(t, "how") {
		case 0:
			n.Closed = "draining"
		case 1:
			n.Closed = ""
		case 2:
			n.MemoryMB = rapid.Int64Range(0, 60).Draw(t, "mem")
		default:
			n.Usable = n.Usable.Remove(7)
			n.Free &= n.Usable
		}
	}
	before := k.snapshot
	before.Nodes = slices.Clone(before.Nodes)
	k.Renew(before)
}

// TestCloneIsApart checks that what happens to a clone does not show in the original.
func TestCloneIsApart(t *testing.T) {
	t.Parallel()
	s := racks(20, 10, func(int) gpu.Set { return gpu.FirstN(8) })
	c := fit.New(s)
	g := gang(0, 10, 8, "rack")
	want, found := c.Fit(g, epoch)
	must.True(t, found)
	clone := c.Clone()
	for range 2 {
		grant, fits := clone.Fit(g, epoch)
		must.True(t, fits)
		clone.Take(g, grant)
	}
	_, fits := clone.Fit(g, epoch)
	must.False(t, fits)
	got, found := c.Fit(g, epoch)
	must.True(t, found)
	must.Eq(t, want, got)
	s.Nodes[0].Closed = "draining"
	clone.Renew(s)
	_, fits = clone.Fit(g, epoch.Add(time.Second))
	must.True(t, fits)
	got, _ = c.Fit(g, epoch)
	must.Eq(t, want, got)
}
