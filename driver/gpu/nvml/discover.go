// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/driver/gpu"
)

// maxNUMANodes is how many NUMA nodes are asked about.
const maxNUMANodes = 1024

// report is all that NVML says about one GPU at one discovery.
type report struct {
	device   nvml.Device
	gpu      gpu.GPU
	links    []linkReport
	troubles []string // why it is unfit
}

// lostError ends the questions about one GPU.
type lostError struct{ ret nvml.Return }

func (e lostError) Error() string { return e.ret.Error() }

// Discover asks NVML about all GPUs. The health map has an entry for each GPU of the machine, by UUID. A GPU that is lost,
// even in the middle of the questions, is a state and not an error: it stays in the machine with what was last known of
// it. (One that was never seen well has no UUID and is only mentioned in the machine's notes.) An error means that NVML as a
// whole does not answer.
func (l *Library) Discover() (gpu.Machine, map[string]gpu.Health, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, err := l.system()
	if err != nil {
		return gpu.Machine{}, nil, err
	}
	count, ret := l.api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return gpu.Machine{}, nil, fmt.Errorf("count the GPUs: %w", ret)
	}
	var reports []report
	var lost lostError
	for i := range count {
		r, err := l.ask(i)
		switch {
		case err == nil:
			reports = append(reports, r)
		case !errors.As(err, &lost):
			return gpu.Machine{}, nil, err
		case !l.remembers(i):
			m.Notes = append(m.Notes, fmt.Sprintf("GPU %d was lost before its UUID was known", i))
		}
	}
	if count > 0 && len(reports) == 0 && !isLost(lost.ret) { // not the GPUs' fault: NVML has to be opened anew
		return gpu.Machine{}, nil, fmt.Errorf("ask the GPUs: none answers: %w", lost)
	}
	health := l.assemble(&m, reports)
	l.machine = m
	return m, health, nil
}

func (l *Library) system() (gpu.Machine, error) {
	var m gpu.Machine
	driver, ret := l.api.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return m, fmt.Errorf("ask for the driver's version: %w", ret)
	}
	m.DriverVersion = driver
	if l.has("nvmlSystemGetCudaDriverVersion") {
		if version, ret := l.api.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
			m.CUDAVersion = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
		}
	}
	return m, nil
}

// remembers says whether an earlier discovery has seen a GPU at that index.
func (l *Library) remembers(index int) bool {
	return slices.ContainsFunc(l.machine.GPUs, func(g gpu.GPU) bool { return g.Index == index })
}

// ask puts all questions about one GPU. A lostError means that it is lost.
func (l *Library) ask(index int) (report, error) {
	device, ret := l.api.DeviceGetHandleByIndex(index)
	if err := check(index, "handle", ret); err != nil {
		return report{}, err
	}
	r := report{device: device}
	var err error
	if r.gpu, err = l.identity(index, device); err != nil {
		return report{}, err
	}
	if err := l.optional(&r); err != nil {
		return report{}, err
	}
	if r.links, err = l.links(device); err != nil {
		return report{}, err
	}
	r.troubles, err = l.troubles(device)
	return r, err
}

// check turns NVML's answer to a question that every GPU must answer into an error. A GPU that has fallen off the bus makes
// many drivers say "unknown error" instead, about this GPU alone.
func check(index int, what string, ret nvml.Return) error {
	switch {
	case ret == nvml.SUCCESS:
		return nil
	case isLost(ret), ret == nvml.ERROR_UNKNOWN, ret == nvml.ERROR_IRQ_ISSUE, ret == nvml.ERROR_INSUFFICIENT_POWER:
		return lostError{ret}
	}
	return fmt.Errorf("ask GPU %d for its %s: %w", index, what, ret)
}

// lostOnly turns NVML's answer to a question that a GPU or driver may not support into an error if the GPU is lost.
func lostOnly(ret nvml.Return) error {
	if isLost(ret) {
		return lostError{ret}
	}
	return nil
}

func (l *Library) identity(index int, d nvml.Device) (gpu.GPU, error) {
	g := gpu.GPU{Index: index, NUMANode: -1}
	var ret nvml.Return
	if g.UUID, ret = d.GetUUID(); ret != nvml.SUCCESS {
		return g, check(index, "UUID", ret)
	}
	if g.Model, ret = d.GetName(); ret != nvml.SUCCESS {
		return g, check(index, "name", ret)
	}
	if g.Minor, ret = d.GetMinorNumber(); ret != nvml.SUCCESS {
		return g, check(index, "minor number", ret)
	}
	pci, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		return g, check(index, "PCI address", ret)
	}
	g.PCIBusID = busID(pci)
	memory, ret := d.GetMemoryInfo()
	switch {
	case ret == nvml.SUCCESS:
		g.MemoryMiB = memory.Total >> 20
	case ret != nvml.ERROR_NOT_SUPPORTED: // GPUs that share the machine's memory do not say
		return g, check(index, "memory", ret)
	}
	return g, nil
}

// optional asks for what not every GPU or driver knows.
func (l *Library) optional(r *report) error {
	if l.has("nvmlDeviceGetMemoryAffinity") {
		nodes, ret := r.device.GetMemoryAffinity(maxNUMANodes, nvml.AFFINITY_SCOPE_NODE)
		if err := lostOnly(ret); err != nil {
			return err
		}
		if ret == nvml.SUCCESS {
			r.gpu.NUMANode = firstNode(nodes)
		}
	}
	if l.has("nvmlDeviceGetMigMode") {
		mode, _, ret := r.device.GetMigMode()
		if err := lostOnly(ret); err != nil {
			return err
		}
		r.gpu.MIG = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	}
	info, err := l.fabric(r.device)
	if err != nil {
		return err
	}
	r.gpu.Fabric = joinedFabric(info)
	r.gpu.Facts, err = l.facts(r.device)
	return err
}

// firstNode returns the lowest NUMA node of a bitmap, or -1.
func firstNode(bitmap []uint) int {
	for i, word := range bitmap {
		if word != 0 {
			return i*bits.UintSize + bits.TrailingZeros(word)
		}
	}
	return -1
}

// busID writes a PCI address as Linux does: four digits of domain unless it needs more, lower case.
func busID(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// assemble puts the reports and what is remembered of lost GPUs together, and returns the health of all.
func (l *Library) assemble(m *gpu.Machine, reports []report) map[string]gpu.Health {
	health := map[string]gpu.Health{}
	reported := map[string]int{}
	for i, r := range reports {
		reported[r.gpu.UUID] = i
		m.GPUs = append(m.GPUs, r.gpu)
		l.back(r.gpu.UUID)
		health[r.gpu.UUID] = l.judge(r.gpu.UUID, r.troubles)
	}
	for _, g := range l.machine.GPUs {
		if _, ok := reported[g.UUID]; !ok {
			m.GPUs = append(m.GPUs, g)
			l.returned[g.UUID] = true
			health[g.UUID] = gpu.Health{State: gpu.Lost, Reason: "NVML does not reach the GPU any more; reset it or reboot the machine"}
		}
	}
	slices.SortFunc(m.GPUs, func(a, b gpu.GPU) int {
		if a.Index != b.Index {
			return a.Index - b.Index
		}
		return strings.Compare(a.UUID, b.UUID)
	})
	l.join(m, reports, reported)
	return health
}

// back forgets the XIDs of a GPU that was lost and answers again, since it must have been reset in between.
func (l *Library) back(uuid string) {
	if !l.returned[uuid] {
		return
	}
	delete(l.returned, uuid)
	record := l.xids[uuid]
	record.unfit = 0
	l.xids[uuid] = record
}
