// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/scheduler"
)

// Spot is a member of a group on a node.
type Spot struct {
	Group string
	Node  *structs.Node
}

// Indistinct says which distinct_property constraint of the job members would break that are placed one after another;
// empty: none. Members that run already are not counted: a gang is placed whole.
func (j *Job) Indistinct(spots []Spot) string {
	if j.Spec == nil {
		return j.Problem
	}
	return indistinct(j.Spec, spots)
}

func indistinct(job *structs.Job, spots []Spot) string {
	if !slices.ContainsFunc(job.Constraints, isDistinct) && !slices.ContainsFunc(spots, func(s Spot) bool { return distinctIn(job, s.Group) }) {
		return "" // nearly always, and asked for each group and node
	}
	nodes := nodesByID{nodes: map[string]*structs.Node{}}
	plan := &structs.Plan{NodeAllocation: map[string][]*structs.Allocation{}}
	ctx := scheduler.NewEvalContext(nil, nodes, plan, hclog.NewNullLogger())
	for _, spot := range spots {
		if why := unlike(ctx, job, spot); why != "" {
			return why
		}
		nodes.nodes[spot.Node.ID] = spot.Node
		plan.NodeAllocation[spot.Node.ID] = append(plan.NodeAllocation[spot.Node.ID], &structs.Allocation{
			Namespace: job.Namespace, JobID: job.ID, TaskGroup: spot.Group, NodeID: spot.Node.ID, ClientStatus: structs.AllocClientStatusPending,
		})
	}
	return ""
}

func isDistinct(c *structs.Constraint) bool { return c.Operand == structs.ConstraintDistinctProperty }

func distinctIn(job *structs.Job, group string) bool {
	spec := job.LookupTaskGroup(group)
	return spec != nil && slices.ContainsFunc(spec.Constraints, isDistinct)
}

// unlike says why the next member can't be on its node beside those that are planned; empty: it can.
func unlike(ctx scheduler.Context, job *structs.Job, spot Spot) string {
	for _, c := range job.Constraints {
		if isDistinct(c) {
			set := scheduler.NewPropertySet(ctx, job)
			set.SetJobConstraint(c)
			if ok, why := set.SatisfiesDistinctProperties(spot.Node, spot.Group); !ok {
				return why
			}
		}
	}
	group := job.LookupTaskGroup(spot.Group)
	if group == nil {
		return ""
	}
	for _, c := range group.Constraints {
		if isDistinct(c) {
			set := scheduler.NewPropertySet(ctx, job)
			set.SetTGConstraint(c, group.Name)
			if ok, why := set.SatisfiesDistinctProperties(spot.Node, spot.Group); !ok {
				return why
			}
		}
	}
	return ""
}

// nodesByID is as much of the scheduler's state as its property sets look at; the rest is missing.
type nodesByID struct {
	scheduler.State
	nodes map[string]*structs.Node
}

// AllocsByJob finds none: see Indistinct.
func (n nodesByID) AllocsByJob(memdb.WatchSet, string, string, bool) ([]*structs.Allocation, error) {
	return nil, nil
}

// NodeByID finds a node on which a member is planned.
func (n nodesByID) NodeByID(_ memdb.WatchSet, id string) (*structs.Node, error) {
	return n.nodes[id], nil
}
