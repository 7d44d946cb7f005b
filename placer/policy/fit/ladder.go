// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// buildRungs makes the ladder: single nodes, then the levels from the innermost outward, then the whole cluster. A
// node without a label at a level is in no domain of it. Labels are compared as whole paths, so that rack r1 of zone a
// is not rack r1 of zone b.
func (c *Cluster) buildRungs() []rung {
	all := domain{}
	single := rung{name: model.LocalityNode, domains: make([]domain, len(c.nodes))}
	for i := range c.nodes {
		n := &c.nodes[i]
		single.domains[i] = domain{name: n.Name, nodes: []int{i}, usable: n.usable}
		all.nodes = append(all.nodes, i)
		all.usable += n.usable
	}
	rungs := []rung{single}
	for level, name := range slices.Backward(c.levels) {
		rungs = append(rungs, rung{name: name, domains: c.domainsOf(level)})
	}
	return append(rungs, rung{name: model.LocalityAny, domains: []domain{all}})
}

// domainsOf returns the domains of a level, ordered by path.
func (c *Cluster) domainsOf(level int) []domain {
	var domains []domain
	paths := make(map[string]int) // key of the path to its index in domains
	labels := make(map[string]int)
	for i := range c.nodes {
		n := &c.nodes[i]
		if n.label(level) == "" {
			continue
		}
		key := pathKey(n.Path[:level+1])
		d, known := paths[key]
		if !known {
			d = len(domains)
			paths[key] = d
			labels[n.label(level)]++
			domains = append(domains, domain{name: n.Path[level]})
		}
		domains[d].nodes = append(domains[d].nodes, i)
		domains[d].usable += n.usable
	}
	for d := range domains {
		if labels[domains[d].name] > 1 {
			domains[d].name = strings.Join(c.nodes[domains[d].nodes[0]].Path[:level+1], "/")
		}
	}
	return domains
}

// pathKey makes a path usable as the key of a map; labels hold no NUL.
func pathKey(path []string) string { return strings.Join(path, "\x00") }

// rungOf finds the rung of a locality, or -1 if the cluster has no such level.
func (c *Cluster) rungOf(locality string) int {
	return slices.IndexFunc(c.rungs, func(r rung) bool { return r.name == locality })
}

// permitted returns the widest rung that the gang may use now: the one that it asks for, and one wider for each
// RelaxAfter that it has waited. relaxAt is when the next wider one comes; zero if there is none or the gang never
// relaxes. The rung is -1 if the cluster does not know the gang's locality.
func (c *Cluster) permitted(g *model.Gang, now time.Time) (widest int, relaxAt time.Time) {
	last := len(c.rungs) - 1
	wanted := c.rungOf(g.Locality)
	if wanted < 0 || wanted == last || g.RelaxNever {
		return wanted, time.Time{}
	}
	if g.RelaxAfter <= 0 {
		return last, time.Time{}
	}
	steps := max(0, now.Sub(g.WaitingSince)/g.RelaxAfter)
	if steps >= time.Duration(last-wanted) {
		return last, time.Time{}
	}
	return wanted + int(steps), g.WaitingSince.Add((steps + 1) * g.RelaxAfter)
}
