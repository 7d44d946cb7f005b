// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

// TestProperties checks what must hold of every decision, on small clusters and against the reference.
func TestProperties(t *testing.T) {
	topologies := map[string]*gpu.Topology{}
	for _, links := range []string{"switch", "pairs", "dgx1", "none"} {
		for _, gpus := range []int{1, 2, 4, 8} {
			topologies[fmt.Sprint(links, gpus)] = gpu.NewTopology(machine(gpus, links))
		}
	}
	granted, multi, missed := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t, topologies)
		now := epoch.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "now")) * time.Minute)
		before := snapshotText(s)
		d := policy.Decide(s, now)
		must.Eq(t, before, snapshotText(s), must.Sprint("the snapshot was changed"))

		left := auditGrants(t, s, d, now)
		granted += len(d.Grants)
		auditWaits(t, s, d)
		must.Eq(t, d, policy.Decide(shuffled(t, s), now), must.Sprint("the order of the input matters"))

		// What was not granted does not fit in what is left, and the reasons are what a fresh look would give.
		// Places that are kept may move, though.
		if !slices.ContainsFunc(d.Waits, func(w model.Wait) bool { return w.Planned != nil }) {
			again := policy.Decide(left, now)
			must.Eq(t, 0, len(again.Grants))
			must.True(t, reflect.DeepEqual(d.Waits, again.Waits), must.Sprintf("reasons differ:\n%v\n%v", d.Waits, again.Waits))
		}
		for _, wait := range d.Waits {
			gang := left.Gangs[slices.IndexFunc(left.Gangs, func(g model.Gang) bool { return g.Name == wait.Gang })]
			auditReason(t, left, gang, wait, now)
			if wait.Reason.Code == model.WaitBackoff || gang.NotBefore.After(now) {
				continue
			}
			fits := referenceOf(left, gang).fits(now)
			if wait.Reason.Code == model.WaitReserved {
				continue
			}
			if len(gang.Groups) == 1 {
				must.False(t, fits, must.Sprintf("%s fits, but waits: %s", wait.Gang, wait.Reason.Text))
				continue
			}
			multi++
			if fits {
				missed++
			}
		}
	})
	t.Logf("%d gangs granted; of %d of several groups that wait, %d would have fitted", granted, multi, missed)
	must.Eq(t, 0, missed)
}

func drawSnapshot(t *rapid.T, topologies map[string]*gpu.Topology) model.Snapshot {
	s := model.Snapshot{Levels: []string{"zone", "rack"}}
	label := rapid.SampledFrom([]string{"", "a", "b"})
	for i := range rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 5}).Draw(t, "nodes") {
		gpus := rapid.SampledFrom([]int{1, 2, 4, 4, 8}).Draw(t, "gpus")
		links := rapid.SampledFrom([]string{"switch", "pairs", "dgx1", "none"}).Draw(t, "links")
		n := model.Node{
			Name: fmt.Sprintf("n%d", i), Topology: topologies[fmt.Sprint(links, gpus)],
			Path: []string{label.Draw(t, "zone"), label.Draw(t, "rack")}, Fabric: label.Draw(t, "fabric"),
			CPUMHz: rapid.Int64Range(-1, 20).Draw(t, "cpu"), MemoryMB: rapid.SampledFrom([]int64{0, 3, 5, 8, 20, 20, 20}).Draw(t, "mem"), DiskMB: 8,
		}
		if n.Usable = gpu.FirstN(gpus); rapid.IntRange(0, 4).Draw(t, "unhealthy") == 0 {
			n.Usable &= gpu.Set(rapid.Uint64().Draw(t, "usable"))
		}
		if n.Free = n.Usable; rapid.Bool().Draw(t, "in use") {
			n.Free &= gpu.Set(rapid.Uint64().Draw(t, "free"))
		}
		if rapid.IntRange(0, 9).Draw(t, "closed") == 0 {
			n.Closed = "draining"
		}
		s.Nodes = append(s.Nodes, n)
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "gangs") {
		s.Gangs = append(s.Gangs, drawGang(t, fmt.Sprintf("g%d", i)))
	}
	return s
}

