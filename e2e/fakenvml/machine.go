// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fakenvml

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nomad-muster/muster/driver/gpu"
)

// Machine is what the library tells about a machine.
type Machine struct {
	DriverVersion string
	CUDAVersion   int // 12080 is 12.8
	GPUs          []GPU
	Paths         [][]gpu.Path // PCIe paths by index, also of pairs that NVLink joins
}

// GPU is one made-up GPU.
type GPU struct {
	UUID      string
	Model     string
	PCIBusID  string // domain:bus:device.function
	Minor     int
	NUMANode  int // -1: not told
	MemoryMiB uint64
	Board     Board
	Fabric    *gpu.Fabric // nil: not supported
	Links     []NVLink    // at most 36, by NVLink number
}

// Board is what a GPU is built and set for; it is not told where it is zero.
type Board struct {
	PowerW         uint32 // default limit
	BAR1MiB        uint64
	CoresMHz       uint32 // highest clocks
	MemoryMHz      uint32
	PCIeGeneration int // the best that GPU and machine agree on
	PCIeWidth      int
	Display        gpu.Switch
	Persistence    gpu.Switch
}

// NVLink is one active NVLink of a GPU.
type NVLink struct {
	Switch  bool // it ends at an NVSwitch
	Peer    int  // else the index of the GPU at its far end
	MBps    int  // in one direction; 0: a driver that does not tell
	Version int  // NVML's number of the version, not NVIDIA's
}

// UUIDs returns the UUIDs of all GPUs in index order.
func (m Machine) UUIDs() []string {
	uuids := make([]string, len(m.GPUs))
	for i := range m.GPUs {
		uuids[i] = m.GPUs[i].UUID
	}
	return uuids
}

// Of is the same machine with GPUs of its own: clusters on one computer must not take each other's for theirs.
func (m Machine) Of(cluster string) Machine {
	m.GPUs = slices.Clone(m.GPUs)
	for i := range m.GPUs {
		m.GPUs[i].UUID = uuid(cluster+"/"+m.GPUs[i].UUID, i)
	}
	return m
}

// WriteFile writes the machine file, whole or not at all.
func (m Machine) WriteFile(file string) error {
	return replace(file, m.encode())
}

func (m Machine) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "driver %s\ncuda %d\n", m.DriverVersion, m.CUDAVersion)
	for _, g := range m.GPUs {
		fmt.Fprintf(&b, "gpu uuid=%s minor=%d pci=%s numa=%d memory_mib=%d", g.UUID, g.Minor, g.PCIBusID, g.NUMANode, g.MemoryMiB)
		if g.Fabric != nil {
			fmt.Fprintf(&b, " fabric=%s clique=%d", g.Fabric.ClusterUUID, g.Fabric.Clique)
		}
		b.WriteString(g.Board.encode())
		fmt.Fprintf(&b, " model=%s\n", g.Model)
	}
	for i, g := range m.GPUs {
		for n, l := range g.Links {
			end := "gpu"
			if l.Switch {
				end = "switch"
			}
			fmt.Fprintf(&b, "link %d %d %s %d %d %d\n", i, n, end, l.Peer, l.MBps, l.Version)
		}
	}
	for i, row := range m.Paths {
		for j, p := range row {
			if j < i && p != gpu.PathUnknown {
				fmt.Fprintf(&b, "path %d %d %d\n", i, j, int(p)*10) // the levels are 10 (PIX) to 50 (SYS)
			}
		}
	}
	return b.Bytes()
}

// encode returns words of a gpu line.
func (b Board) encode() string {
	return fmt.Sprintf(" power_w=%d bar1_mib=%d cores_mhz=%d memory_mhz=%d pcie_generation=%d pcie_width=%d display=%s persistence=%s",
		b.PowerW, b.BAR1MiB, b.CoresMHz, b.MemoryMHz, b.PCIeGeneration, b.PCIeWidth, b.Display, b.Persistence)
}

// uuid makes up the UUID of a GPU, always the same one for a machine's name and an index.
func uuid(machine string, index int) string {
	h := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s/%d", machine, index)))
	return fmt.Sprintf("GPU-%s-%s-4%s-8%s-%s", h[:8], h[8:12], h[12:15], h[15:18], h[18:30])
}

// replace writes a file in one step, so that no reader sees half of it.
func replace(file string, content []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-")
	if err != nil {
		return fmt.Errorf("fakenvml: %w", err)
	}
	_, err = temporary.Write(content)
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Chmod(temporary.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
		return fmt.Errorf("fakenvml: write %s: %w", file, err)
	}
	return nil
}
