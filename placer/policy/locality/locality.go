// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package locality says what distance costs a gang: how fast it runs where it is, beside the best place it could have.
// It is the one model of that: a gang with `muster_relax_after = "auto"` waits by it, and the replay makes gangs in bad
// places run longer by it. Every number in it is in this file and comes from published measurements, with which its test
// compares the model. It imports package model alone; package fit and the replay import it.
package locality

import (
	"math"

	"github.com/nomad-muster/muster/placer/model"
)

// Spread is how a gang lies in the cluster, as far as it matters to its speed. The zero value stands for one server.
type Spread struct {
	Servers int  // nodes that it uses
	Needed  int  // nodes that it needs at least: see Needed
	Apart   bool // not all in one domain of the innermost level, so the slower network between domains is in its way
}

// weight is how much of the time that a gang of a class spends on talking shows in its run time, beside the jobs that
// were measured on Philly, which are what an unknown job is taken for. High is fitted to VGG and AlexNet (Tiresias,
// NSDI 2019, figure 3; Themis, NSDI 2020, table 1), low to Inception and ResNet (the same, and Gandiva, OSDI 2018,
// figure 2).
func weight(c model.Comm) float64 {
	switch c {
	case model.CommNone:
		return 0
	case model.CommLow:
		return 0.2
	case model.CommHigh:
		return 2
	case model.CommUnknown:
	}
	return 1
}

// exposed is the time that communication adds to an iteration, as a part of the time without any, for an unknown job
// whose servers share one domain: by the number of times that the servers it needs were doubled. It is what the
// relative speeds s in the sources leave, 1/s - 1.
//
//   - From one server: to two 0.854 (Jeon et al., USENIX ATC 2019, table 4: ResNet-50, same server against two); to
//     four 0.622, which is Gandiva's figure 2 (ResNet-50 on four servers: 0.42) by way of across.
//   - From several, where table 4's price for leaving the server is paid in any case: table 5 of the same paper (16 GPUs:
//     on 4 servers 0.938 and on 8 servers 0.654 of the use that they had on two).
func exposed(needed int, doublings float64) float64 {
	steps := [...]float64{0, 0.171, 0.608}
	if needed > 1 {
		steps = [...]float64{0.171, 0.248, 0.790}
	}
	last := len(steps) - 1
	if doublings >= float64(last) {
		return steps[last] // nobody has measured farther
	}
	whole := int(doublings)
	return steps[whole] + (doublings-float64(whole))*(steps[whole+1]-steps[whole])
}

// across is how much longer the same communication takes between domains of the innermost level than inside: ResNet-50 on
// two servers ran at 0.72 in Gandiva's cluster (figure 2) and at 0.854 within Philly's InfiniBand racks (table 4). The
// former is taken for Ethernet, as which Philly's racks were joined.
const across = 2.27

// Speed returns how fast a gang of that class runs, 1 being its speed on as few servers as will do within one domain of
// the innermost level. It is more than 0 and at most 1.
func Speed(comm model.Comm, s Spread) float64 {
	if s.Servers <= 1 {
		return 1
	}
	network := 1.0
	if s.Apart {
		network = across
	}
	needed := max(1, s.Needed)
	doublings := math.Log2(max(1, float64(s.Servers)/float64(needed)))
	w := weight(comm)
	return (1 + w*exposed(needed, 0)) / (1 + w*network*exposed(needed, doublings))
}

// Needed is how many nodes a gang needs at least, where the largest node has that many GPUs: by its GPUs, and by how many
// of each group's members one node holds. What a node has besides GPUs is left aside.
func Needed(g model.Gang, largest int) int {
	needed := 1
	if largest > 0 {
		needed = max(needed, (g.GPUs()+largest-1)/largest)
	}
	for _, group := range g.Groups {
		if group.GPUs == 0 {
			continue
		}
		if each := largest / group.GPUs; each > 0 {
			needed = max(needed, (group.Count+each-1)/each)
		}
	}
	return needed
}

// Of returns how a placed gang lies: levels are those of the snapshot, largest is the GPUs of its largest node. It
// reads the gang's Groups and the grant's Members and Level.
func Of(g model.Gang, grant model.Grant, levels []string, largest int) Spread {
	nodes := make(map[string]bool)
	for _, m := range grant.Members {
		nodes[m.Node] = true
	}
	return Spread{Servers: len(nodes), Needed: Needed(g, largest), Apart: Apart(levels, grant.Level)}
}

// Apart says whether a gang that got a locality may lie in several domains of the innermost level. Where a cluster has no
// levels nothing is known of its network, and no gang counts as being apart.
func Apart(levels []string, level string) bool {
	return len(levels) > 0 && level != model.LocalityNode && level != levels[len(levels)-1]
}
