// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
)

// machinesPerRack is how many machines of one size, in file order, make up a rack where a list does not name racks:
// Philly's list does not.
const machinesPerRack = 24

// Levels are the topology levels of every cluster that is read, outermost first.
func Levels() []string { return []string{"rack"} }

// ReadCluster reads a list of machines and returns them as nodes that are all free, sorted by name. The formats:
//
//   - Philly: machineId, number of GPUs. Racks are 24 machines of one size in file order.
//   - Muster's own: node, gpus, rack.
//
// All GPUs of a machine are alike to one another, and CPU, memory and disk never run out: traces do not tell of them.
func ReadCluster(r io.Reader) ([]model.Node, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	name, gpus := "node", "gpus"
	if t.has("machineId", "number of GPUs") {
		name, gpus = "machineId", "number of GPUs"
	} else if !t.has("node", "gpus", "rack") {
		return nil, fmt.Errorf("cluster: %w: columns %s; Muster's own format has node, gpus, rack", ErrFormat, strings.Join(t.header, ", "))
	}
	if len(t.rows) == 0 {
		return nil, errors.New("cluster: no machines below the header")
	}
	topologies := make(map[int]*gpu.Topology)
	ofSize := make(map[int]int)
	nodes := make([]model.Node, 0, len(t.rows))
	for _, row := range t.rows {
		n := int(row.number(gpus))
		if *row.err == nil && (n < 1 || n > gpu.MaxGPUs || row.text(name) == "") {
			*row.err = errors.New("a machine needs a name and 1 to 64 GPUs")
		}
		if *row.err != nil {
			return nil, fmt.Errorf("cluster: line %d: %w", row.line, *row.err)
		}
		rack := row.text("rack")
		if name == "machineId" {
			rack = fmt.Sprintf("%dx%02d", n, ofSize[n]/machinesPerRack)
			ofSize[n]++
		}
		nodes = append(nodes, newNode(row.text(name), rack, n, topologies))
	}
	slices.SortFunc(nodes, func(a, b model.Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range nodes[1:] {
		if nodes[i].Name == nodes[i+1].Name {
			return nil, fmt.Errorf("cluster: machine %q is there twice", nodes[i].Name)
		}
	}
	return nodes, nil
}

const plenty = 1 << 40 // of MHz and of MiB

func newNode(name, rack string, gpus int, topologies map[int]*gpu.Topology) model.Node {
	if topologies[gpus] == nil {
		topologies[gpus] = gpu.NewTopology(uniform(gpus))
	}
	return model.Node{
		Name: name, Path: []string{rack}, Topology: topologies[gpus], Usable: gpu.FirstN(gpus), Free: gpu.FirstN(gpus),
		CPUMHz: plenty, MemoryMB: plenty, DiskMB: plenty,
	}
}

// uniform is a machine whose GPUs are all joined to one another.
func uniform(gpus int) gpu.Machine {
	m := gpu.Machine{GPUs: make([]gpu.GPU, gpus), Links: make([][]gpu.Link, gpus)}
	for i := range gpus {
		m.GPUs[i] = gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i}
		m.Links[i] = make([]gpu.Link, gpus)
		for j := range gpus {
			if i != j {
				m.Links[i][j] = gpu.Link{NVLinks: 1, NVLinkMBps: 25_000, PCIe: gpu.PathSYS}
			}
		}
	}
	return m
}
