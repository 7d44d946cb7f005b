// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/placer/model"
)

// shape is what decides whether a gang fits, beside what is free.
type shape struct {
	width  int // rungs of the ladder that it may use
	nvlink bool
	groups []groupShape
}

type groupShape struct {
	count, gpus       int
	cpu, memory, disk int64
	refused           uintptr // identity of the list of nodes that would refuse it; 0: none would
}

func (r *round) shapeOf(g *model.Gang) shape {
	s := shape{width: r.cluster.Width(*g, r.now), nvlink: g.NVLinkRequired}
	for i := range g.Groups {
		group := &g.Groups[i]
		if group.Count == 0 {
			continue
		}
		shape := groupShape{count: group.Count, gpus: group.GPUs, cpu: group.CPUMHz, memory: group.MemoryMB, disk: group.DiskMB}
		if len(group.Refused) > 0 {
			shape.refused = reflect.ValueOf(group.Refused).Pointer()
		}
		s.groups = append(s.groups, shape)
	}
	return s
}

// refusals are the shapes that did not fit in this round. As a round only takes, what did not fit once does not fit
// later, and neither does what asks for more.
type refusals struct{ shapes []shape }

func (r *refusals) add(s shape) { r.shapes = append(r.shapes, s) }

func (r *refusals) knows(s shape) bool {
	return slices.ContainsFunc(r.shapes, s.asksFor)
}

// asksFor says whether the shape asks for at least what the other does.
func (s shape) asksFor(other shape) bool {
	if len(s.groups) != len(other.groups) || s.width > other.width || other.nvlink && !s.nvlink {
		return false
	}
	if len(s.groups) > 1 {
		// The search for several groups may give up, so that more may succeed where less was given up on.
		return slices.Equal(s.groups, other.groups) && s.width == other.width && s.nvlink == other.nvlink
	}
	for i, g := range s.groups {
		o := other.groups[i]
		switch {
		case g.count < o.count || g.gpus < o.gpus || g.cpu < o.cpu || g.memory < o.memory || g.disk < o.disk:
			return false
		case o.refused != 0 && o.refused != g.refused:
			return false
		case other.nvlink && g.gpus != o.gpus: // not each part of a joined set is joined
			return false
		}
	}
	return true
}

// key tells shapes apart in what package fit says about them, texts included.
func (r *round) key(g *model.Gang) string {
	var key strings.Builder
	fmt.Fprint(&key, g.Locality, g.NVLinkRequired, g.RelaxNever, g.RelaxAuto, g.Comm, g.Avoid)
	if g.Locality != model.LocalityAny && !g.RelaxNever {
		fmt.Fprint(&key, g.RelaxAfter, g.WaitingSince)
	}
	if g.RelaxAuto {
		fmt.Fprint(&key, g.Name)
	}
	if g.NotBefore.After(r.now) {
		fmt.Fprint(&key, g.NotBefore, g.Held)
	}
	for i, shape := range r.shapeOf(g).groups {
		fmt.Fprint(&key, "|", g.Groups[i].Name, shape)
	}
	return key.String()
}
