// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/fit"
)

// nodesOf counts the members of a grant by node.
func nodesOf(grant model.Grant) map[string]int {
	nodes := make(map[string]int)
	for _, m := range grant.Members {
		nodes[m.Node]++
	}
	return nodes
}

// TestTreeOfTwelve is a tree of three switches over five lower ones with two or four nodes each. Five of the twelve nodes are
// busy, such that only one set of three free nodes shares a lowest switch.
func TestTreeOfTwelve(t *testing.T) {
	t.Parallel()
	busy := []int{0, 3, 5, 8, 10}
	s := model.Snapshot{Levels: []string{"spine", "leaf"}}
	for i := range 12 {
		leaf := []int{0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4}[i]
		n := model.Node{
			Name: fmt.Sprintf("n%02d", i), Path: []string{fmt.Sprintf("s%d", leaf/2), fmt.Sprintf("l%d", leaf)},
			Topology: joined(8, true), Usable: gpu.FirstN(8), CPUMHz: 1e6, MemoryMB: 1e7,
		}
		if !slices.Contains(busy, i) {
			n.Free = n.Usable
		}
		s.Nodes = append(s.Nodes, n)
	}
	for _, locality := range []string{"leaf", "spine", model.LocalityAny} {
		grant, found := fit.New(s).Fit(gang(0, 3, 8, locality), epoch)
		must.True(t, found)
		must.Eq(t, "leaf", grant.Level)
		must.Eq(t, map[string]int{"n04": 1, "n06": 1, "n07": 1}, nodesOf(grant))
	}
}

// TestFewestServers: a gang of one-GPU members goes on as few nodes as any rack allows, though a fuller rack has room.
func TestFewestServers(t *testing.T) {
	t.Parallel()
	s := racks(40, 10, func(i int) gpu.Set {
		switch {
		case i/10 == 2 && i%5 == 0:
			return gpu.FirstN(8)
		case i/10 == 1 && i%2 == 0:
			return gpu.FirstN(4)
		}
		return gpu.FirstN(2)
	})
	for _, locality := range []string{"rack", model.LocalityAny} {
		grant, found := fit.New(s).Fit(gang(0, 16, 1, locality), epoch)
		must.True(t, found)
		must.Eq(t, map[string]int{"node-00020": 8, "node-00025": 8}, nodesOf(grant))
	}
}

// TestEvenly: a gang that needs several racks has as many members in each as there is room for, and its ranks go through
// them in order.
func TestEvenly(t *testing.T) {
	t.Parallel()
	s := racks(64, 16, func(i int) gpu.Set {
		if i/16 > 1 || i%16 < 4 {
			return 0
		}
		return gpu.FirstN(8) // twelve nodes in each of the first two racks
	})
	grant, found := fit.New(s).Fit(gang(0, 16, 8, "zone"), epoch)
	must.True(t, found)
	must.Eq(t, "zone", grant.Level)
	last := ""
	inFirst := 0
	for _, m := range grant.Members {
		must.Less(t, m.Node, last, must.Sprint("ranks follow the topology"))
		last = m.Node
		if m.Node < "node-00016" {
			inFirst++
		}
	}
	must.Eq(t, 8, inFirst)

	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		s := racks(48, 16, func(int) gpu.Set { return gpu.FirstN(8 * rng.Intn(2)) })
		free := make([]int, 3)
		for i, n := range s.Nodes {
			free[i/16] += n.Free.Len() / 8
		}
		members := rapid.IntRange(1, 40).Draw(t, "members")
		grant, found := fit.New(s).Fit(gang(0, members, 8, model.LocalityAny), epoch)
		must.Eq(t, members <= free[0]+free[1]+free[2], found)
		got, used := make([]int, 3), 0
		for _, m := range grant.Members {
			at := slices.IndexFunc(s.Nodes, func(n model.Node) bool { return n.Name == m.Node })
			got[at/16]++
		}
		for r := range got {
			used += min(1, got[r])
			for other := range got {
				// A rack with fewer members than another has no more room.
				must.True(t, got[r] == 0 || got[other] <= got[r]+1 || got[r] == free[r], must.Sprintf("%v of %v", got, free))
			}
		}
		sorted := slices.Sorted(slices.Values(free))
		fewest, room := 0, 0
		for at := len(sorted) - 1; at >= 0 && room < members; at-- {
			room += sorted[at]
			fewest++
		}
		must.True(t, !found || used == fewest, must.Sprintf("%d racks, %d would do", used, fewest))
	})
}

// TestWholeNodesStayWhole: under a stream of one-GPU gangs at half load, in which one ends for each that starts, at least 90 %
// of the nodes are empty that could be, and whole racks among them (paper.md A5).
func TestWholeNodesStayWhole(t *testing.T) {
	t.Parallel()
	const nodes, rounds = 100, 20_000
	rng := rand.New(rand.NewSource(1))
	c := fit.New(racks(nodes, 10, func(int) gpu.Set { return gpu.FirstN(8) }))
	g := gang(0, 1, 1, "rack")
	var running []model.Grant
	used := make(map[string]int)
	empty, samples := 0, 0
	for round := range rounds {
		grant, found := c.Fit(g, epoch)
		must.True(t, found)
		c.Take(g, grant)
		running = append(running, grant)
		used[grant.Members[0].Node]++
		if len(running) <= nodes*8/2 {
			continue
		}
		at := rng.Intn(len(running))
		ended := running[at]
		running = slices.Delete(running, at, at+1)
		c.Give(g, ended.Members)
		if used[ended.Members[0].Node]--; used[ended.Members[0].Node] == 0 {
			delete(used, ended.Members[0].Node)
		}
		if round > rounds/2 {
			empty += nodes - len(used)
			samples++
		}
	}
	must.GreaterEq(t, 0.9*nodes/2, float64(empty)/float64(samples))
	t.Logf("%.1f of %d nodes are empty, at most %d could be", float64(empty)/float64(samples), nodes, nodes/2)
}
