// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/nomad/structs"
)

// Network is the ports and bandwidth of a node with what is taken of them. One goroutine uses it.
type Network struct {
	node  *structs.Node
	index *structs.NetworkIndex
	bad   string // why Nomad can't count them
}

// Network counts what every allocation of a node that is not terminal, and every placing, takes of its network. Placings
// that find no room take nothing.
func (s State) Network(node *structs.Node, placings []Placing) *Network {
	n := &Network{node: node, index: structs.NewNetworkIndex()}
	if err := n.index.SetNode(node); err != nil {
		n.bad = err.Error()
	} else if collide, reason := n.index.AddAllocs(s.on(node)); collide {
		n.bad = reason
	}
	for _, p := range placings {
		if group := p.group(); group != nil {
			for range p.Members {
				_ = n.take(group)
			}
		}
	}
	return n
}

// Refusal says what a group needs of the network for one more member and can't have; empty: nothing. Ports that Nomad
// chooses itself are not looked at here, as a node hardly ever runs out of them.
func (n *Network) Refusal(job *Job, group string) string {
	if job.Spec == nil {
		return job.Problem
	}
	spec := job.Spec.LookupTaskGroup(group)
	if spec == nil || n.bad != "" {
		return n.bad
	}
	if _, err := n.ports(spec, true); err != nil {
		return err.Error()
	}
	for _, task := range spec.Tasks {
		for _, ask := range task.Resources.Networks {
			if _, err := n.index.AssignTaskNetwork(ask.Copy()); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// AsksForNetwork says whether a group names ports of the node, or asks a task's network for anything: what not every node
// can give once more.
func (j *Job) AsksForNetwork(group string) bool {
	if j.Spec == nil {
		return false
	}
	spec := j.Spec.LookupTaskGroup(group)
	if spec == nil {
		return false
	}
	for _, network := range spec.Networks {
		if len(network.ReservedPorts) > 0 {
			return true
		}
	}
	for _, task := range spec.Tasks {
		if len(task.Resources.Networks) > 0 {
			return true
		}
	}
	return false
}

// take takes what a member needs, those ports first that it names, or says what is short.
func (n *Network) take(group *structs.TaskGroup) error {
	for _, named := range []bool{true, false} {
		ports, err := n.ports(group, named)
		if err != nil {
			return err
		}
		n.index.AddReservedPorts(ports)
	}
	for _, task := range group.Tasks {
		for _, ask := range task.Resources.Networks {
			offer, err := n.index.AssignTaskNetwork(ask.Copy())
			if err != nil {
				return err
			}
			n.index.AddReserved(offer)
		}
	}
	return nil
}

// ports are those that Nomad would give a member of a group: the named ones or those that it chooses.
func (n *Network) ports(group *structs.TaskGroup, named bool) (structs.AllocatedPorts, error) {
	if len(group.Networks) == 0 {
		return nil, nil
	}
	ask := group.Networks[0].Copy() // the scheduler looks at the first only
	ask.Canonicalize()
	if named {
		ask.DynamicPorts = nil
	} else {
		ask.ReservedPorts = nil
	}
	for _, ports := range [][]structs.Port{ask.DynamicPorts, ask.ReservedPorts} {
		for i := range ports {
			name, ok := hostNetwork(ports[i].HostNetwork, n.node)
			if !ok {
				return nil, fmt.Errorf("no host network %s for port %s", ports[i].HostNetwork, ports[i].Label)
			}
			ports[i].HostNetwork = name
		}
	}
	return n.index.AssignPorts(ask)
}

// hostNetwork is the name of a host network, which may be an attribute or a meta value of the node.
func hostNetwork(name string, node *structs.Node) (resolved string, ok bool) {
	inner, isReference := strings.CutPrefix(strings.TrimSuffix(name, "}"), "${")
	if !isReference {
		return name, true
	}
	if key, is := strings.CutPrefix(inner, "attr."); is {
		resolved, ok = node.Attributes[key]
	} else if key, is := strings.CutPrefix(inner, "meta."); is {
		resolved, ok = node.Meta[key]
	}
	return resolved, ok
}
