// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package fleet pretends to be hundreds of GPU machines, to measure what so many cost Nomad's real servers and the real
// placer: nodes register over Nomad's own RPC, publish their inventory in the ledger, offer the slots that they are
// granted, claim them and report their allocations as running. There is no client agent, no plugin and no process
// behind a node. Only e2e imports it.
package fleet

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"strconv"

	"github.com/hashicorp/go-msgpack/codec"
	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// GPUs is how many each node has, all behind NVSwitch.
const GPUs = 8

// rpcNomad is the first byte of a connection to a Nomad server on which plain RPC follows.
const rpcNomad = 0x01

// Fleet is a number of nodes of one cluster.
type Fleet struct {
	server *rpc.Client
	book   *ledger.Ledger
	region string
	nodes  []*node
	byName map[string]*node
}

// node is one machine.
type node struct {
	inventory ledger.Node
	nomad     *structs.Node
	seen      uint64           // sequence of the last table acknowledged
	table     ledger.SlotTable // as offered
	rev       int
}

// Start makes nodes f0001, f0002, ... and registers them with Nomad's server at an address and in the ledger. They live
// as long as their registration: the server must not wait for heartbeats.
func Start(ctx context.Context, server, region string, book *ledger.Ledger, count int) (*Fleet, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, fmt.Errorf("reaching Nomad's server: %w", err)
	}
	if _, err := conn.Write([]byte{rpcNomad}); err != nil {
		return nil, fmt.Errorf("reaching Nomad's server: %w", err)
	}
	f := &Fleet{
		server: rpc.NewClientWithCodec(codec.GoRpc.ClientCodec(conn, structs.MsgpackHandle)),
		book:   book, region: region, byName: map[string]*node{},
	}
	session, err := book.Store().CreateSession(ctx, ledger.NodeSession("fleet"))
	if err != nil {
		return nil, err
	}
	for i := 1; i <= count; i++ {
		n := newNode(i)
		f.nodes = append(f.nodes, n)
		f.byName[n.inventory.Node] = n
		if err := f.join(ctx, n, session); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Stop ends the connection to the server.
func (f *Fleet) Stop() error { return f.server.Close() }

// join makes a node ready for Nomad and known to the ledger.
func (f *Fleet) join(ctx context.Context, n *node, session string) error {
	if err := f.register(n); err != nil {
		return err
	}
	update := &structs.NodeUpdateStatusRequest{
		NodeID: n.nomad.ID, Status: structs.NodeStatusReady, WriteRequest: structs.WriteRequest{Region: f.region, AuthToken: n.nomad.SecretID},
	}
	if err := f.server.Call("Node.UpdateStatus", update, &structs.NodeUpdateResponse{}); err != nil {
		return fmt.Errorf("node %s: %w", n.inventory.Node, err)
	}
	if err := f.book.PublishHealth(ctx, n.inventory.Node, ledger.Health{Version: ledger.Version}); err != nil {
		return err
	}
	return f.book.PublishNode(ctx, session, n.inventory)
}

// register tells Nomad's server all of a node, as a client does at each change of its devices.
func (f *Fleet) register(n *node) error {
	request := &structs.NodeRegisterRequest{Node: n.nomad, WriteRequest: structs.WriteRequest{Region: f.region, AuthToken: n.nomad.SecretID}}
	if err := f.server.Call("Node.Register", request, &structs.NodeUpdateResponse{}); err != nil {
		return fmt.Errorf("node %s: %w", n.inventory.Node, err)
	}
	return nil
}

func newNode(i int) *node {
	name := fmt.Sprintf("f%04d", i)
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
	return &node{
		inventory: ledger.Node{
			Version: ledger.Version, Node: name, NodeID: id, Address: "127.0.0.1", MachineID: name, BootID: "boot-" + name,
			Topology: map[string]string{"zone": "z1", "rack": "r" + strconv.Itoa((i+31)/32)}, Machine: machine(i),
		},
		nomad: &structs.Node{
			ID: id, SecretID: id, Name: name, Datacenter: "dc1", NodePool: structs.NodePoolDefault,
			Attributes: map[string]string{
				"kernel.name": "linux", "cpu.arch": "amd64", "nomad.version": "1.6.3", "driver.muster": "1", "driver.raw_exec": "1",
				"unique.hostname": name,
			},
			Drivers: map[string]*structs.DriverInfo{
				"muster": {Detected: true, Healthy: true}, "raw_exec": {Detected: true, Healthy: true},
			},
			NodeResources: &structs.NodeResources{
				Cpu:      structs.NodeCpuResources{CpuShares: 256000, TotalCpuCores: 128},
				Memory:   structs.NodeMemoryResources{MemoryMB: 2 << 20},
				Disk:     structs.NodeDiskResources{DiskMB: 2 << 20},
				Networks: structs.Networks{{Mode: "host", Device: "eth0", CIDR: "127.0.0.1/32", IP: "127.0.0.1", MBits: 1000}},
				NodeNetworks: []*structs.NodeNetworkResource{{
					Mode: "host", Device: "eth0",
					Addresses: []structs.NodeNetworkAddress{{Family: structs.NodeNetworkAF_IPv4, Alias: "default", Address: "127.0.0.1"}},
				}},
			},
			ReservedResources:     &structs.NodeReservedResources{},
			Status:                structs.NodeStatusInit,
			SchedulingEligibility: structs.NodeSchedulingEligible,
		},
	}
}

// machine is an HGX machine as the ledger keeps it.
func machine(i int) gpu.Machine {
	m := gpu.Machine{DriverVersion: "570.1", CUDAVersion: "12.8", Links: make([][]gpu.Link, GPUs)}
	for a := range GPUs {
		m.GPUs = append(m.GPUs, gpu.GPU{
			UUID: fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", i, a), Index: a, Minor: a, Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559,
			PCIBusID: fmt.Sprintf("0000:%02x:00.0", 16+a), NUMANode: a / (GPUs / 2),
		})
		m.Links[a] = make([]gpu.Link, GPUs)
		for b := range GPUs {
			if a != b {
				m.Links[a][b] = gpu.Link{NVLinks: 18, NVLinkMBps: 478125, PCIe: gpu.PathNODE}
			}
		}
	}
	return m
}
