// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Render draws the machine for an operator: its GPUs, the matrix of links in the words of `nvidia-smi topo -m`, and
// the islands. It ends in a newline.
func Render(m Machine) string {
	if len(m.GPUs) == 0 {
		return "No GPUs.\n"
	}
	t := NewTopology(m)
	var b strings.Builder
	if m.DriverVersion != "" {
		fmt.Fprintf(&b, "NVIDIA driver %s, CUDA %s\n\n", m.DriverVersion, orDash(m.CUDAVersion))
	}
	renderGPUs(&b, m)
	renderMatrix(&b, m, t)
	renderIslands(&b, m, t)
	renderLegend(&b, t)
	for _, note := range m.Notes {
		fmt.Fprintf(&b, "Note: %s.\n", note)
	}
	return b.String()
}

func renderGPUs(b *strings.Builder, m Machine) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line(w, "GPU", "Model", "Memory", "PCI", "NUMA", "UUID")
	for i, g := range m.GPUs {
		model := g.Model
		if g.MIG {
			model += " (MIG)"
		}
		numa := "-"
		if g.NUMANode >= 0 {
			numa = strconv.Itoa(g.NUMANode)
		}
		line(w, strconv.Itoa(i), model, fmt.Sprintf("%d MiB", g.MemoryMiB), orDash(g.PCIBusID), numa, g.UUID)
	}
	flush(w, b)
}

func renderMatrix(b *strings.Builder, m Machine, t *Topology) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	header := []string{""}
	for i := range m.GPUs {
		header = append(header, fmt.Sprintf("GPU%d", i))
	}
	line(w, header...)
	for i := range m.GPUs {
		row := []string{fmt.Sprintf("GPU%d", i)}
		for j := range m.GPUs {
			word := "X"
			if i != j {
				word = t.Link(i, j).String()
			}
			row = append(row, word)
		}
		line(w, row...)
	}
	flush(w, b)
}

func renderIslands(b *strings.Builder, m Machine, t *Topology) {
	b.WriteString("Islands (GPUs fully joined by NVLink):\n")
	found := false
	for _, island := range t.islands {
		if island.Len() < 2 {
			continue
		}
		found = true
		fmt.Fprintf(b, "  GPUs %s: %s", island, rates(t, island))
		if f := m.GPUs[island.first()].Fabric; f != nil {
			fmt.Fprintf(b, ", in NVLink fabric %s, clique %d", f.ClusterUUID, f.Clique)
		}
		b.WriteByte('\n')
	}
	if !found {
		b.WriteString("  none\n")
	}
}

// rates says how fast an island's pairs are joined.
func rates(t *Topology, island Set) string {
	slowest, fastest := 0, 0
	for i := range island.All() {
		for j := range island.All() {
			if i == j {
				continue
			}
			rate := t.Link(i, j).NVLinkMBps
			if slowest == 0 || rate < slowest {
				slowest = rate
			}
			fastest = max(fastest, rate)
		}
	}
	if slowest == fastest {
		return fmt.Sprintf("%.1f GB/s between each pair", float64(slowest)/1000)
	}
	return fmt.Sprintf("%.1f to %.1f GB/s between pairs", float64(slowest)/1000, float64(fastest)/1000)
}

// renderLegend explains the words that occur in the matrix.
func renderLegend(b *strings.Builder, t *Topology) {
	var nvlink bool
	var paths [PathSYS + 1]bool
	for i := range t.links {
		for j, l := range t.links[i] {
			switch {
			case i == j:
			case l.NVLinks > 0:
				nvlink = true
			default:
				paths[l.PCIe] = true
			}
		}
	}
	if nvlink || len(t.links) > 1 {
		b.WriteByte('\n')
	}
	if nvlink {
		b.WriteString("NV<n>  joined by that many NVLinks, directly or through NVSwitch\n")
	}
	for _, p := range []Path{PathPIX, PathPXB, PathPHB, PathNODE, PathSYS, PathUnknown} {
		if paths[p] {
			fmt.Fprintf(b, "%-6s %s\n", p, pathMeaning(p))
		}
	}
}

func pathMeaning(p Path) string {
	switch p {
	case PathPIX:
		return "at most one PCIe switch between them"
	case PathPXB:
		return "several PCIe switches, no host bridge"
	case PathPHB:
		return "one PCIe host bridge"
	case PathNODE:
		return "several host bridges of one NUMA node"
	case PathSYS:
		return "across NUMA nodes"
	case PathUnknown:
	}
	return "not known"
}

func line(w *tabwriter.Writer, cells ...string) {
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // to memory: never fails
}

func flush(w *tabwriter.Writer, b *strings.Builder) {
	_ = w.Flush() // to memory: never fails
	b.WriteByte('\n')
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
