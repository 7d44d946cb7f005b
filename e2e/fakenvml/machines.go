// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fakenvml

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/nomad-muster/muster/driver/gpu"
)

// spec is a machine in the words of `nvidia-smi topo -m`.
type spec struct {
	Model  string      `json:"gpu_model"`
	NVLink *nvlinkSpec `json:"nvlink"`
	Matrix [][]string  `json:"matrix"`
	NUMA   []int       `json:"numa"` // nil: not known

	fabric *gpu.Fabric
}

type nvlinkSpec struct {
	Generation  int     `json:"version"`
	LinksPerGPU int     `json:"links_per_gpu"`
	GBps        float64 `json:"gbyte_s_per_link_per_direction"`
}

// HGX8 returns a machine of eight GPUs behind NVSwitch on two sockets, one island.
func HGX8(name string) Machine {
	s := spec{Model: "NVIDIA H100 80GB HBM3", NVLink: &nvlinkSpec{4, 18, 26.562}, NUMA: halves(8)}
	s.fill(8, func(int, int) string { return "NV18" })
	return s.mustBuild(name)
}

// Pairs returns a machine of n GPUs, each two of them bridged by NVLink; with an odd n the last one is alone.
func Pairs(name string, n int) Machine {
	s := spec{Model: "NVIDIA H100 NVL", NVLink: &nvlinkSpec{4, 12, 26.562}, NUMA: halves(n)}
	s.fill(n, func(i, j int) string {
		if i/2 == j/2 {
			return "NV12"
		}
		return s.across(i, j)
	})
	return s.mustBuild(name)
}

// PCIe returns a machine of n GPUs without NVLink, on two sockets.
func PCIe(name string, n int) Machine {
	s := spec{Model: "NVIDIA L40S", NUMA: halves(n)}
	s.fill(n, s.across)
	return s.mustBuild(name)
}

// CubeMesh returns a machine of eight directly linked GPUs of which not all are joined, as in a DGX-1: two fully joined
// quads with one link from each GPU to its counterpart.
func CubeMesh(name string) Machine {
	s := spec{Model: "Tesla V100-SXM2-16GB", NVLink: &nvlinkSpec{2, 6, 25}, NUMA: halves(8)}
	s.fill(8, func(i, j int) string {
		switch {
		case i%4 == j%4, i/4 == j/4 && i^j == 1:
			return "NV2"
		case i/4 == j/4:
			return "NV1"
		}
		return "SYS"
	})
	return s.mustBuild(name)
}

// Tray returns four GPUs of a multi-node NVLink fabric. Trays of one cluster UUID and clique reach one another.
func Tray(name string, fabric gpu.Fabric) Machine {
	s := spec{Model: "NVIDIA GB200", NVLink: &nvlinkSpec{5, 18, 53.125}, NUMA: halves(4), fabric: &fabric}
	s.fill(4, func(int, int) string { return "NV18" })
	return s.mustBuild(name)
}

// ReadTopology reads a published machine: a JSON file with gpu_model, nvlink (version, links_per_gpu,
// gbyte_s_per_link_per_direction, or null), the matrix of `nvidia-smi topo -m` and NUMA nodes. What the file lacks is made
// up, UUIDs from the given name.
func ReadTopology(file, name string) (Machine, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Machine{}, fmt.Errorf("fakenvml: %w", err)
	}
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return Machine{}, fmt.Errorf("fakenvml: read %s: %w", file, err)
	}
	m, err := s.build(name)
	if err != nil {
		return Machine{}, fmt.Errorf("fakenvml: read %s: %w", file, err)
	}
	return m, nil
}

func halves(n int) []int {
	numa := make([]int, n)
	for i := (n + 1) / 2; i < n; i++ {
		numa[i] = 1
	}
	return numa
}

func (s *spec) fill(n int, word func(i, j int) string) {
	s.Matrix = make([][]string, n)
	for i := range n {
		for j := range n {
			w := "X"
			if i != j {
				w = word(i, j)
			}
			s.Matrix[i] = append(s.Matrix[i], w)
		}
	}
}

// across is the path of two GPUs as far as their NUMA nodes tell.
func (s *spec) across(i, j int) string {
	if len(s.NUMA) > max(i, j) && s.NUMA[i] == s.NUMA[j] {
		return gpu.PathNODE.String()
	}
	return gpu.PathSYS.String()
}

// mustBuild is for the machines of this file, which are right.
func (s *spec) mustBuild(name string) Machine {
	m, err := s.build(name)
	if err != nil {
		panic(err)
	}
	return m
}

