// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/driver/gpu"
)

// linkReport is one active NVLink as the GPU at its near end reports it.
type linkReport struct {
	kind  remoteKind
	busID string // of the far end
	mbps  int    // in one direction
}

type remoteKind int

const (
	remoteUntold remoteKind = iota // by an old driver: a GPU if the address is one's, else a switch
	remoteGPU
	remoteSwitch
	remoteOther // nothing that joins two GPUs
)

// Rates per NVLink in one direction for drivers that do not tell them, all of which are too old for GPUs with an
// NVLink that is faster.
const (
	nvlink1MBps = 20000
	nvlink3MBps = 25000 // also NVLink 2
)

// links asks for the active NVLinks of a GPU.
func (l *Library) links(d nvml.Device) ([]linkReport, error) {
	if !l.has("nvmlDeviceGetNvLinkState") || !l.has("nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return nil, nil
	}
	var numbers []int
	var reports []linkReport
	for n := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(n)
		if ret == nvml.ERROR_INVALID_ARGUMENT { // the library knows fewer links
			break
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			if err := lostOnly(ret); err != nil {
				return nil, err
			}
			continue
		}
		pci, ret := d.GetNvLinkRemotePciInfo(n)
		if ret != nvml.SUCCESS {
			if err := lostOnly(ret); err != nil {
				return nil, err
			}
			continue
		}
		kind, err := l.remote(d, n)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
		reports = append(reports, linkReport{kind: kind, busID: busID(pci)})
	}
	return reports, l.rates(d, numbers, reports)
}

func (l *Library) remote(d nvml.Device, link int) (remoteKind, error) {
	if !l.has("nvmlDeviceGetNvLinkRemoteDeviceType") {
		return remoteUntold, nil
	}
	kind, ret := d.GetNvLinkRemoteDeviceType(link)
	switch {
	case ret != nvml.SUCCESS:
		return remoteUntold, lostOnly(ret)
	case kind == nvml.NVLINK_DEVICE_TYPE_GPU:
		return remoteGPU, nil
	case kind == nvml.NVLINK_DEVICE_TYPE_SWITCH:
		return remoteSwitch, nil
	}
	return remoteOther, nil
}

// rates fills in the rate of each link: its own, or the one common to all links, or the one of its version.
func (l *Library) rates(d nvml.Device, numbers []int, reports []linkReport) error {
	if len(reports) == 0 {
		return nil
	}
	values := make([]nvml.FieldValue, len(numbers)+1)
	for i, n := range numbers {
		values[i] = nvml.FieldValue{FieldId: nvml.FI_DEV_NVLINK_GET_SPEED, ScopeId: uint32(n)} //nolint:gosec // G115: at most 36
	}
	values[len(numbers)].FieldId = nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON
	told := false
	if l.has("nvmlDeviceGetFieldValues") {
		ret := d.GetFieldValues(values)
		if err := lostOnly(ret); err != nil {
			return err
		}
		told = ret == nvml.SUCCESS
	}
	for i, n := range numbers {
		if told {
			reports[i].mbps = fieldMBps(values[i])
			if reports[i].mbps == 0 {
				reports[i].mbps = fieldMBps(values[len(numbers)])
			}
		}
		if reports[i].mbps == 0 {
			reports[i].mbps = l.rateOfVersion(d, n)
		}
	}
	return nil
}

// fieldMBps returns a rate, or 0 if NVML does not tell it.
func fieldMBps(v nvml.FieldValue) int {
	if nvml.Return(v.NvmlReturn) != nvml.SUCCESS { //nolint:gosec // G115: an nvmlReturn_t
		return 0
	}
	return int(binary.NativeEndian.Uint32(v.Value[:4]))
}

func (l *Library) rateOfVersion(d nvml.Device, link int) int {
	if l.has("nvmlDeviceGetNvLinkVersion") {
		if version, ret := d.GetNvLinkVersion(link); ret == nvml.SUCCESS && version == 1 {
			return nvlink1MBps
		}
	}
	return nvlink3MBps
}

// bundle is what one GPU reports of its NVLinks in one direction.
type bundle struct{ count, mbps int }

func (b bundle) add(r linkReport) bundle { return bundle{b.count + 1, b.mbps + r.mbps} }

func (b bundle) weaker(o bundle) bundle { return bundle{min(b.count, o.count), min(b.mbps, o.mbps)} }

