// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import "github.com/nomad-muster/muster/e2e/fakenvml"

// CrossedPairs is a machine of four GPUs in bridged pairs that are not neighbours by index: 0 with 2, and 1 with 3.
// Whoever takes GPUs in index order never gets a pair.
func CrossedPairs(name string) fakenvml.Machine {
	machine := fakenvml.Pairs(name, 4)
	for i, gpu := range machine.GPUs {
		for n := range gpu.Links {
			machine.GPUs[i].Links[n].Peer = (i + 2) % 4
		}
	}
	return machine
}

// FourNodes are the machines of most stories: two HGX of eight GPUs in rack r1, one in rack r2, and there also a machine
// of four GPUs in pairs.
func FourNodes() []Node {
	return []Node{
		{Name: "n1", Topology: rack("r1"), Machine: fakenvml.HGX8("n1")},
		{Name: "n2", Topology: rack("r1"), Machine: fakenvml.HGX8("n2")},
		{Name: "n3", Topology: rack("r2"), Machine: fakenvml.HGX8("n3")},
		{Name: "n4", Topology: rack("r2"), Machine: CrossedPairs("n4")},
	}
}

func rack(label string) map[string]string {
	return map[string]string{"zone": "z1", "rack": label}
}
