// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// musterDriver is the task driver that writes its claims itself.
const musterDriver = "muster"

// slotFor finds the open slot that instance IDs name, all of it and nothing else, and says why it can't be used if so.
func (w *world) slotFor(ids []string) (ledger.Slot, error) {
	uuids, reservation, err := parseInstances(ids)
	if err != nil {
		return ledger.Slot{}, err
	}
	slot, err := w.exactSlot(uuids, reservation)
	if err != nil {
		return ledger.Slot{}, err
	}
	if why := w.refusal(slot); why != "" {
		return ledger.Slot{}, fmt.Errorf("slot %s %s", slotName(slot), why)
	}
	if err := w.checkGPUs(slot.GPUs); err != nil {
		return ledger.Slot{}, fmt.Errorf("slot %s: %w", slotName(slot), err)
	}
	return slot, nil
}

// parseInstances splits IDs of slots, which must all be of one reservation.
func parseInstances(ids []string) (uuids []string, reservation string, err error) {
	for i, id := range ids {
		uuid, of, ok := ledger.ParseInstanceID(id)
		if !ok {
			return nil, "", fmt.Errorf("%q is a GPU that Muster does not manage, among others of a slot: ask for them in device blocks of their own", id)
		}
		if i > 0 && of != reservation {
			return nil, "", fmt.Errorf("GPUs of two reservations, %s and %s, can't be used as one slot", reservation, of)
		}
		uuids, reservation = append(uuids, uuid), of
	}
	return uuids, reservation, nil
}

// exactSlot finds the slot of a reservation on this node that has just these GPUs.
func (w *world) exactSlot(uuids []string, reservation string) (ledger.Slot, error) {
	var partly []string
	for _, s := range w.table.Slots {
		if s.Reservation != reservation {
			continue
		}
		if sameSet(s.GPUs, uuids) {
			return s, nil
		}
		if slices.ContainsFunc(uuids, func(uuid string) bool { return slices.Contains(s.GPUs, uuid) }) {
			partly = append(partly, fmt.Sprintf("slot %s has %d", slotName(s), len(s.GPUs)))
		}
	}
	if len(partly) > 0 {
		return ledger.Slot{}, fmt.Errorf("the GPUs asked for (%d) are not those of one slot (%s): a member must use the whole of its slot",
			len(uuids), strings.Join(partly, ", "))
	}
	return ledger.Slot{}, fmt.Errorf("reservation %s has no slot with these GPUs on this node any more (slot table %d)", reservation, w.table.Sequence)
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// checkGPUs refuses GPUs that are missing or not healthy.
func (w *world) checkGPUs(uuids []string) error {
	for _, uuid := range uuids {
		if h := w.healthOf(uuid); h.State != gpu.Healthy {
			return fmt.Errorf("GPU %s is %s", uuid, joinReason(string(h.State), h.Reason))
		}
	}
	return nil
}

// checkPlain refuses IDs that are not unmanaged, healthy GPUs in no slot.
func (w *world) checkPlain(ids []string) error {
	plain := w.plainUUIDs()
	for _, id := range ids {
		if !slices.Contains(plain, id) {
			return fmt.Errorf("GPU %s is not one that the plugin's option `unmanaged` leaves to ordinary jobs", id)
		}
	}
	return w.checkGPUs(ids)
}

// plainReservation serves unmanaged GPUs as HashiCorp's NVIDIA plugin does.
func plainReservation(ids []string) *device.ContainerReservation {
	return &device.ContainerReservation{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(ids, ",")}}
}

// slotReservation is what a task gets with its slot. hostsFile is the path of the host file, gpuDevices the GPUs' device
// nodes on this machine.
func (w *world) slotReservation(s ledger.Slot, hostsFile string, nodes deviceNodes) (*device.ContainerReservation, error) {
	facts, known := w.gangs[s.Reservation]
	if !known {
		return nil, fmt.Errorf("slot %s: the hosts of its gang are not known, as the ledger has not been read since; try again when Consul answers", slotName(s))
	}
	address, err := facts.master()
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w", slotName(s), err)
	}
	return &device.ContainerReservation{
		Envs:    w.environment(s, address, strconv.Itoa(facts.MasterPort), hostsFile, nodes.gpuPaths()),
		Devices: nodes.specs(),
		Mounts:  []*device.Mount{{TaskPath: hostsFile, HostPath: hostsFile, ReadOnly: true}},
	}, nil
}