// joins is what one GPU reports: NVLinks to other GPUs by index and to NVSwitch.
type joins struct {
	direct   map[int]bundle
	switched bundle
}

// join fills in the links of all pairs. Pairs of which one is lost keep the link that they had.
func (l *Library) join(m *gpu.Machine, reports []report, reported map[string]int) {
	byBus := map[string]int{}
	for i, g := range m.GPUs {
		byBus[g.PCIBusID] = i
	}
	ends := make([]joins, len(m.GPUs))
	for i, g := range m.GPUs {
		if r, ok := reported[g.UUID]; ok {
			ends[i] = joinsOf(reports[r].links, byBus)
		}
	}
	m.Links = make([][]gpu.Link, len(m.GPUs))
	for i := range m.Links {
		m.Links[i] = make([]gpu.Link, len(m.GPUs))
	}
	for i := range m.GPUs {
		for j := range i {
			a, seenA := reported[m.GPUs[i].UUID]
			b, seenB := reported[m.GPUs[j].UUID]
			link := l.remembered(m.GPUs[i].UUID, m.GPUs[j].UUID)
			if seenA && seenB {
				link.NVLinks, link.NVLinkMBps = nvlinkOf(ends, i, j)
				link.PCIe = l.path(reports[a].device, reports[b].device, link.PCIe)
			}
			m.Links[i][j], m.Links[j][i] = link, link
		}
	}
	m.Notes = append(m.Notes, linkNotes(ends)...)
}

func joinsOf(links []linkReport, byBus map[string]int) joins {
	j := joins{direct: map[int]bundle{}}
	for _, r := range links {
		peer, isGPU := byBus[r.busID]
		switch {
		case r.kind == remoteSwitch, r.kind == remoteUntold && !isGPU:
			j.switched = j.switched.add(r)
		case r.kind != remoteOther && isGPU:
			j.direct[peer] = j.direct[peer].add(r)
		}
	}
	return j
}

// nvlinkOf joins what the two ends report: what both of them have, directly and through NVSwitch.
func nvlinkOf(ends []joins, i, j int) (count, mbps int) {
	direct := ends[i].direct[j].weaker(ends[j].direct[i])
	switched := ends[i].switched.weaker(ends[j].switched)
	return direct.count + switched.count, direct.mbps + switched.mbps
}

// linkNotes says where two ends differ and which GPUs have fewer NVLinks to NVSwitch than others.
func linkNotes(ends []joins) []string {
	var notes []string
	most := 0
	for _, e := range ends {
		most = max(most, e.switched.count)
	}
	for i, e := range ends {
		for j := range i {
			if a, b := e.direct[j].count, ends[j].direct[i].count; a != b {
				notes = append(notes, fmt.Sprintf(
					"GPU %d reports %d NVLinks to GPU %d, which reports %d; the smaller number counts", i, a, j, b))
			}
		}
		if e.direct != nil && e.switched.count < most {
			notes = append(notes, fmt.Sprintf(
				"GPU %d has %d NVLinks to NVSwitch, others have %d; the smaller number counts", i, e.switched.count, most))
		}
	}
	return notes
}

// remembered returns the link that two GPUs had at the last discovery.
func (l *Library) remembered(a, b string) gpu.Link {
	set, err := l.machine.SetOf([]string{a, b})
	if err != nil || set.Len() != 2 {
		return gpu.Link{}
	}
	pair := set.Indexes()
	return l.machine.Links[pair[0]][pair[1]]
}

// path asks how two GPUs are joined on PCIe; known is the answer if NVML gives none now.
func (l *Library) path(a, b nvml.Device, known gpu.Path) gpu.Path {
	if !l.has("nvmlDeviceGetTopologyCommonAncestor") {
		return known
	}
	level, ret := l.api.DeviceGetTopologyCommonAncestor(a, b)
	if ret != nvml.SUCCESS {
		return known
	}
	switch level {
	case nvml.TOPOLOGY_INTERNAL, nvml.TOPOLOGY_SINGLE:
		return gpu.PathPIX
	case nvml.TOPOLOGY_MULTIPLE:
		return gpu.PathPXB
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return gpu.PathPHB
	case nvml.TOPOLOGY_NODE:
		return gpu.PathNODE
	case nvml.TOPOLOGY_SYSTEM:
		return gpu.PathSYS
	}
	return gpu.PathUnknown
}
