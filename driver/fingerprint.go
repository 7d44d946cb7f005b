// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/version"
)

// fingerprintEvery is how often the machine is looked at again; only changes are sent.
const fingerprintEvery = 30 * time.Second

// Fingerprint implements drivers.DriverPlugin.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	p.mu.Lock()
	p.sweepLocked()
	p.mu.Unlock()
	out := make(chan *drivers.Fingerprint)
	go func() {
		defer close(out)
		ticker := time.NewTicker(fingerprintEvery)
		defer ticker.Stop()
		var last *drivers.Fingerprint
		for {
			if next := p.look(); last == nil || !sameFingerprint(last, next) {
				select {
				case out <- next:
					last = next
				case <-ctx.Done():
					return
				case <-p.ctx.Done():
					return
				}
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			case <-p.ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// look asks the hardware.
func (p *Plugin) look() *drivers.Fingerprint {
	p.mu.Lock()
	set, node := p.settings, p.node
	p.mu.Unlock()
	if !set.Enabled {
		return undetected("disabled by the plugin's configuration (enabled = false)")
	}
	var machine gpu.Machine
	hardware, err := p.openNVML()
	if err == nil {
		machine, _, err = hardware.Discover()
	}
	if err != nil {
		return undetected("no GPUs: " + err.Error())
	}
	return fingerprint(machine, cmp.Or(set.Node, node))
}

// undetected is the state in which Nomad places no task of ours here, and ends none. It is for machines without GPUs, and
// for those whose GPUs can't be seen now: the two look the same from here, the text says which.
func undetected(why string) *drivers.Fingerprint {
	return &drivers.Fingerprint{Health: drivers.HealthStateUndetected, HealthDescription: why}
}

// fingerprint describes a machine. Nothing in it moves from day to day: attributes are part of the class by which Nomad
// remembers where a job can't run.
func fingerprint(m gpu.Machine, node string) *drivers.Fingerprint {
	if len(m.GPUs) == 0 {
		return undetected("no GPUs: NVML finds none")
	}
	attributes := map[string]*pstructs.Attribute{
		"driver." + name:                     pstructs.NewBoolAttribute(true),
		"driver." + name + ".version":        pstructs.NewStringAttribute(version.Version),
		"driver." + name + ".gpu.count":      pstructs.NewIntAttribute(int64(len(m.GPUs)), ""),
		"driver." + name + ".gpu.model":      pstructs.NewStringAttribute(models(m)),
		"driver." + name + ".nvlink.islands": pstructs.NewStringAttribute(islands(m)),
		"driver." + name + ".nvidia.version": pstructs.NewStringAttribute(m.DriverVersion),
		"driver." + name + ".cuda.version":   pstructs.NewStringAttribute(m.CUDAVersion),
	}
	if node != "" {
		attributes["muster.node"] = pstructs.NewStringAttribute(node)
	}
	return &drivers.Fingerprint{Attributes: attributes, Health: drivers.HealthStateHealthy, HealthDescription: drivers.DriverHealthy}
}

// models lists the machine's GPU models, each once.
func models(m gpu.Machine) string {
	var all []string
	for _, g := range m.GPUs {
		all = append(all, g.Model)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// islands lists the sizes of the machine's NVLink islands, the largest first: "8", or "4,4".
func islands(m gpu.Machine) string {
	var sizes []int
	for _, island := range gpu.NewTopology(m).Islands() {
		sizes = append(sizes, island.Len())
	}
	slices.SortFunc(sizes, func(a, b int) int { return cmp.Compare(b, a) })
	texts := make([]string, 0, len(sizes))
	for _, size := range sizes {
		texts = append(texts, strconv.Itoa(size))
	}
	return strings.Join(texts, ",")
}

func sameFingerprint(a, b *drivers.Fingerprint) bool {
	return a.Health == b.Health && a.HealthDescription == b.HealthDescription &&
		maps.EqualFunc(a.Attributes, b.Attributes, func(x, y *pstructs.Attribute) bool { return x.GoString() == y.GoString() })
}

// openNVML opens NVML if it is not open yet.
func (p *Plugin) openNVML() (Hardware, error) {
	if hardware := p.nvml(); hardware != nil {
		return hardware, nil
	}
	p.mu.Lock()
	library := p.settings.NVMLLibrary
	p.mu.Unlock()
	hardware, err := p.deps.Hardware(library)
	if err != nil {
		return nil, fmt.Errorf("NVML can't be used: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hardware == nil {
		p.hardware = hardware
	}
	return p.hardware, nil
}

// nvml is NVML if it is open, else nil.
func (p *Plugin) nvml() Hardware {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hardware
}
