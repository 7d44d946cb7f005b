// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/nomad/structs"
	psstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/hashicorp/nomad/scheduler"
)

// SlotDevice is a slot that does not exist yet, as the device plugin would offer it: Nomad's device checker is asked
// whether a member would take it.
type SlotDevice struct {
	Gang      string // the device group's name starts with it
	Value     string // of the attribute gang
	Rank      int
	Size      int
	GPUs      int // of the slot
	Model     string
	MemoryMiB uint64 // of each GPU
	NVLink    bool   // its GPUs are joined by NVLink
	Node      string // the node's name in the ledger
}

// Closed says why nothing at all may be placed on a node now; empty: it is open.
func Closed(node *structs.Node) string {
	switch {
	case node.DrainStrategy != nil:
		return "it is draining"
	case node.Status != structs.NodeStatusReady:
		return "Nomad says that it is " + node.Status
	case node.SchedulingEligibility != structs.NodeSchedulingEligible:
		return "it is not eligible for scheduling"
	}
	return ""
}

// Checker asks Nomad's own checkers whether a group may run on a node, and remembers the answers for as long as neither
// the job's spec nor the node changes. The node's ModifyIndex covers what its computed class does not: driver health,
// host volumes, attributes that are unique. One goroutine uses it.
type Checker struct {
	known, before map[asker]map[string]verdict // by node ID
}

// asker is a group of one version of a job.
type asker struct {
	job   *structs.Job
	group string
}

// verdict is an answer and what it depends on besides the asker.
type verdict struct {
	node   *structs.Node
	index  uint64
	device SlotDevice
	answer string
}

// NewChecker makes a checker that remembers nothing yet.
func NewChecker() *Checker {
	return &Checker{known: map[asker]map[string]verdict{}, before: map[asker]map[string]verdict{}}
}

// Turn forgets the groups that nobody asked about since the last Turn but one.
func (c *Checker) Turn() { c.before, c.known = c.known, map[asker]map[string]verdict{} }

// Refusal says why Nomad would not place a group of a job on a node with such a slot; empty: it would, as far as room
// and what Network counts allow. CSI volumes are not looked at: they depend on more than the node.
func (c *Checker) Refusal(job *Job, group string, node *structs.Node, device SlotDevice) string {
	if job.Spec == nil {
		return job.Problem
	}
	who := asker{job.Spec, group}
	verdicts, found := c.known[who]
	if !found {
		if verdicts = c.before[who]; verdicts == nil {
			verdicts = map[string]verdict{}
		}
		c.known[who] = verdicts
	}
	v := verdicts[node.ID]
	if v.node != node || v.index != node.ModifyIndex || v.device != device {
		v = verdict{node, node.ModifyIndex, device, refusal(job.Spec, group, node, device)}
		verdicts[node.ID] = v
	}
	return v.answer
}

func refusal(job *structs.Job, name string, node *structs.Node, device SlotDevice) string {
	group := job.LookupTaskGroup(name)
	if group == nil {
		return "the job has no group " + name + " any more"
	}
	if !node.IsInAnyDC(job.Datacenters) {
		return fmt.Sprintf("the job does not ask for datacenter %s", node.Datacenter)
	}
	if pool := job.NodePool; pool != "" && !node.IsInPool(pool) {
		return fmt.Sprintf("the node is in pool %s, the job asks for pool %s", node.NodePool, pool)
	}
	return check(job, group, withDevice(node, device))
}