func (s *spec) build(name string) (Machine, error) {
	m := Machine{DriverVersion: "570.158.01", CUDAVersion: 12080}
	memoryMiB, board := board(s.Model)
	for i, row := range s.Matrix {
		if len(row) != len(s.Matrix) {
			return Machine{}, fmt.Errorf("row %d of the matrix has %d words instead of %d", i, len(row), len(s.Matrix))
		}
		g := GPU{
			UUID: uuid(name, i), Model: s.Model, Minor: i, NUMANode: -1, MemoryMiB: memoryMiB, Board: board, Fabric: s.fabric,
			PCIBusID: fmt.Sprintf("0000:%02x:00.0", 0x10+i*8%0xe0+i/28),
		}
		if i < len(s.NUMA) {
			g.NUMANode = s.NUMA[i]
		}
		paths, err := s.row(&g, i, row)
		if err != nil {
			return Machine{}, err
		}
		m.GPUs, m.Paths = append(m.GPUs, g), append(m.Paths, paths)
	}
	return m, nil
}

// row fills the NVLinks of GPU i and returns its PCIe paths.
func (s *spec) row(g *GPU, i int, words []string) ([]gpu.Path, error) {
	paths := make([]gpu.Path, len(words))
	most := 0
	for j, word := range words {
		if word == "X" {
			continue
		}
		if count, isNVLink := nvlinks(word); isNVLink && s.NVLink != nil {
			most = max(most, count)
			for range count {
				g.Links = append(g.Links, s.NVLink.link(j))
			}
			word = s.across(i, j)
		}
		path, err := gpu.ParsePath(word)
		if err != nil {
			return nil, err
		}
		paths[j] = path
	}
	if s.NVLink != nil && len(g.Links) > s.NVLink.LinksPerGPU { // more than there are: all pairs share them by a switch
		g.Links = g.Links[:most]
		for n := range g.Links {
			g.Links[n].Switch, g.Links[n].Peer = true, 0
		}
	}
	return paths, nil
}

func nvlinks(word string) (count int, isNVLink bool) {
	n, err := fmt.Sscanf(word, "NV%d", &count)
	return count, n == 1 && err == nil
}

func (n nvlinkSpec) link(peer int) NVLink {
	version := n.Generation // NVML counts 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0 from 1
	switch n.Generation {
	case 3:
		version = 4
	case 4:
		version = 6
	case 5:
		version = 7
	}
	return NVLink{Peer: peer, MBps: int(math.Round(n.GBps * 1000)), Version: version}
}

// board returns the memory of a model and its board, near enough, as a server sets it up.
func board(model string) (memoryMiB uint64, b Board) {
	for _, known := range []struct {
		part  string
		mib   uint64
		board Board
	}{
		{"16GB", 16384, Board{PowerW: 300, BAR1MiB: 16384, CoresMHz: 1530, MemoryMHz: 877, PCIeGeneration: 3}},
		{"32GB", 32768, Board{PowerW: 300, BAR1MiB: 32768, CoresMHz: 1530, MemoryMHz: 877, PCIeGeneration: 3}},
		{"40GB", 40960, Board{PowerW: 400, BAR1MiB: 65536, CoresMHz: 1410, MemoryMHz: 1215, PCIeGeneration: 4}},
		{"GB200", 189471, Board{PowerW: 1200, BAR1MiB: 262144, CoresMHz: 2062, MemoryMHz: 3996, PCIeGeneration: 5}},
		{"B200", 183359, Board{PowerW: 1000, BAR1MiB: 262144, CoresMHz: 1965, MemoryMHz: 3996, PCIeGeneration: 5}},
		{"H20-3e", 144384, Board{PowerW: 500, BAR1MiB: 262144, CoresMHz: 1980, MemoryMHz: 3201, PCIeGeneration: 5}},
		{"H100 NVL", 95830, Board{PowerW: 400, BAR1MiB: 131072, CoresMHz: 1785, MemoryMHz: 2619, PCIeGeneration: 5}},
		{"H100", 81559, Board{PowerW: 700, BAR1MiB: 131072, CoresMHz: 1980, MemoryMHz: 2619, PCIeGeneration: 5}},
		{"A100", 81920, Board{PowerW: 400, BAR1MiB: 131072, CoresMHz: 1410, MemoryMHz: 1593, PCIeGeneration: 4}},
		{"L40S", 46068, Board{PowerW: 350, BAR1MiB: 65536, CoresMHz: 2520, MemoryMHz: 9001, PCIeGeneration: 4}},
		{"5090", 32607, Board{PowerW: 575, BAR1MiB: 32768, CoresMHz: 3090, MemoryMHz: 14001, PCIeGeneration: 5}},
		{"", 24564, Board{PowerW: 350, BAR1MiB: 32768, CoresMHz: 2100, MemoryMHz: 9751, PCIeGeneration: 4}},
	} {
		if strings.Contains(model, known.part) {
			memoryMiB, b = known.mib, known.board
			break
		}
	}
	b.PCIeWidth, b.Display, b.Persistence = 16, gpu.Disabled, gpu.Enabled
	return memoryMiB, b
}
