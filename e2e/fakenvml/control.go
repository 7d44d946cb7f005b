// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fakenvml

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Control changes a machine while the library runs, by writing its control file. It is safe for several goroutines, but
// a control file must have one Control only.
type Control struct {
	file string

	mu       sync.Mutex // protects what follows
	gpus     map[int]GPUState
	xids     []firedXID
	sequence uint64
	init     InitFailure
}

// GPUState is what can change about a GPU.
type GPUState struct {
	Lost               bool
	LostAfterCalls     *int // it answers that many more calls and is lost then; counted afresh by each process and at each change
	MIG                bool
	ECCCorrected       uint64
	ECCUncorrected     uint64
	RemapPending       bool
	RemapFailure       bool
	UtilizationPercent uint32
	MemoryUsedMiB      uint64
	TemperatureC       uint32
	PowerMilliwatt     uint32
	NVLinkRxKiB        uint64
	NVLinkTxKiB        uint64
	LinksDown          []int // NVLink numbers
}

// InitFailure is why NVML does not come up.
type InitFailure string

// The failures; the empty one is none.
const (
	InitWorks           InitFailure = ""
	InitDriverNotLoaded InitFailure = "driver_not_loaded"
	InitVersionMismatch InitFailure = "version_mismatch"
)

type firedXID struct {
	sequence uint64
	gpu      int
	xid      uint64
}

// keptXIDs is how many events the file keeps; a library that has not looked for that long misses the older ones.
const keptXIDs = 64

// NewControl writes a control file in which every GPU is at rest.
func NewControl(file string) (*Control, error) {
	c := &Control{
		file:     file,
		gpus:     map[int]GPUState{},
		sequence: uint64(time.Now().UnixMicro()), // above any number that an earlier Control of this file gave out
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, c.write()
}

// Set changes the state of a GPU.
func (c *Control) Set(gpu int, change func(*GPUState)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, known := c.gpus[gpu]
	if !known {
		state = GPUState{TemperatureC: 35, PowerMilliwatt: 60000}
	}
	change(&state)
	c.gpus[gpu] = state
	return c.write()
}

// Lose makes a GPU fall off the bus.
func (c *Control) Lose(gpu int) error {
	return c.Set(gpu, func(s *GPUState) { s.Lost = true })
}

// Return brings a GPU back as after a reset: it answers again, its error counters are zero.
func (c *Control) Return(gpu int) error {
	return c.Set(gpu, func(s *GPUState) {
		s.Lost, s.LostAfterCalls, s.ECCCorrected, s.ECCUncorrected = false, nil, 0, 0
		s.RemapPending, s.RemapFailure = false, false
	})
}

// FireXID tells an XID event to all who listen.
func (c *Control) FireXID(gpu int, xid uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	c.xids = append(c.xids, firedXID{c.sequence, gpu, xid})
	if len(c.xids) > keptXIDs {
		c.xids = slices.Delete(c.xids, 0, len(c.xids)-keptXIDs)
	}
	return c.write()
}

// FailInit makes nvmlInit fail from now on, or work again.
func (c *Control) FailInit(failure InitFailure) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.init = failure
	return c.write()
}

// write needs mu.
func (c *Control) write() error {
	var b bytes.Buffer
	if c.init != InitWorks {
		fmt.Fprintf(&b, "init %s\n", c.init)
	}
	for _, i := range slices.Sorted(maps.Keys(c.gpus)) {
		c.gpus[i].encode(&b, i)
	}
	for _, x := range c.xids {
		fmt.Fprintf(&b, "xid %d %d %d\n", x.sequence, x.gpu, x.xid)
	}
	return replace(c.file, b.Bytes())
}

func (s GPUState) encode(b *bytes.Buffer, gpu int) {
	put := func(key string, value any) { fmt.Fprintf(b, "gpu %d %s %d\n", gpu, key, value) }
	flag := func(key string, set bool) {
		if set {
			put(key, 1)
		}
	}
	flag("lost", s.Lost)
	if s.LostAfterCalls != nil {
		put("lost_after_calls", *s.LostAfterCalls)
	}
	flag("mig", s.MIG)
	put("ecc_corrected", s.ECCCorrected)
	put("ecc_uncorrected", s.ECCUncorrected)
	flag("remap_pending", s.RemapPending)
	flag("remap_failure", s.RemapFailure)
	put("utilization_percent", s.UtilizationPercent)
	put("memory_used_mib", s.MemoryUsedMiB)
	put("temperature_c", s.TemperatureC)
	put("power_mw", s.PowerMilliwatt)
	put("nvlink_rx_kib", s.NVLinkRxKiB)
	put("nvlink_tx_kib", s.NVLinkTxKiB)
	for _, link := range s.LinksDown {
		put("link_down", link)
	}
}
