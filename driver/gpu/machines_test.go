// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/shoenig/test/must"
)

// published is what we read of a file in data/topologies.
type published struct {
	Name   string `json:"name"`
	Model  string `json:"gpu_model"`
	NVLink *struct {
		GBps float64 `json:"gbyte_s_per_link_per_direction"`
	} `json:"nvlink"`
	Matrix [][]string `json:"matrix"`
	NUMA   []int      `json:"numa"`
}

// publishedMachines reads the published machines, or skips the test if they are not there.
func publishedMachines(t testing.TB) map[string]gpu.Machine {
	t.Helper()
	data := os.Getenv("MUSTER_DATA")
	if data == "" {
		data = filepath.Join("..", "..", "..", "shared", "data")
	}
	files, err := filepath.Glob(filepath.Join(data, "topologies", "*.json"))
	must.NoError(t, err)
	if len(files) == 0 {
		t.Skipf("no published machines in %s (set MUSTER_DATA)", data)
	}
	machines := map[string]gpu.Machine{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		var p published
		must.NoError(t, json.Unmarshal(text, &p))
		machines[p.Name] = p.machine(t)
	}
	return machines
}

func (p published) machine(t testing.TB) gpu.Machine {
	rows := make([]string, len(p.Matrix))
	for i, row := range p.Matrix {
		rows[i] = strings.Join(row, " ")
	}
	mbps := 0
	if p.NVLink != nil {
		mbps = int(p.NVLink.GBps * 1000)
	}
	return matrix(t, p.Model, mbps, p.NUMA, rows...)
}

// matrix makes a machine from the words of `nvidia-smi topo -m`.
func matrix(t testing.TB, model string, mbpsPerLink int, numa []int, rows ...string) gpu.Machine {
	t.Helper()
	var m gpu.Machine
	for i, row := range rows {
		node := -1
		if numa != nil {
			node = numa[i]
		}
		m.GPUs = append(m.GPUs, gpu.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: i, Model: model, MemoryMiB: 81920,
			PCIBusID: fmt.Sprintf("0000:%02x:00.0", i+1), NUMANode: node,
		})
		var links []gpu.Link
		for _, word := range strings.Fields(row) {
			links = append(links, link(t, word, mbpsPerLink))
		}
		must.Len(t, len(rows), links)
		m.Links = append(m.Links, links)
	}
	return m
}

func link(t testing.TB, word string, mbpsPerLink int) gpu.Link {
	var n int
	if _, err := fmt.Sscanf(word, "NV%d", &n); err == nil {
		return gpu.Link{NVLinks: n, NVLinkMBps: n * mbpsPerLink}
	}
	if word == "X" {
		return gpu.Link{}
	}
	p, err := gpu.ParsePath(word)
	must.NoError(t, err)
	return gpu.Link{PCIe: p}
}

func dgx1(t testing.TB) gpu.Machine {
	return matrix(t, "Tesla V100", 25000, []int{0, 0, 0, 0, 1, 1, 1, 1},
		"X NV1 NV1 NV2 NV2 SYS SYS SYS",
		"NV1 X NV2 NV1 SYS NV2 SYS SYS",
		"NV1 NV2 X NV2 SYS SYS NV1 SYS",
		"NV2 NV1 NV2 X SYS SYS SYS NV1",
		"NV2 SYS SYS SYS X NV1 NV1 NV2",
		"SYS NV2 SYS SYS NV1 X NV2 NV1",
		"SYS SYS NV1 SYS NV1 NV2 X NV2",
		"SYS SYS SYS NV1 NV2 NV1 NV2 X")
}

func pairs(t testing.TB) gpu.Machine {
	return matrix(t, "NVIDIA H100 NVL", 26562, []int{0, 0, 0, 0},
		"X NV12 NODE NODE", "NV12 X NODE NODE", "NODE NODE X NV12", "NODE NODE NV12 X")
}

func sockets(t testing.TB) gpu.Machine {
	return matrix(t, "NVIDIA GeForce RTX 4090", 0, []int{0, 0, 1, 1},
		"X SYS SYS SYS", "SYS X SYS SYS", "SYS SYS X SYS", "SYS SYS SYS X")
}

// joined puts machines side by side, with SYS between them.
func joined(machines ...gpu.Machine) gpu.Machine {
	var all gpu.Machine
	for _, m := range machines {
		for i := range all.Links {
			for range m.GPUs {
				all.Links[i] = append(all.Links[i], gpu.Link{PCIe: gpu.PathSYS})
			}
		}
		offset := len(all.GPUs)
		for i, g := range m.GPUs {
			g.Index, g.UUID = offset+i, fmt.Sprintf("GPU-%d", offset+i)
			if g.NUMANode >= 0 {
				g.NUMANode += 2 * offset
			}
			row := make([]gpu.Link, offset, offset+len(m.GPUs))
			for j := range row {
				row[j] = gpu.Link{PCIe: gpu.PathSYS}
			}
			all.GPUs = append(all.GPUs, g)
			all.Links = append(all.Links, append(row, m.Links[i]...))
		}
	}
	return all
}

// mesh makes a machine whose every pair draws its link at random, NVLink with the given chance in percent.
func mesh(n, nvlinkPercent int, seed uint64) gpu.Machine {
	r := rand.New(rand.NewPCG(seed, 1))
	m := gpu.Machine{GPUs: make([]gpu.GPU, n), Links: make([][]gpu.Link, n)}
	for i := range n {
		m.GPUs[i] = gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, NUMANode: r.IntN(3) - 1}
		m.Links[i] = make([]gpu.Link, n)
		for j := range i {
			l := gpu.Link{PCIe: gpu.Path(r.IntN(int(gpu.PathSYS) + 1))}
			if r.IntN(100) < nvlinkPercent {
				l.NVLinks = 1 + r.IntN(6)
				l.NVLinkMBps = l.NVLinks * 25000
			}
			m.Links[i][j], m.Links[j][i] = l, l
		}
	}
	return m
}

// ring makes a machine where each GPU is joined to the next one on either side: every arc of the ring is as good as
// any other, and no two GPUs are twins.
func ring(n, reach int) gpu.Machine {
	m := gpu.Machine{GPUs: make([]gpu.GPU, n), Links: make([][]gpu.Link, n)}
	for i := range n {
		m.GPUs[i] = gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, NUMANode: -1}
		m.Links[i] = make([]gpu.Link, n)
		for j := range n {
			away := min((i-j+n)%n, (j-i+n)%n)
			switch {
			case away == 0:
			case away <= reach:
				m.Links[i][j] = gpu.Link{NVLinks: 2, NVLinkMBps: 50000, PCIe: gpu.PathSYS}
			default:
				m.Links[i][j] = gpu.Link{PCIe: gpu.PathSYS}
			}
		}
	}
	return m
}