// check runs Nomad's checkers in the scheduler's order.
func check(job *structs.Job, group *structs.TaskGroup, node *structs.Node) string {
	ctx := scheduler.NewEvalContext(nil, nil, &structs.Plan{}, hclog.NewNullLogger())
	drivers, constraints := needs(group)
	for _, list := range [][]*structs.Constraint{job.Constraints, constraints} {
		if !scheduler.NewConstraintChecker(ctx, list).Feasible(node) {
			return "it does not meet the constraint " + filtered(ctx.Metrics())
		}
	}
	if !scheduler.NewDriverChecker(ctx, drivers).Feasible(node) {
		return "its task driver is missing or unhealthy: " + missingDriver(drivers, node)
	}
	volumes := scheduler.NewHostVolumeChecker(ctx)
	volumes.SetVolumes("", group.Volumes)
	if !volumes.Feasible(node) {
		return "it lacks a host volume of the job"
	}
	if len(group.Networks) > 0 {
		network := scheduler.NewNetworkChecker(ctx)
		network.SetNetwork(group.Networks[0])
		if !network.Feasible(node) {
			return "it lacks the network that the group asks for: " + filtered(ctx.Metrics())
		}
	}
	if why := indistinct(job, []Spot{{Group: group.Name, Node: node}}); why != "" {
		return "it does not meet the job's distinct_property: " + why
	}
	devices := scheduler.NewDeviceChecker(ctx)
	devices.SetTaskGroup(group)
	if !devices.Feasible(node) {
		return "its GPUs do not meet the constraints of the job's device block"
	}
	return ""
}

// needs gathers what the scheduler asks of a node for all tasks of a group.
func needs(group *structs.TaskGroup) (drivers map[string]struct{}, constraints []*structs.Constraint) {
	drivers = map[string]struct{}{}
	constraints = slices.Clone(group.Constraints)
	for _, task := range group.Tasks {
		drivers[task.Driver] = struct{}{}
		constraints = append(constraints, task.Constraints...)
	}
	return drivers, constraints
}

// filtered is what a checker noted as its reason.
func filtered(metrics *structs.AllocMetric) string {
	reasons := slices.Sorted(maps.Keys(metrics.ConstraintFiltered))
	if len(reasons) == 0 {
		return "(Nomad gives no reason)"
	}
	return reasons[0]
}

func missingDriver(drivers map[string]struct{}, node *structs.Node) string {
	for _, driver := range slices.Sorted(maps.Keys(drivers)) {
		if info := node.Drivers[driver]; info == nil || !info.Detected || !info.Healthy {
			return driver
		}
	}
	return "(Nomad does not say which)"
}

// withDevice is the node with the slot in place of whatever slots it offers now. It shares all else with the original.
func withDevice(node *structs.Node, d SlotDevice) *structs.Node {
	if node.NodeResources == nil {
		return node
	}
	changed, resources := *node, *node.NodeResources
	resources.Devices = nil
	for _, device := range node.NodeResources.Devices {
		if device.Vendor != SlotVendor || device.Type != SlotType {
			resources.Devices = append(resources.Devices, device)
		}
	}
	resources.Devices = append(resources.Devices, d.offer())
	changed.NodeResources = &resources
	return &changed
}

func (d SlotDevice) offer() *structs.NodeDeviceResource {
	offer := &structs.NodeDeviceResource{
		Vendor: SlotVendor, Type: SlotType, Name: fmt.Sprintf("%s.%d", d.Gang, d.Rank),
		Attributes: map[string]*psstructs.Attribute{
			"gang":        psstructs.NewStringAttribute(d.Value),
			"rank":        psstructs.NewIntAttribute(int64(d.Rank), ""),
			"size":        psstructs.NewIntAttribute(int64(d.Size), ""),
			"reservation": psstructs.NewStringAttribute("000000000000"),
			"rev":         psstructs.NewIntAttribute(0, ""),
			"model":       psstructs.NewStringAttribute(d.Model),
			"memory":      psstructs.NewIntAttribute(int64(d.MemoryMiB), psstructs.UnitMiB), //nolint:gosec // G115: fits for ever
			"nvlink":      psstructs.NewBoolAttribute(d.NVLink),
			"muster.node": psstructs.NewStringAttribute(d.Node),
		},
	}
	for i := range d.GPUs {
		offer.Instances = append(offer.Instances, &structs.NodeDevice{ID: fmt.Sprint(i), Healthy: true})
	}
	return offer
}
