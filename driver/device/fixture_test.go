// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	thisMachine = "machine-1"
	thisBoot    = "boot-1"
	thisNode    = "gpu-1"
	thisNodeID  = "6e0f6c1e-0000-0000-0000-000000000001"
)

// uuid is the UUID of GPU i.
func uuid(i int) string { return fmt.Sprintf("GPU-%d", i) }

// uuids are the UUIDs of some GPUs.
func uuids(indexes ...int) []string {
	all := make([]string, 0, len(indexes))
	for _, i := range indexes {
		all = append(all, uuid(i))
	}
	return all
}

// pairsMachine has n GPUs; 0 and 1, 2 and 3, and so on are joined by NVLink bridges.
func pairsMachine(n int) gpu.Machine {
	m := gpu.Machine{DriverVersion: "570.1", CUDAVersion: "12.8", Links: make([][]gpu.Link, n)}
	for i := range n {
		m.GPUs = append(m.GPUs, gpu.GPU{
			UUID: uuid(i), Index: i, Minor: i, Model: "NVIDIA A100", MemoryMiB: 81920, NUMANode: 0,
			PCIBusID: fmt.Sprintf("0000:%02x:00.0", i+16),
		})
		m.Links[i] = make([]gpu.Link, n)
		for j := range n {
			switch {
			case i == j:
			case i/2 == j/2:
				m.Links[i][j] = gpu.Link{NVLinks: 4, NVLinkMBps: 100_000, PCIe: gpu.PathPHB}
			default:
				m.Links[i][j] = gpu.Link{PCIe: gpu.PathSYS}
			}
		}
	}
	return m
}

func allHealthy(m gpu.Machine) map[string]gpu.Health {
	health := map[string]gpu.Health{}
	for _, g := range m.GPUs {
		health[g.UUID] = gpu.Health{State: gpu.Healthy}
	}
	return health
}

// slot is an open slot of gang "train" for the muster driver.
func slot(reservation string, rank int, gpus ...int) ledger.Slot {
	return ledger.Slot{
		Reservation: reservation, Rank: rank, Size: 2,
		Owner:  ledger.Owner{Gang: "train", Value: "train", Namespace: "default", Job: "train", CreateIndex: 10, Group: "worker", Task: "train"},
		Driver: musterDriver, GPUs: uuids(gpus...), State: ledger.SlotOpen, MachineID: thisMachine, BootID: thisBoot,
	}
}

func foreign(s ledger.Slot) ledger.Slot {
	s.Driver = "docker"
	return s
}

func closing(s ledger.Slot, why string) ledger.Slot {
	s.State, s.Why = ledger.SlotClosing, why
	return s
}

func gangNamed(s ledger.Slot, gang string) ledger.Slot {
	s.Owner.Gang, s.Owner.Value, s.Owner.Job = gang, gang, gang
	return s
}

// claimOn is a claim of this boot on a slot.
func claimOn(s ledger.Slot, by, allocation string) ledger.Claim {
	return ledger.Claim{
		Version: ledger.Version, Reservation: s.Reservation, Rank: s.Rank, Allocation: allocation, Task: s.Owner.Task,
		Namespace: s.Owner.Namespace, Job: s.Owner.Job, By: by, BootID: thisBoot,
	}
}

func claims(all ...ledger.Claim) map[ledger.SlotID]ledger.Claim {
	byID := map[ledger.SlotID]ledger.Claim{}
	for _, c := range all {
		byID[ledger.SlotID{Reservation: c.Reservation, Rank: c.Rank}] = c
	}
	return byID
}

// factsOf are facts of a gang of two members on two nodes.
func factsOf(reservation string) gangFacts {
	return gangFacts{
		Gang: "train", Reservation: reservation, MasterPort: 29400,
		Hosts: []host{
			{Address: "10.0.0.1", Node: "gpu-0", Rank: 0, Group: "worker", GPUs: 2},
			{Address: "10.0.0.2", Node: thisNode, Rank: 1, Group: "worker", GPUs: 2},
		},
	}
}

// settledWorld is a node of n GPUs that has heard from everybody, with a table of slots whose gangs it knows, and on which
// tasks have been started.
func settledWorld(n int, slots ...ledger.Slot) world {
	m := pairsMachine(n)
	w := world{
		self:    self{node: thisNode, nodeID: thisNodeID, address: "10.0.0.2", machineID: thisMachine, bootID: thisBoot},
		name:    ownName,
		machine: m, topology: gpu.NewTopology(m), health: allHealthy(m), discovered: true,
		table: ledger.SlotTable{Version: ledger.Version, Sequence: 7, Slots: slots}, read: true,
		gangs: map[string]gangFacts{}, served: map[ledger.SlotID]bool{},
	}
	for _, s := range slots {
		w.served[s.ID()] = true
		w.gangs[s.Reservation] = factsOf(s.Reservation)
	}
	w.settle()
	return w
}

// instanceIDs are the IDs under which a slot's GPUs are offered.
func instanceIDs(s ledger.Slot) []string {
	ids := make([]string, 0, len(s.GPUs))
	for _, u := range s.GPUs {
		ids = append(ids, ledger.InstanceID(u, s.Reservation))
	}
	return ids
}

// describeGroups writes groups as text, for golden comparison.
func describeGroups(groups []*device.DeviceGroup) string {
	var b strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&b, "%s/%s/%s\n", g.Vendor, g.Type, g.Name)
		var attributes []string
		for name, value := range g.Attributes {
			attributes = append(attributes, fmt.Sprintf("%s=%#v", name, value))
		}
		sort.Strings(attributes)
		fmt.Fprintf(&b, "  %s\n", strings.Join(attributes, " "))
		for _, d := range g.Devices {
			state := "healthy"
			if !d.Healthy {
				state = "unhealthy: " + d.HealthDesc
			}
			bus := "-"
			if d.HwLocality != nil {
				bus = d.HwLocality.PciBusID
			}
			fmt.Fprintf(&b, "  %s %s %s\n", d.ID, bus, state)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// names are the full names of groups.
func names(groups []*device.DeviceGroup) []string {
	all := []string{}
	for _, g := range groups {
		all = append(all, g.Vendor+"/"+g.Type+"/"+g.Name)
	}
	slices.Sort(all)
	return all
}
