// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/driver/gpu"
)

// Stats returns the statistics of all GPUs of the last discovery, in its order. A lost GPU has nothing but its UUID
// and XIDs.
func (l *Library) Stats() []gpu.Stats {
	l.mu.Lock()
	all := make([]gpu.Stats, len(l.machine.GPUs))
	for i, g := range l.machine.GPUs {
		x := l.xids[g.UUID]
		all[i] = gpu.Stats{UUID: g.UUID, XIDCount: x.count, LastXID: x.last}
	}
	l.mu.Unlock()
	for i := range all {
		if device, err := l.device(all[i].UUID); err == nil {
			l.measure(device, &all[i])
		}
	}
	return all
}

func (l *Library) measure(d nvml.Device, s *gpu.Stats) {
	if l.has("nvmlDeviceGetUtilizationRates") {
		if rates, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS {
			s.UtilizationPercent = &rates.Gpu
		}
	}
	if memory, ret := d.GetMemoryInfo(); ret == nvml.SUCCESS {
		used, total := memory.Used>>20, memory.Total>>20
		s.MemoryUsedMiB, s.MemoryTotalMiB = &used, &total
	}
	if l.has("nvmlDeviceGetTemperature") {
		if celsius, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
			s.TemperatureC = &celsius
		}
	}
	if l.has("nvmlDeviceGetPowerUsage") {
		if milliwatt, ret := d.GetPowerUsage(); ret == nvml.SUCCESS {
			watt := float64(milliwatt) / 1000
			s.PowerW = &watt
		}
	}
	s.ECCCorrected, _ = l.eccErrors(d, nvml.MEMORY_ERROR_TYPE_CORRECTED) // the next discovery finds a lost GPU
	s.ECCUncorrected, _ = l.eccErrors(d, nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	l.measureNVLink(d, s)
}

func (l *Library) measureNVLink(d nvml.Device, s *gpu.Stats) {
	if !l.has("nvmlDeviceGetFieldValues") {
		return
	}
	const allLinks = math.MaxUint32
	values := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: allLinks},
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: allLinks},
	}
	if ret := d.GetFieldValues(values); ret == nvml.SUCCESS {
		s.NVLinkRxKiB, s.NVLinkTxKiB = counter(values[0]), counter(values[1])
	}
}

func counter(v nvml.FieldValue) *uint64 {
	if nvml.Return(v.NvmlReturn) != nvml.SUCCESS { //nolint:gosec // G115: an nvmlReturn_t
		return nil
	}
	n := binary.NativeEndian.Uint64(v.Value[:])
	return &n
}

// Processes returns the users of a GPU, for computing or graphics, by PID. Errors match ErrGPULost or ErrUnknownGPU where one
// of them is the reason; without an answer nobody may take the GPU for unused.
func (l *Library) Processes(uuid string) ([]gpu.Process, error) {
	device, err := l.device(uuid)
	if err != nil {
		return nil, err
	}
	byPID := map[int]gpu.Process{}
	for _, question := range []func() ([]nvml.ProcessInfo, nvml.Return){
		device.GetComputeRunningProcesses, device.GetGraphicsRunningProcesses,
	} {
		infos, ret := question()
		switch {
		case isLost(ret):
			return nil, fmt.Errorf("%w: %s", ErrGPULost, uuid)
		case ret != nvml.SUCCESS:
			return nil, fmt.Errorf("list the processes on GPU %s: %w", uuid, ret)
		}
		for _, info := range infos {
			p := gpu.Process{PID: int(info.Pid)}
			if info.UsedGpuMemory != math.MaxUint64 { // NVML's "not available"
				p.UsedMemoryMiB = info.UsedGpuMemory >> 20
			}
			p.UsedMemoryMiB = max(p.UsedMemoryMiB, byPID[p.PID].UsedMemoryMiB)
			byPID[p.PID] = p
		}
	}
	processes := make([]gpu.Process, 0, len(byPID))
	for _, pid := range slices.Sorted(maps.Keys(byPID)) {
		processes = append(processes, byPID[pid])
	}
	return processes, nil
}
