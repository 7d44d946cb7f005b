// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package gpu holds the GPUs of one machine as plain values (model, memory, links, islands, health) and decides
// which k of them a gang member should get. It reads no hardware, imports nothing of ours and has no cgo, so that
// the placer decides with the same code that `muster topo -choose` shows. Anybody may import it.
package gpu

import "time"

// Machine is what NVML says about one machine's GPUs at one moment. GPUs are in index order (PCI bus order), and
// Links[i][j] joins GPUs[i] and GPUs[j]; the matrix is symmetric and its diagonal is the zero Link.
type Machine struct {
	DriverVersion string   `json:"driver_version,omitempty"` // NVIDIA driver, "570.158.01"
	CUDAVersion   string   `json:"cuda_version,omitempty"`   // highest CUDA that the driver serves, "12.8"
	GPUs          []GPU    `json:"gpus"`
	Links         [][]Link `json:"links,omitempty"`
	Notes         []string `json:"notes,omitempty"` // what was odd about NVML's answers, in words for an operator
}

// GPU is one device. What changes from second to second (utilisation, temperature) is in Stats, what says whether
// it can be trusted is in Health; neither is part of the inventory.
type GPU struct {
	UUID      string  `json:"uuid"`
	Index     int     `json:"index"` // NVML's; may change with a reboot, so never an identity
	Minor     int     `json:"minor"` // the N of /dev/nvidiaN
	Model     string  `json:"model"`
	MemoryMiB uint64  `json:"memory_mib"`
	PCIBusID  string  `json:"pci_bus_id"` // domain:bus:device.function, lower case, no trailing NULs
	NUMANode  int     `json:"numa_node"`  // -1: unknown
	MIG       bool    `json:"mig,omitempty"`
	Fabric    *Fabric `json:"fabric,omitempty"` // nil: not part of a multi-node NVLink fabric
	Facts     *Facts  `json:"facts,omitempty"`  // nil: nothing is known
}

// Facts are further properties of a GPU that stay as they are from one reading to the next. No placement depends on them:
// they describe unmanaged GPUs to Nomad. A zero field is one that this GPU or driver does not report.
type Facts struct {
	PowerLimitW    uint32 `json:"power_limit_w,omitempty"` // the board's default limit
	BAR1MiB        uint64 `json:"bar1_mib,omitempty"`
	CoresClockMHz  uint32 `json:"cores_clock_mhz,omitempty"` // highest
	MemoryClockMHz uint32 `json:"memory_clock_mhz,omitempty"`
	PCIeMBps       uint32 `json:"pcie_mbps,omitempty"`        // MB/s in one direction, the best that GPU and machine agree on
	Display        Switch `json:"display,omitempty"`          // whether a display is connected
	Persistence    Switch `json:"persistence_mode,omitempty"` // whether the driver stays loaded without users
}

// Switch is something that is on or off, in NVIDIA's words. Empty means that it is not reported.
type Switch string

// The positions of a switch.
const (
	Enabled  Switch = "Enabled"
	Disabled Switch = "Disabled"
)

// Fabric names the multi-node NVLink domain (for example one NVL72 rack) that a GPU has joined. GPUs reach one
// another over NVLink across machines when both fields are equal.
type Fabric struct {
	ClusterUUID string `json:"cluster_uuid"`
	Clique      uint32 `json:"clique"`
}

// Link is the connection of two GPUs of one machine. In JSON it is one word, see MarshalText.
type Link struct {
	NVLinks    int  // active NVLinks that join the pair, directly or through NVSwitch
	NVLinkMBps int  // their sum, MB/s in one direction
	PCIe       Path // the way round NVLink
}

// Path is how far two GPUs are apart on PCIe, nearest first; `nvidia-smi topo -m` uses the same words.
type Path uint8

// The paths. PathUnknown stands on the diagonal and where NVML does not say; it counts as the farthest.
const (
	PathUnknown Path = iota
	PathPIX          // one PCIe switch at most
	PathPXB          // several PCIe switches, no host bridge
	PathPHB          // one host bridge
	PathNODE         // several host bridges of one NUMA node
	PathSYS          // across NUMA nodes
)

// HealthState says whether a GPU may be given to a gang.
type HealthState string

// The states. Busy means that the GPU is well, but processes use it that belong to no slot. Lost means that NVML no longer
// answers for the GPU (fallen off the bus).
const (
	Healthy   HealthState = "healthy"
	Busy      HealthState = "busy"
	Unhealthy HealthState = "unhealthy"
	Lost      HealthState = "lost"
)

// Health is one GPU's state with the reason in words for an operator; Reason is empty while Healthy. Since is when it was
// first seen so, by that machine's clock, and zero where nobody has noted it.
type Health struct {
	State  HealthState `json:"state"`
	Reason string      `json:"reason,omitempty"`
	Since  time.Time   `json:"since,omitzero"`
}

// Stats is what moves from second to second. A nil field is one that this GPU or driver does not report.
type Stats struct {
	UUID               string
	UtilizationPercent *uint32
	MemoryUsedMiB      *uint64
	MemoryTotalMiB     *uint64
	TemperatureC       *uint32
	PowerW             *float64
	NVLinkRxKiB        *uint64 // counter since the driver loaded, all links
	NVLinkTxKiB        *uint64
	ECCCorrected       *uint64 // volatile counter
	ECCUncorrected     *uint64
	XIDCount           uint64 // XID events since this process began to listen
	LastXID            uint64 // 0: none
}

// Process is one user of a GPU, as NVML reports it.
type Process struct {
	PID           int
	UsedMemoryMiB uint64
}

// Set is a set of GPUs of one machine, bit i for Machine.GPUs[i]. Machines of more than 64 GPUs do not exist.
type Set uint64