// environment makes `torchrun train.py` work as it is, with one launcher per member: a launcher sets RANK, LOCAL_RANK and
// WORLD_SIZE for its own processes, so they are not set here.
func (w *world) environment(s ledger.Slot, masterAddress, masterPort, hostsFile string, gpuDevices []string) map[string]string {
	uuids := strings.Join(s.GPUs, ",")
	return map[string]string{
		"CUDA_DEVICE_ORDER":      "PCI_BUS_ID",
		"CUDA_VISIBLE_DEVICES":   uuids,
		"NVIDIA_VISIBLE_DEVICES": uuids,
		"MUSTER_GANG":            s.Owner.Gang,
		"MUSTER_RANK":            strconv.Itoa(s.Rank),
		"MUSTER_SIZE":            strconv.Itoa(s.Size),
		"MUSTER_RESERVATION":     s.Reservation,
		"MUSTER_NODE":            w.self.node,
		"MUSTER_GPUS":            uuids,
		"MUSTER_GPU_DEVICES":     strings.Join(gpuDevices, ","),
		"MUSTER_HOSTS_FILE":      hostsFile,
		"MUSTER_MASTER_ADDR":     masterAddress,
		"MUSTER_MASTER_PORT":     masterPort,
		"PET_NNODES":             strconv.Itoa(s.Size),
		"PET_NODE_RANK":          strconv.Itoa(s.Rank),
		"PET_NPROC_PER_NODE":     strconv.Itoa(len(s.GPUs)),
		"PET_MASTER_ADDR":        masterAddress,
		"PET_MASTER_PORT":        masterPort,
	}
}

// deviceNodes are the device nodes below dev_root that exist, as names relative to it.
type deviceNodes struct {
	root  string
	gpus  []string // nvidia0, in the slot's order
	other []string // nvidiactl, nvidia-uvm, nvidia-caps/nvidia-cap1
}

// findDeviceNodes looks for the device nodes of GPUs, and those that every CUDA program needs.
func findDeviceNodes(root string, gpus []gpu.GPU) deviceNodes {
	nodes := deviceNodes{root: root}
	for _, g := range gpus {
		if name := "nvidia" + strconv.Itoa(g.Minor); exists(root, name) {
			nodes.gpus = append(nodes.gpus, name)
		}
	}
	common := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
	if caps, err := os.ReadDir(filepath.Join(root, "nvidia-caps")); err == nil {
		for _, entry := range caps {
			common = append(common, filepath.Join("nvidia-caps", entry.Name()))
		}
	}
	for _, name := range common {
		if exists(root, name) {
			nodes.other = append(nodes.other, name)
		}
	}
	return nodes
}

func exists(root, name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return err == nil
}

func (n deviceNodes) gpuPaths() []string {
	paths := make([]string, 0, len(n.gpus))
	for _, name := range n.gpus {
		paths = append(paths, filepath.Join(n.root, name))
	}
	return paths
}

// specs puts the nodes where programs look for them, whatever dev_root is.
func (n deviceNodes) specs() []*device.DeviceSpec {
	var specs []*device.DeviceSpec
	for _, name := range slices.Concat(n.gpus, n.other) {
		specs = append(specs, &device.DeviceSpec{TaskPath: filepath.Join("/dev", name), HostPath: filepath.Join(n.root, name), CgroupPerms: "rw"})
	}
	return specs
}

// isSlot says whether IDs are of a slot, by the first of them.
func isSlot(ids []string) (bool, error) {
	if len(ids) == 0 {
		return false, errors.New("no GPUs are asked for")
	}
	_, _, ok := ledger.ParseInstanceID(ids[0])
	return ok, nil
}
