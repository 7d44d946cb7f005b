// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
)

// gpuNode is a node as Nomad sees it; its GPUs are the plugin's matter.
func gpuNode() *structs.Node {
	return &structs.Node{
		ID: "id", Name: "n1", Datacenter: "dc1", NodePool: "gpu", Status: structs.NodeStatusReady,
		SchedulingEligibility: structs.NodeSchedulingEligible, ModifyIndex: 7,
		Attributes: map[string]string{"kernel.name": "linux"}, Meta: map[string]string{"tier": "1"},
		Drivers:     map[string]*structs.DriverInfo{"muster": {Detected: true, Healthy: true}},
		HostVolumes: map[string]*structs.ClientHostVolumeConfig{"data": {Name: "data", Path: "/data"}},
		NodeResources: &structs.NodeResources{
			Cpu: structs.NodeCpuResources{CpuShares: 8000, TotalCpuCores: 4}, Memory: structs.NodeMemoryResources{MemoryMB: 4096},
			Disk:         structs.NodeDiskResources{DiskMB: 10000},
			Networks:     structs.Networks{{Mode: "host", Device: "eth0", IP: "10.0.0.1"}},
			NodeNetworks: []*structs.NodeNetworkResource{{Mode: "host", Device: "eth0", Addresses: []structs.NodeNetworkAddress{{Alias: "default", Address: "10.0.0.1"}}}},
		},
	}
}

func gpuJob(edit func(*structs.Job, *structs.TaskGroup)) *Job {
	group := &structs.TaskGroup{
		Name: "worker", Count: 2, EphemeralDisk: &structs.EphemeralDisk{SizeMB: 100},
		Tasks: []*structs.Task{{Name: "main", Driver: "muster", Resources: &structs.Resources{
			CPU: 1000, MemoryMB: 1000,
			Devices: []*structs.RequestedDevice{{Name: "muster/gang", Count: 4, Constraints: structs.Constraints{
				{LTarget: "${device.attr.gang}", RTarget: "train", Operand: "="},
			}}},
		}}},
	}
	job := &structs.Job{ID: "train", Namespace: "default", Datacenters: []string{"dc*"}, NodePool: "all", TaskGroups: []*structs.TaskGroup{group}}
	if edit != nil {
		edit(job, group)
	}
	return &Job{ID: JobID{"default", "train"}, Spec: job, JobModifyIndex: 3}
}

func slot() SlotDevice {
	return SlotDevice{Gang: "train", Value: "train", Size: 2, GPUs: 4, Model: "H100", MemoryMiB: 81920, NVLink: true, Node: "n1"}
}

func TestRefusals(t *testing.T) {
	ask := func(g *structs.TaskGroup) *structs.RequestedDevice { return g.Tasks[0].Resources.Devices[0] }
	for name, tc := range map[string]struct {
		job  func(*structs.Job, *structs.TaskGroup)
		node func(*structs.Node)
		slot func(*SlotDevice)
		want string
	}{
		"nothing is in the way": {},
		"the datacenter": {
			job:  func(j *structs.Job, _ *structs.TaskGroup) { j.Datacenters = []string{"eu-*"} },
			want: "the job does not ask for datacenter dc1",
		},
		"the node pool": {
			job:  func(j *structs.Job, _ *structs.TaskGroup) { j.NodePool = "cpu" },
			want: "the node is in pool gpu, the job asks for pool cpu",
		},
		"a constraint of the job": {
			job: func(j *structs.Job, _ *structs.TaskGroup) {
				j.Constraints = []*structs.Constraint{{LTarget: "${attr.kernel.name}", RTarget: "windows", Operand: "="}}
			},
			want: "it does not meet the constraint ${attr.kernel.name} = windows",
		},
		"a constraint of the task": {
			job: func(_ *structs.Job, g *structs.TaskGroup) {
				g.Tasks[0].Constraints = []*structs.Constraint{{LTarget: "${meta.tier}", RTarget: "2", Operand: ">="}}
			},
			want: "it does not meet the constraint ${meta.tier} >= 2",
		},
		"a driver that is unhealthy": {
			node: func(n *structs.Node) { n.Drivers["muster"].Healthy = false },
			want: "its task driver is missing or unhealthy: muster",
		},
		"a host volume": {
			job: func(_ *structs.Job, g *structs.TaskGroup) {
				g.Volumes = map[string]*structs.VolumeRequest{"d": {Name: "d", Type: "host", Source: "scratch"}}
			},
			want: "it lacks a host volume of the job",
		},
		"a bridge network": {
			job:  func(_ *structs.Job, g *structs.TaskGroup) { g.Networks = structs.Networks{{Mode: "bridge"}} },
			want: "it lacks the network that the group asks for: missing network",
		},
		"a host network": {
			job: func(_ *structs.Job, g *structs.TaskGroup) {
				g.Networks = structs.Networks{{DynamicPorts: []structs.Port{{Label: "rdzv", HostNetwork: "rdma"}}}}
			},
			want: `it lacks the network that the group asks for: missing host network "rdma" for port "rdzv"`,
		},
		"a property that its members must not share": {
			job: func(_ *structs.Job, g *structs.TaskGroup) {
				g.Constraints = []*structs.Constraint{{LTarget: "${meta.rack}", Operand: "distinct_property"}}
			},
			want: `it does not meet the job's distinct_property: missing property "${meta.rack}"`,
		},
		"GPUs with too little memory": {
			job: func(_ *structs.Job, g *structs.TaskGroup) {
				ask(g).Constraints = append(ask(g).Constraints, &structs.Constraint{LTarget: "${device.attr.memory}", RTarget: "100 GiB", Operand: ">="})
			},
			want: "its GPUs do not meet the constraints of the job's device block",
		},
		"GPUs with enough memory": {
			job: func(_ *structs.Job, g *structs.TaskGroup) {
				ask(g).Constraints = append(ask(g).Constraints, &structs.Constraint{LTarget: "${device.attr.memory}", RTarget: "40 GiB", Operand: ">="})
			},
		},
		"GPUs that are not joined": {
			job: func(_ *structs.Job, g *structs.TaskGroup) {
				ask(g).Constraints = append(ask(g).Constraints, &structs.Constraint{LTarget: "${device.attr.nvlink}", RTarget: "true", Operand: "="})
			},
			slot: func(d *SlotDevice) { d.NVLink = false },
			want: "its GPUs do not meet the constraints of the job's device block",
		},
		"slots that the node offers to others do not count": {
			node: func(n *structs.Node) {
				n.NodeResources.Devices = []*structs.NodeDeviceResource{{Vendor: "muster", Type: "gang", Name: "other.0"}}
			},
		},
		"a group that is gone": {
			job:  func(_ *structs.Job, g *structs.TaskGroup) { g.Name = "renamed" },
			want: "the job has no group worker any more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			node, device := gpuNode(), slot()
			if tc.node != nil {
				tc.node(node)
			}
			if tc.slot != nil {
				tc.slot(&device)
			}
			checker := NewChecker()
			job := gpuJob(tc.job)
			must.Eq(t, tc.want, checker.Refusal(job, "worker", node, device))
			must.Eq(t, tc.want, checker.Refusal(job, "worker", node, device), must.Sprint("the remembered answer"))
		})
	}
}

