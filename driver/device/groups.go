// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// What slots are offered as. The type is not "gpu": a stock `device "gpu"` must never match a slot.
const (
	slotVendor = "muster"
	slotType   = "gang"
)

// What unmanaged GPUs are offered as, like HashiCorp's NVIDIA plugin.
const (
	plainVendor = "nvidia"
	plainType   = "gpu"
)

// groups is what the plugin offers to Nomad: one group per slot that is not refused, and the unmanaged GPUs by model.
// They are ordered by vendor and name, and made anew each time; sameGroups compares their values.
func (w *world) groups() []*device.DeviceGroup {
	var all []*device.DeviceGroup
	offered := map[string]bool{}
	for _, s := range w.slotsInOrder() {
		if w.refusal(s) != "" || offered[slotName(s)] || len(w.gpusOf(s)) == 0 {
			continue
		}
		offered[slotName(s)] = true
		all = append(all, w.slotGroup(s))
	}
	all = append(all, w.plainGroups()...)
	return slices.DeleteFunc(all, func(g *device.DeviceGroup) bool {
		return g.Validate() != nil // Nomad drops a plugin for good that sends one invalid group
	})
}

// slotsInOrder returns the slots by name, of two with one name the claimed one first: Nomad knows groups by name.
func (w *world) slotsInOrder() []ledger.Slot {
	slots := slices.Clone(w.table.Slots)
	slices.SortStableFunc(slots, func(a, b ledger.Slot) int {
		if order := strings.Compare(slotName(a), slotName(b)); order != 0 {
			return order
		}
		switch claimedA, claimedB := w.claimed(a.ID()), w.claimed(b.ID()); {
		case claimedA == claimedB:
			return strings.Compare(a.Reservation, b.Reservation)
		case claimedA:
			return -1
		}
		return 1
	})
	return slots
}

// gpusOf returns the slot's GPUs that the machine has.
func (w *world) gpusOf(s ledger.Slot) []gpu.GPU {
	var gpus []gpu.GPU
	for _, uuid := range s.GPUs {
		if g, ok := w.gpu(uuid); ok {
			gpus = append(gpus, g)
		}
	}
	return gpus
}

func (w *world) slotGroup(s ledger.Slot) *device.DeviceGroup {
	gpus := w.gpusOf(s)
	group := &device.DeviceGroup{
		Vendor: slotVendor,
		Type:   slotType,
		Name:   slotName(s),
		Attributes: map[string]*structs.Attribute{
			"gang":        structs.NewStringAttribute(s.Owner.Value),
			"rank":        structs.NewIntAttribute(int64(s.Rank), ""),
			"size":        structs.NewIntAttribute(int64(s.Size), ""),
			"reservation": structs.NewStringAttribute(s.Reservation),
			"model":       structs.NewStringAttribute(models(gpus)),
			"memory":      structs.NewIntAttribute(memoryMiB(gpus), structs.UnitMiB),
			"nvlink":      structs.NewBoolAttribute(w.joined(s)),
			"rev":         structs.NewIntAttribute(int64(w.revs[s.ID()].Rev), ""),
			"muster.node": structs.NewStringAttribute(w.self.node),
		},
	}
	for _, uuid := range s.GPUs {
		group.Devices = append(group.Devices, w.instance(ledger.InstanceID(uuid, s.Reservation), uuid))
	}
	return group
}

// instance is one GPU of a group.
func (w *world) instance(id, uuid string) *device.Device {
	h := w.healthOf(uuid)
	d := &device.Device{ID: id, Healthy: h.State == gpu.Healthy, HealthDesc: h.Reason}
	if g, ok := w.gpu(uuid); ok && g.PCIBusID != "" {
		d.HwLocality = &device.DeviceLocality{PciBusID: g.PCIBusID}
	}
	return d
}

// joined says whether NVLink joins all GPUs of the slot.
func (w *world) joined(s ledger.Slot) bool {
	set, err := w.machine.SetOf(s.GPUs)
	return err == nil && w.topology != nil && w.topology.JoinedByNVLink(set)
}

// models names the models of the GPUs; nearly always it is one.
func models(gpus []gpu.GPU) string {
	var names []string
	for _, g := range gpus {
		names = append(names, g.Model)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// memoryMiB is the memory that each of the GPUs has at least.
func memoryMiB(gpus []gpu.GPU) int64 {
	var least uint64
	for i, g := range gpus {
		if i == 0 || g.MemoryMiB < least {
			least = g.MemoryMiB
		}
	}
	return int64(least) //nolint:gosec // G115: a GPU has less than 2^63 MiB
}

// plainGroups offers the unmanaged GPUs with the attribute names and units of HashiCorp's NVIDIA plugin. A GPU that is
// still in a slot (it was made unmanaged later) stays with the slot.
func (w *world) plainGroups() []*device.DeviceGroup {
	byModel := map[string]*device.DeviceGroup{}
	var names []string
	for _, uuid := range w.plainUUIDs() {
		g, _ := w.gpu(uuid)
		name := g.Model
		if byModel[name] == nil {
			names = append(names, name)
			byModel[name] = &device.DeviceGroup{Vendor: plainVendor, Type: plainType, Name: name, Attributes: w.plainAttributes(g)}
		}
		byModel[name].Devices = append(byModel[name].Devices, w.instance(uuid, uuid))
	}
	slices.Sort(names)
	var all []*device.DeviceGroup
	for _, name := range names {
		all = append(all, byModel[name])
	}
	return all
}

// plainAttributes are limits where the plugin named above has current readings, because each change of an attribute
// would register the node again. What is not known is left out.
func (w *world) plainAttributes(g gpu.GPU) map[string]*structs.Attribute {
	attributes := map[string]*structs.Attribute{
		"memory": structs.NewIntAttribute(int64(g.MemoryMiB), structs.UnitMiB), //nolint:gosec // G115: as above
	}
	var facts gpu.Facts
	if g.Facts != nil {
		facts = *g.Facts
	}
	for name, fact := range map[string]struct {
		value uint64
		unit  string
	}{
		"power":         {uint64(facts.PowerLimitW), structs.UnitW},
		"bar1":          {facts.BAR1MiB, structs.UnitMiB},
		"cores_clock":   {uint64(facts.CoresClockMHz), structs.UnitMHz},
		"memory_clock":  {uint64(facts.MemoryClockMHz), structs.UnitMHz},
		"pci_bandwidth": {uint64(facts.PCIeMBps), structs.UnitMBPerS},
	} {
		if fact.value != 0 {
			attributes[name] = structs.NewIntAttribute(int64(fact.value), fact.unit) //nolint:gosec // G115: as above
		}
	}
	for name, value := range map[string]string{
		"display_state":    string(facts.Display),
		"persistence_mode": string(facts.Persistence),
		"driver_version":   w.machine.DriverVersion,
	} {
		if value != "" {
			attributes[name] = structs.NewStringAttribute(value)
		}
	}
	return attributes
}

// plainUUIDs are the unmanaged GPUs that are in no slot, in index order.
func (w *world) plainUUIDs() []string {
	var uuids []string
	for _, g := range w.machine.GPUs {
		inSlot := slices.ContainsFunc(w.table.Slots, func(s ledger.Slot) bool { return slices.Contains(s.GPUs, g.UUID) })
		if slices.Contains(w.unmanaged, g.UUID) && !inSlot {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// sameGroups compares two offers by value. Nomad 1.6 compares attributes by pointer and would register the node again
// for each message, so that only real changes may be sent.
func sameGroups(a, b []*device.DeviceGroup) bool { return reflect.DeepEqual(a, b) }