func drawGang(t *rapid.T, name string) model.Gang {
	minutes := func(max int, label string) time.Duration {
		return time.Duration(rapid.IntRange(0, max).Draw(t, label)) * time.Minute
	}
	g := model.Gang{
		Name: name, Priority: rapid.IntRange(49, 50).Draw(t, "priority"),
		Submitted: epoch.Add(minutes(2, "submitted")), WaitingSince: epoch.Add(minutes(20, "since")),
		NVLinkRequired: rapid.IntRange(0, 2).Draw(t, "nvlink") == 0, RelaxNever: rapid.Bool().Draw(t, "never"),
		Locality:   rapid.SampledFrom([]string{"node", "rack", "zone", "any", "any"}).Draw(t, "locality"),
		RelaxAfter: time.Minute + minutes(15, "relax"),
	}
	if rapid.IntRange(0, 5).Draw(t, "failed before") == 0 {
		g.NotBefore = epoch.Add(minutes(40, "not before"))
		g.Avoid = []string{"n0", "n3"}
		g.Held = rapid.Bool().Draw(t, "held")
	}
	for i := range rapid.SampledFrom([]int{1, 1, 2, 2, 3}).Draw(t, "groups") {
		group := model.Group{
			Name: fmt.Sprintf("w%d", i), Count: rapid.IntRange(1, 4).Draw(t, "count"), GPUs: rapid.SampledFrom([]int{1, 1, 2, 2, 3, 4}).Draw(t, "asked"),
			MemoryMB: rapid.Int64Range(0, 4).Draw(t, "asked mem"), CPUMHz: rapid.Int64Range(0, 3).Draw(t, "asked cpu"),
		}
		if i > 0 {
			group.Count = min(group.Count, 2)
		}
		if rapid.IntRange(0, 7).Draw(t, "refused") == 0 {
			group.Refused = map[string]string{"n1": "missing driver", "n2": "constraint"}
		}
		g.Groups = append(g.Groups, group)
	}
	return g
}

// auditGrants checks every grant against what is free when its turn comes, and returns the snapshot that is left.
func auditGrants(t *rapid.T, s model.Snapshot, d model.Decision, now time.Time) model.Snapshot {
	left := s
	left.Nodes = slices.Clone(s.Nodes)
	left.Gangs = slices.Clone(s.Gangs)
	for _, grant := range d.Grants {
		at := slices.IndexFunc(left.Gangs, func(g model.Gang) bool { return g.Name == grant.Gang })
		must.NonNegative(t, at, must.Sprintf("%s was granted twice, or never asked", grant.Gang))
		gang := left.Gangs[at]
		left.Gangs = slices.Delete(left.Gangs, at, at+1)
		must.False(t, gang.NotBefore.After(now), must.Sprint("granted in its back-off"))
		must.Len(t, gang.Size(), grant.Members, must.Sprint("not whole"))
		auditTightness(t, left, gang, grant)
		var nodes []model.Node
		for rank, m := range grant.Members {
			group := groupOf(gang, rank)
			must.Eq(t, rank, m.Rank)
			must.Eq(t, group.Name, m.Group, must.Sprint("ranks follow the groups"))
			n := &left.Nodes[slices.IndexFunc(left.Nodes, func(n model.Node) bool { return n.Name == m.Node })]
			must.Eq(t, group.GPUs, m.GPUs.Len())
			must.True(t, n.Free.Contains(m.GPUs), must.Sprintf("%s uses GPUs %s of %s, free are %s", grant.Gang, m.GPUs, n.Name, n.Free))
			must.True(t, !gang.NVLinkRequired || n.Topology.JoinedByNVLink(m.GPUs), must.Sprint("not joined"))
			must.MapNotContainsKey(t, group.Refused, n.Name)
			must.Eq(t, "", n.Closed)
			n.Free &^= m.GPUs
			n.CPUMHz -= group.CPUMHz
			n.MemoryMB -= group.MemoryMB
			must.True(t, covers(n.CPUMHz, group.CPUMHz) && covers(n.MemoryMB, group.MemoryMB), must.Sprint("not enough CPU or memory"))
			nodes = append(nodes, *n)
		}
		auditLocality(t, s, gang, grant, nodes, now)
		left.Running = append(left.Running, model.Running{Gang: gang, Members: grant.Members, Granted: now, Started: now})
	}
	return left
}