func TestRefusalOfAJobThatCanNotBeRead(t *testing.T) {
	job := &Job{Problem: "too new"}
	must.Eq(t, "too new", NewChecker().Refusal(job, "worker", gpuNode(), slot()))
}

func TestCheckerAsksAgainWhenTheNodeChanges(t *testing.T) {
	checker, job, node := NewChecker(), gpuJob(nil), gpuNode()
	must.Eq(t, "", checker.Refusal(job, "worker", node, slot()))
	changed := *node
	changed.ModifyIndex, changed.Datacenter = 8, "eu"
	must.NotEq(t, "", checker.Refusal(job, "worker", &changed, slot()))
	must.Eq(t, "", checker.Refusal(job, "worker", node, slot()))
}

func TestCheckerForgetsWhatNobodyAsksFor(t *testing.T) {
	checker := NewChecker()
	checker.Refusal(gpuJob(nil), "worker", gpuNode(), slot())
	checker.Turn()
	must.MapLen(t, 1, checker.before)
	checker.Turn()
	must.MapEmpty(t, checker.before)
	must.MapEmpty(t, checker.known)
}

func TestClosedNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*structs.Node)
		want string
	}{
		"open":       {func(*structs.Node) {}, ""},
		"draining":   {func(n *structs.Node) { n.DrainStrategy = &structs.DrainStrategy{} }, "it is draining"},
		"down":       {func(n *structs.Node) { n.Status = "down" }, "Nomad says that it is down"},
		"ineligible": {func(n *structs.Node) { n.SchedulingEligibility = "ineligible" }, "it is not eligible for scheduling"},
	} {
		t.Run(name, func(t *testing.T) {
			node := gpuNode()
			tc.edit(node)
			must.Eq(t, tc.want, Closed(node))
		})
	}
}

func TestRoom(t *testing.T) {
	node, job := gpuNode(), gpuJob(nil)
	node.ReservedResources = &structs.NodeReservedResources{Memory: structs.NodeReservedMemoryResources{MemoryMB: 96}}
	s := State{Allocs: map[string][]*Alloc{"id": {
		{ID: "a", Client: "running", Resources: taking(1000)},
		{ID: "b", Client: "failed", Resources: taking(3000)},
	}}}
	must.Eq(t, Room{CPUMHz: 8000, MemoryMB: 3000, DiskMB: 10000}, s.Free(node))

	needs, ok := job.Needs("worker", node)
	must.True(t, ok)
	must.Eq(t, Room{CPUMHz: 1000, MemoryMB: 1000, DiskMB: 100}, needs)
	must.Eq(t, Room{CPUMHz: 6000, MemoryMB: 1000, DiskMB: 9800}, s.Free(node).Less(needs, 2))

	why, fits := s.Fits(node, []Placing{{Job: job, Group: "worker", Members: 3}})
	must.True(t, fits, must.Sprint(why))
	why, fits = s.Fits(node, []Placing{{Job: job, Group: "worker", Members: 4}})
	must.False(t, fits)
	must.Eq(t, "not enough memory", why)
}

func taking(memoryMB int64) *structs.AllocatedResources {
	return &structs.AllocatedResources{Tasks: map[string]*structs.AllocatedTaskResources{
		"t": {Memory: structs.AllocatedMemoryResources{MemoryMB: memoryMB}},
	}}
}

func TestStaticPortsAndCores(t *testing.T) {
	node := gpuNode()
	job := gpuJob(func(_ *structs.Job, g *structs.TaskGroup) {
		g.Networks = structs.Networks{{ReservedPorts: []structs.Port{{Label: "http", Value: 8080}}}}
		g.Tasks[0].Resources.Cores = 2
	})
	needs, _ := job.Needs("worker", node)
	must.Eq(t, 4000, needs.CPUMHz)
	_, fits := State{}.Fits(node, []Placing{{Job: job, Group: "worker", Members: 1}})
	must.True(t, fits)
	why, fits := State{}.Fits(node, []Placing{{Job: job, Group: "worker", Members: 2}})
	must.False(t, fits)
	must.Eq(t, "network: reserved port collision http=8080", why)
}
