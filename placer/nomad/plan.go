// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/nomad/structs"
)

// Room is CPU, memory and disk: what a member needs, or what a node has left.
type Room struct {
	CPUMHz   int64
	MemoryMB int64
	DiskMB   int64
}

// Free is what a node has left after every allocation that is not terminal.
func (s State) Free(node *structs.Node) Room {
	room := roomOf(node.ComparableResources())
	if reserved := node.ComparableReservedResources(); reserved != nil {
		room = room.Less(roomOf(reserved), 1)
	}
	for _, a := range s.Allocs[node.ID] {
		if !a.Terminal() && a.Resources != nil {
			room = room.Less(roomOf(a.Resources.Comparable()), 1)
		}
	}
	return room
}

func roomOf(r *structs.ComparableResources) Room {
	return Room{r.Flattened.Cpu.CpuShares, r.Flattened.Memory.MemoryMB, r.Shared.DiskMB}
}

// Less is the room that is left after something was taken some times.
func (r Room) Less(other Room, times int) Room {
	n := int64(times)
	return Room{r.CPUMHz - n*other.CPUMHz, r.MemoryMB - n*other.MemoryMB, r.DiskMB - n*other.DiskMB}
}

// Needs is what one member of a group takes on a node. Nomad counts prestart and poststop tasks in its own way, and
// this is it. The node matters only to tasks that ask for whole cores; nil: they count as no CPU.
func (j *Job) Needs(group string, node *structs.Node) (Room, bool) {
	if j.Spec == nil {
		return Room{}, false
	}
	spec := j.Spec.LookupTaskGroup(group)
	if spec == nil {
		return Room{}, false
	}
	return roomOf(resources(spec, node).Comparable()), true
}

// DistinctHosts says whether the job keeps all of its members on different nodes, or only those of a group.
func (j *Job) DistinctHosts(group string) (wholeJob, ofGroup bool) {
	if j.Spec == nil {
		return false, false
	}
	distinct := func(c *structs.Constraint) bool {
		return c.Operand == structs.ConstraintDistinctHosts && c.RTarget != "false"
	}
	wholeJob = slices.ContainsFunc(j.Spec.Constraints, distinct)
	if spec := j.Spec.LookupTaskGroup(group); spec != nil {
		ofGroup = slices.ContainsFunc(spec.Constraints, distinct)
	}
	return wholeJob, ofGroup
}

// Placing is members of one group that shall be placed on a node.
type Placing struct {
	Job     *Job
	Group   string
	Members int
}

// group is the group that is placed; nil: the job has no such group any more.
func (p Placing) group() *structs.TaskGroup {
	if p.Job.Spec == nil {
		return nil
	}
	return p.Job.Spec.LookupTaskGroup(p.Group)
}

// on are the allocations of a node that are not terminal, as far as Nomad's arithmetic looks at them.
func (s State) on(node *structs.Node) []*structs.Allocation {
	var all []*structs.Allocation
	for _, a := range s.Allocs[node.ID] {
		if !a.Terminal() && a.Resources != nil {
			all = append(all, &structs.Allocation{ID: a.ID, NodeID: node.ID, ClientStatus: a.Client, AllocatedResources: a.Resources})
		}
	}
	return all
}

// Fits asks Nomad's own arithmetic whether a node can take all of these beside what it runs: CPU, memory, disk,
// bandwidth and ports. The reason names what is short.
func (s State) Fits(node *structs.Node, placings []Placing) (reason string, fits bool) {
	all, network := s.on(node), s.Network(node, nil)
	defer network.index.Release()
	if network.bad != "" {
		return network.bad, false
	}
	for _, p := range placings {
		group := p.group()
		if group == nil {
			return "the job has no group " + p.Group + " any more", false
		}
		for i := range p.Members {
			if err := network.take(group); err != nil {
				return "network: " + err.Error(), false
			}
			all = append(all, &structs.Allocation{
				ID: fmt.Sprintf("new %s %d", p.Group, i), NodeID: node.ID, ClientStatus: structs.AllocClientStatusPending,
				AllocatedResources: resources(group, node),
			})
		}
	}
	fits, dimension, _, err := structs.AllocsFit(node, all, network.index, false)
	switch {
	case err != nil:
		return err.Error(), false
	case !fits:
		return "not enough " + dimension, false
	}
	return "", true
}

// resources is what the scheduler would give one member, but for devices and the network.
func resources(group *structs.TaskGroup, node *structs.Node) *structs.AllocatedResources {
	out := &structs.AllocatedResources{
		Tasks:          make(map[string]*structs.AllocatedTaskResources, len(group.Tasks)),
		TaskLifecycles: make(map[string]*structs.TaskLifecycleConfig, len(group.Tasks)),
	}
	if group.EphemeralDisk != nil {
		out.Shared.DiskMB = int64(group.EphemeralDisk.SizeMB)
	}
	for _, task := range group.Tasks {
		out.TaskLifecycles[task.Name] = task.Lifecycle
		out.Tasks[task.Name] = &structs.AllocatedTaskResources{
			Cpu:    structs.AllocatedCpuResources{CpuShares: cpuShares(task.Resources, node)},
			Memory: structs.AllocatedMemoryResources{MemoryMB: int64(task.Resources.MemoryMB), MemoryMaxMB: int64(task.Resources.MemoryMaxMB)},
		}
	}
	return out
}

func cpuShares(r *structs.Resources, node *structs.Node) int64 {
	if r.Cores == 0 {
		return int64(r.CPU)
	}
	if node == nil || node.NodeResources == nil || node.NodeResources.Cpu.TotalCpuCores == 0 {
		return 0
	}
	return int64(r.Cores) * node.NodeResources.Cpu.SharesPerCore()
}
