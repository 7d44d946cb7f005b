// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// sample is what one GPU said at one moment, with the rates since the sample before.
type sample struct {
	at     time.Time
	stats  gpu.Stats
	rxMiBs *float64 // NVLink, MiB/s; nil: not known
	txMiBs *float64
}

// sampler asks NVML in the background, so that a GPU that hangs delays nobody.
type sampler struct {
	mu     sync.Mutex
	latest map[string]sample // by UUID
	busy   bool
}

// refresh asks the GPUs, unless an earlier refresh has no answer yet. It returns at once.
func (s *sampler) refresh(ask func() []gpu.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return
	}
	s.busy = true
	go func() {
		stats := ask()
		s.put(stats, time.Now())
	}()
}

func (s *sampler) put(all []gpu.Stats, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	latest := make(map[string]sample, len(all))
	for _, stats := range all {
		next := sample{at: now, stats: stats}
		if before, known := s.latest[stats.UUID]; known {
			elapsed := now.Sub(before.at).Seconds()
			next.rxMiBs = mibPerSecond(before.stats.NVLinkRxKiB, stats.NVLinkRxKiB, elapsed)
			next.txMiBs = mibPerSecond(before.stats.NVLinkTxKiB, stats.NVLinkTxKiB, elapsed)
		}
		latest[stats.UUID] = next
	}
	s.latest = latest
}

// mibPerSecond is the rate between two readings of a counter in KiB; nil if there is none, as after a counter's restart.
func mibPerSecond(before, after *uint64, seconds float64) *float64 {
	if before == nil || after == nil || *after < *before || seconds <= 0 {
		return nil
	}
	rate := float64(*after-*before) / 1024 / seconds
	return &rate
}

func (s *sampler) get() map[string]sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest // replaced, never changed
}

// streamStats sends the statistics of all groups at every interval until ctx ends. What it sends was sampled before.
func (e *engine) streamStats(ctx context.Context, out chan<- *device.StatsResponse, interval time.Duration) {
	var s sampler
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		w, _ := e.world.get()
		select {
		case <-ctx.Done():
			return
		case out <- &device.StatsResponse{Groups: w.statsGroups(s.get(), time.Now())}:
		}
		s.refresh(e.stats)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// stats asks NVML, which may be closed.
func (e *engine) stats() (all []gpu.Stats) {
	err := e.gpus.use(func(hw Hardware) error {
		all = hw.Stats()
		return nil
	})
	if err != nil {
		e.log.Trace("no statistics", "error", err)
	}
	return all
}

// statsGroups are the statistics of every slot, closing ones included, and of the unmanaged GPUs. Each instance that is
// offered has an entry, as Nomad's command line takes that for granted.
func (w *world) statsGroups(samples map[string]sample, now time.Time) []*device.DeviceGroupStats {
	all := []*device.DeviceGroupStats{} // nil would leave Nomad with the last ones
	named := map[string]bool{}
	for _, s := range w.slotsInOrder() {
		if named[slotName(s)] {
			continue
		}
		named[slotName(s)] = true
		group := &device.DeviceGroupStats{Vendor: slotVendor, Type: slotType, Name: slotName(s), InstanceStats: map[string]*device.DeviceStats{}}
		for _, uuid := range s.GPUs {
			group.InstanceStats[ledger.InstanceID(uuid, s.Reservation)] = samples[uuid].deviceStats(now)
		}
		all = append(all, group)
	}
	for _, plain := range w.plainGroups() {
		group := &device.DeviceGroupStats{Vendor: plain.Vendor, Type: plain.Type, Name: plain.Name, InstanceStats: map[string]*device.DeviceStats{}}
		for _, d := range plain.Devices {
			group.InstanceStats[d.ID] = samples[d.ID].deviceStats(now)
		}
		all = append(all, group)
	}
	return all
}

// deviceStats puts a sample into Nomad's form. The zero sample says of everything that it is not available.
func (s sample) deviceStats(now time.Time) *device.DeviceStats {
	at := s.at
	if at.IsZero() {
		at = now
	}
	memory := fraction(s.stats.MemoryUsedMiB, s.stats.MemoryTotalMiB, "MiB", "memory in use / memory of the GPU")
	xids := s.stats.XIDCount
	values := map[string]*structs.StatValue{
		"GPU utilization":          integer(widen(s.stats.UtilizationPercent), "%", "share of the last sample period in which a kernel ran"),
		"Memory state":             memory,
		"Temperature":              integer(widen(s.stats.TemperatureC), "C", "temperature of the GPU"),
		"Power usage":              decimal(s.stats.PowerW, "W", "power drawn by the GPU and its memory"),
		"NVLink received":          decimal(s.rxMiBs, "MiB/s", "data received over all NVLinks"),
		"NVLink sent":              decimal(s.txMiBs, "MiB/s", "data sent over all NVLinks"),
		"ECC errors corrected":     integer(s.stats.ECCCorrected, "#", "corrected memory errors since the driver was loaded"),
		"ECC errors not corrected": integer(s.stats.ECCUncorrected, "#", "uncorrected memory errors since the driver was loaded"),
		"XID events":               integer(&xids, "#", "errors reported by the driver since the plugin started"),
	}
	if s.stats.LastXID != 0 {
		values["Last XID"] = integer(&s.stats.LastXID, "", "number of the last of these errors")
	}
	return &device.DeviceStats{Summary: memory, Stats: &structs.StatObject{Attributes: values}, Timestamp: at}
}

func widen(v *uint32) *uint64 {
	if v == nil {
		return nil
	}
	wide := uint64(*v)
	return &wide
}

// notAvailable is shown where a GPU or its driver does not report a value.
func notAvailable(unit, description string) *structs.StatValue {
	text := "N/A"
	return &structs.StatValue{StringVal: &text, Unit: unit, Desc: description}
}

func integer(v *uint64, unit, description string) *structs.StatValue {
	if v == nil {
		return notAvailable(unit, description)
	}
	n := int64(*v) //nolint:gosec // G115: counters stay far below 2^63
	return &structs.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: description}
}

func decimal(v *float64, unit, description string) *structs.StatValue {
	if v == nil {
		return notAvailable(unit, description)
	}
	return &structs.StatValue{FloatNumeratorVal: v, Unit: unit, Desc: description}
}

func fraction(part, whole *uint64, unit, description string) *structs.StatValue {
	value := integer(part, unit, description)
	if of := integer(whole, unit, description); part != nil && whole != nil {
		value.IntDenominatorVal = of.IntNumeratorVal
	}
	return value
}