// auditLocality checks that the gang stayed within the level that it may use, and that the grant says which one it got.
func auditLocality(t *rapid.T, s model.Snapshot, g model.Gang, grant model.Grant, used []model.Node, now time.Time) {
	names := []string{model.LocalityNode, "rack", "zone", model.LocalityAny}
	width, known := allowed(s.Levels, g, now)
	must.True(t, known)
	got := slices.Index(names, grant.Level)
	must.LessEq(t, width, got, must.Sprintf("%s got %s", g.Name, grant.Level))
	together := func(w int) bool {
		return slices.ContainsFunc(domains(s, w), func(nodes []model.Node) bool {
			return !slices.ContainsFunc(used, func(n model.Node) bool {
				return !slices.ContainsFunc(nodes, func(other model.Node) bool { return other.Name == n.Name })
			})
		})
	}
	must.True(t, together(got))
	must.True(t, got == 0 || !together(got-1), must.Sprintf("%s is closer than %s", g.Name, grant.Level))
}

// auditTightness checks that no closer domain would have done, unless NVLink or a failed node was a reason to go farther.
func auditTightness(t *rapid.T, s model.Snapshot, g model.Gang, grant model.Grant) {
	choosy := !g.NVLinkRequired && slices.ContainsFunc(g.Groups, func(g model.Group) bool { return g.GPUs > 1 })
	if choosy || len(g.Avoid) > 0 {
		return
	}
	for width, name := range []string{model.LocalityNode, "rack", "zone"} {
		if name == grant.Level {
			return
		}
		for _, nodes := range domains(s, width) {
			must.False(t, referenceOf(s, g).place(0, nodes), must.Sprintf("%s got %s, %s would do", g.Name, grant.Level, name))
		}
	}
}

// auditWaits checks that every gang that was not granted waits, once, at its place, with a reason.
func auditWaits(t *rapid.T, s model.Snapshot, d model.Decision) {
	must.Eq(t, len(s.Gangs), len(d.Grants)+len(d.Waits))
	for i, wait := range d.Waits {
		must.Eq(t, i+1, wait.Position)
		must.NotEq(t, "", wait.Reason.Code)
		must.NotEq(t, "", wait.Reason.Text)
		must.False(t, strings.Contains(wait.Reason.Text, "  ") || strings.Contains(wait.Reason.Text, "%!"), must.Sprint(wait.Reason.Text))
	}
}

// auditReason checks by the reference that the code of a reason is true.
func auditReason(t *rapid.T, s model.Snapshot, g model.Gang, wait model.Wait, now time.Time) {
	r := referenceOf(s, g)
	explain := must.Sprintf("%s: %s", wait.Reason.Code, wait.Reason.Text)
	switch wait.Reason.Code {
	case model.WaitLocality:
		must.False(t, r.fits(now), explain)
		r.anywhere = true
		must.True(t, r.fits(now), explain)
	case model.WaitCapacity, model.WaitFragmented:
		r.anywhere, r.anyNode, r.anyResources, r.nvlink = true, true, true, false
		must.False(t, r.fits(now), explain)
	case model.WaitResources, model.WaitNVLink:
		r.anywhere = true
		must.False(t, r.fits(now), explain)
		r.anyNode, r.anyResources, r.nvlink = true, true, false
		must.True(t, r.fits(now), explain)
	case model.WaitConstraints:
		r.anywhere = true
		must.False(t, r.fits(now), explain)
	case model.WaitNever:
		r.anyNode, r.anyResources, r.empty = true, true, true
		r.anywhere = !g.RelaxNever
		must.False(t, r.fits(now), explain)
	case model.WaitHeld:
		must.True(t, g.NotBefore.After(now) && g.Held, explain)
	case model.WaitReserved:
	case model.WaitBackoff:
		must.True(t, g.NotBefore.After(now), explain)
	default:
		t.Fatalf("no such code: %s", wait.Reason.Code)
	}
}

func shuffled(t *rapid.T, s model.Snapshot) model.Snapshot {
	s.Nodes = rapid.Permutation(s.Nodes).Draw(t, "nodes in another order")
	s.Gangs = rapid.Permutation(s.Gangs).Draw(t, "gangs in another order")
	return s
}

func snapshotText(s model.Snapshot) string { return fmt.Sprintf("%+v", s) }
