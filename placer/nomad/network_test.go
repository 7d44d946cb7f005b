// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
)

// withPorts is a job whose members ask for these ports of their node.
func withPorts(ports ...structs.Port) *Job {
	return gpuJob(func(_ *structs.Job, g *structs.TaskGroup) { g.Networks = structs.Networks{{ReservedPorts: ports}} })
}

// TestNetwork says what a node can't give to one more member.
func TestNetwork(t *testing.T) {
	taken := &Alloc{ID: "a", Client: "running", Resources: &structs.AllocatedResources{
		Shared: structs.AllocatedSharedResources{Ports: structs.AllocatedPorts{{Label: "x", Value: 9000, HostIP: "10.0.0.1"}}},
	}}
	for name, tc := range map[string]struct {
		job  *Job
		node func(*structs.Node)
		want string
	}{
		"a port that is free":                 {job: withPorts(structs.Port{Label: "http", Value: 8080})},
		"a port of another allocation":        {job: withPorts(structs.Port{Label: "http", Value: 9000}), want: "reserved port collision http=9000"},
		"a port of a gang still to be placed": {job: withPorts(structs.Port{Label: "http", Value: 7000}), want: "reserved port collision http=7000"},
		"a port that the node keeps": {
			job: withPorts(structs.Port{Label: "ssh", Value: 22}),
			node: func(n *structs.Node) {
				n.ReservedResources = &structs.NodeReservedResources{Networks: structs.NodeReservedNetworkResources{ReservedHostPorts: "22"}}
			},
			want: "reserved port collision ssh=22",
		},
		"a network that it lacks": {
			job: withPorts(structs.Port{Label: "ib", Value: 1, HostNetwork: "rdma"}), want: "no addresses available for rdma network",
		},
		"a network that its meta names": {
			job:  withPorts(structs.Port{Label: "http", Value: 9000, HostNetwork: "${meta.fabric}"}),
			node: func(n *structs.Node) { n.Meta["fabric"] = "default" },
			want: "reserved port collision http=9000",
		},
		"a network that no meta names": {
			job: withPorts(structs.Port{Label: "http", Value: 1, HostNetwork: "${meta.fabric}"}), want: "no host network ${meta.fabric} for port http",
		},
		"bandwidth": {
			job: gpuJob(func(_ *structs.Job, g *structs.TaskGroup) {
				g.Tasks[0].Resources.Networks = structs.Networks{{MBits: 2000}}
			}),
			node: func(n *structs.Node) {
				n.NodeResources.Networks[0].MBits, n.NodeResources.Networks[0].CIDR = 1000, "10.0.0.1/32"
			},
			want: "bandwidth exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := gpuNode()
			if tc.node != nil {
				tc.node(node)
			}
			state := State{Allocs: map[string][]*Alloc{"id": {taken}}}
			pending := []Placing{{Job: withPorts(structs.Port{Label: "p", Value: 7000}), Group: "worker", Members: 1}}
			must.True(t, tc.job.AsksForNetwork("worker"))
			must.Eq(t, tc.want, state.Network(node, pending).Refusal(tc.job, "worker"))
			why, fits := state.Fits(node, append(pending, Placing{Job: tc.job, Group: "worker", Members: 1}))
			must.Eq(t, tc.want == "", fits)
			if tc.want != "" {
				must.Eq(t, "network: "+tc.want, why)
			}
		})
	}
	must.False(t, gpuJob(nil).AsksForNetwork("worker"))
}

// TestIndistinct: members that a distinct_property keeps apart are found on nodes that share it.
func TestIndistinct(t *testing.T) {
	job := gpuJob(func(_ *structs.Job, g *structs.TaskGroup) {
		g.Constraints = []*structs.Constraint{{LTarget: "${meta.rack}", RTarget: "2", Operand: "distinct_property"}}
	})
	spots := func(racks ...string) []Spot {
		var out []Spot
		for i, rack := range racks {
			node := gpuNode()
			node.ID, node.Meta = string(rune('a'+i)), map[string]string{"rack": rack}
			out = append(out, Spot{Group: "worker", Node: node})
		}
		return out
	}
	must.Eq(t, "", job.Indistinct(spots("r1", "r1", "r2")))
	must.Eq(t, "distinct_property: ${meta.rack}=r1 used by 2 allocs", job.Indistinct(spots("r1", "r2", "r1", "r1")))
	must.Eq(t, "", gpuJob(nil).Indistinct(spots("r1", "r1", "r1")))
}
