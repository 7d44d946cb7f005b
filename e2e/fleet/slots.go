// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fleet

import (
	"context"
	"fmt"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
	psstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-muster/muster/placer/ledger"
)

// Offer makes every node whose slot table has changed acknowledge it and register the open slots with Nomad, as its
// device plugin and client would; a node that is asked what it remembers answers. settled says that no node is asked.
func (f *Fleet) Offer(ctx context.Context) (settled bool, err error) {
	snapshot, err := f.book.Load(ctx)
	if err != nil {
		return false, err
	}
	settled = true
	for _, n := range f.nodes {
		table := snapshot.Tables[n.inventory.Node].Doc
		if table.Sequence == 0 || table.Rebuild {
			settled = false
		}
		if table.Sequence == n.seen {
			continue
		}
		if err := f.follow(ctx, n, table); err != nil {
			return false, err
		}
	}
	return settled, nil
}

// follow makes a node act on its slot table.
func (f *Fleet) follow(ctx context.Context, n *node, table ledger.SlotTable) error {
	ack := ledger.Ack{Version: ledger.Version, Epoch: table.Epoch, Sequence: table.Sequence, BootID: n.inventory.BootID}
	if table.Rebuild {
		ack.Remembered = &ledger.Remembered{Asked: table.Sequence, Table: n.table}
	}
	if err := f.book.PublishAck(ctx, n.inventory.Node, ack); err != nil {
		return err
	}
	n.seen = table.Sequence
	if table.Rebuild {
		return nil
	}
	offered := len(n.table.Slots) > 0
	n.table = table
	if !offered && len(table.Slots) == 0 {
		return nil
	}
	return f.offer(n)
}

// Touch changes a node's device group as a change of health does, and nothing else: the node is registered again with
// groups that Nomad has not seen before.
func (f *Fleet) Touch(i int) error {
	n := f.nodes[i]
	n.rev++
	return f.offer(n)
}

func (f *Fleet) offer(n *node) error {
	n.nomad.NodeResources.Devices = nil
	for _, slot := range n.table.Slots {
		if slot.State == ledger.SlotOpen {
			n.nomad.NodeResources.Devices = append(n.nomad.NodeResources.Devices, n.group(slot))
		}
	}
	return f.register(n)
}

// group is a slot as the device plugin offers it.
func (n *node) group(slot ledger.Slot) *structs.NodeDeviceResource {
	group := &structs.NodeDeviceResource{
		Vendor: "muster", Type: "gang", Name: fmt.Sprintf("%s.%d", slot.Owner.Gang, slot.Rank),
		Attributes: map[string]*psstructs.Attribute{
			"gang":        psstructs.NewStringAttribute(slot.Owner.Value),
			"rank":        psstructs.NewIntAttribute(int64(slot.Rank), ""),
			"size":        psstructs.NewIntAttribute(int64(slot.Size), ""),
			"reservation": psstructs.NewStringAttribute(slot.Reservation),
			"model":       psstructs.NewStringAttribute(n.inventory.Machine.GPUs[0].Model),
			"memory":      psstructs.NewIntAttribute(int64(n.inventory.Machine.GPUs[0].MemoryMiB), psstructs.UnitMiB), //nolint:gosec // G115: 81559
			"nvlink":      psstructs.NewBoolAttribute(true),
			"rev":         psstructs.NewIntAttribute(int64(n.rev), ""),
			"muster.node": psstructs.NewStringAttribute(n.inventory.Node),
		},
	}
	for _, uuid := range slot.GPUs {
		group.Instances = append(group.Instances, &structs.NodeDevice{ID: ledger.InstanceID(uuid, slot.Reservation), Healthy: true})
	}
	return group
}

// Run claims the slots of a gang for the allocations that Nomad has placed on them, and reports these as running, as the
// nodes' drivers and clients would. It returns how many were new.
func (f *Fleet) Run(ctx context.Context, client *nomad.Client, gang string) (started int, err error) {
	allocs, _, err := client.Jobs().Allocations(gang, false, (&nomad.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("allocations of gang %s: %w", gang, err)
	}
	for _, alloc := range allocs {
		n := f.byName[alloc.NodeName]
		if n == nil || alloc.ClientStatus != nomad.AllocClientStatusPending {
			continue
		}
		for _, slot := range n.table.Slots {
			if slot.Owner.Gang != gang {
				continue
			}
			if err := f.run(ctx, n, slot, alloc); err != nil {
				return started, err
			}
			started++
		}
	}
	return started, nil
}

func (f *Fleet) run(ctx context.Context, n *node, slot ledger.Slot, alloc *nomad.AllocationListStub) error {
	claim := ledger.Claim{
		Version: ledger.Version, Reservation: slot.Reservation, Rank: slot.Rank, Allocation: alloc.ID, Task: slot.Owner.Task,
		Namespace: slot.Owner.Namespace, Job: slot.Owner.Job, By: "driver", BootID: n.inventory.BootID, At: time.Now(),
	}
	if _, err := f.book.Claim(ctx, n.inventory.Node, claim, func(ledger.Slot) error { return nil }); err != nil {
		return err
	}
	now := time.Now()
	request := &structs.AllocUpdateRequest{
		Alloc: []*structs.Allocation{{
			ID: alloc.ID, NodeID: n.nomad.ID, ClientStatus: structs.AllocClientStatusRunning,
			TaskStates: map[string]*structs.TaskState{slot.Owner.Task: {State: structs.TaskStateRunning, StartedAt: now}},
		}},
		WriteRequest: structs.WriteRequest{Region: f.region, AuthToken: n.nomad.SecretID},
	}
	if err := f.server.Call("Node.UpdateAlloc", request, &structs.GenericResponse{}); err != nil {
		return fmt.Errorf("allocation on node %s: %w", n.inventory.Node, err)
	}
	return nil
}
