// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// Domains returns where a gang may go by now: for each rung of the ladder that it may use, innermost first, the
// domains, each as the numbers of its nodes. They are shared: do not change them.
func (c *Cluster) Domains(g model.Gang, now time.Time) [][][]int {
	widest, _ := c.permitted(&g, now)
	if widest < 0 {
		return nil
	}
	single := make([][]int, len(c.nodes))
	for i := range c.nodes {
		single[i] = c.everyone[i : i+1]
	}
	rungs := [][][]int{single}
	for _, r := range c.rungs[1 : widest+1] {
		domains := make([][]int, len(r.domains))
		for at, d := range r.domains {
			domains[at] = c.everyone[d.lo:d.hi]
		}
		rungs = append(rungs, domains)
	}
	return rungs
}

// Number returns the number of a node, or false if the cluster does not know it.
func (c *Cluster) Number(node string) (int, bool) {
	i, known := c.byName[node]
	return i, known
}

// Free returns the GPUs of a node, by its number, that are free.
func (c *Cluster) Free(node int) gpu.Set { return c.nodes[node].free }

// Usable returns the GPUs of a node, by its number, that a slot could ever hold.
func (c *Cluster) Usable(node int) gpu.Set { return c.nodes[node].Usable }

// Accepts says whether a node, by its number, is open and Nomad would place the group there.
func (c *Cluster) Accepts(group *model.Group, node int) bool {
	if c.nodes[node].Closed != "" {
		return false
	}
	if len(group.Refused) == 0 {
		return true
	}
	_, refused := group.Refused[c.nodes[node].Name]
	return !refused
}

// Load returns how many of the usable GPUs of all open nodes are in use or withheld, and how many there are.
func (c *Cluster) Load() (inUse, usable int) {
	for at, t := range c.summary(c.all()).grades {
		usable += t.open * c.grades[at].usable
		inUse += t.open * (c.grades[at].usable - c.grades[at].free)
	}
	return inUse, usable
}
