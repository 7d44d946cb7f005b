// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/driver/gpu"
)

// facts asks for the steady properties of a GPU, limits and not current readings, and returns nil if it tells none. An
// error means that the GPU is lost.
func (l *Library) facts(d nvml.Device) (*gpu.Facts, error) {
	var f gpu.Facts
	var generation, width int
	questions := []struct {
		symbol string
		ask    func() nvml.Return
	}{
		{"nvmlDeviceGetPowerManagementDefaultLimit", func() nvml.Return {
			milliwatt, ret := d.GetPowerManagementDefaultLimit()
			return told(&f.PowerLimitW, milliwatt/1000, ret)
		}},
		{"nvmlDeviceGetBAR1MemoryInfo", func() nvml.Return {
			memory, ret := d.GetBAR1MemoryInfo()
			return told(&f.BAR1MiB, memory.Bar1Total>>20, ret)
		}},
		{"nvmlDeviceGetMaxClockInfo", func() nvml.Return {
			mhz, ret := d.GetMaxClockInfo(nvml.CLOCK_GRAPHICS)
			return told(&f.CoresClockMHz, mhz, ret)
		}},
		{"nvmlDeviceGetMaxClockInfo", func() nvml.Return {
			mhz, ret := d.GetMaxClockInfo(nvml.CLOCK_MEM)
			return told(&f.MemoryClockMHz, mhz, ret)
		}},
		{"nvmlDeviceGetMaxPcieLinkGeneration", func() nvml.Return {
			n, ret := d.GetMaxPcieLinkGeneration()
			return told(&generation, n, ret)
		}},
		{"nvmlDeviceGetMaxPcieLinkWidth", func() nvml.Return {
			n, ret := d.GetMaxPcieLinkWidth()
			return told(&width, n, ret)
		}},
		{"nvmlDeviceGetDisplayMode", func() nvml.Return {
			state, ret := d.GetDisplayMode()
			return told(&f.Display, position(state), ret)
		}},
		{"nvmlDeviceGetPersistenceMode", func() nvml.Return {
			state, ret := d.GetPersistenceMode()
			return told(&f.Persistence, position(state), ret)
		}},
	}
	for _, q := range questions {
		if !l.has(q.symbol) {
			continue
		}
		if err := lostOnly(q.ask()); err != nil {
			return nil, err
		}
	}
	f.PCIeMBps = pcieMBps(generation, width)
	if f == (gpu.Facts{}) {
		return nil, nil
	}
	return &f, nil
}

// told keeps an answer that NVML gave.
func told[T any](to *T, answer T, ret nvml.Return) nvml.Return {
	if ret == nvml.SUCCESS {
		*to = answer
	}
	return ret
}

func position(state nvml.EnableState) gpu.Switch {
	if state == nvml.FEATURE_ENABLED {
		return gpu.Enabled
	}
	return gpu.Disabled
}

// pcieMBps is the rate of a PCIe link in one direction after its line code, or 0 if one of the two is not known.
func pcieMBps(generation, width int) uint32 {
	perLane := [...]uint32{0, 250, 500, 985, 1969, 3938, 7563}
	if generation < 0 || generation >= len(perLane) || width < 0 || width > 32 {
		return 0
	}
	return perLane[generation] * uint32(width)
}
