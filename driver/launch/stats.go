// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"os"

	"github.com/nomad-muster/muster/driver/launch/proc"
)

// Stats is what a task uses. Counters run from its start.
type Stats struct {
	TotalNS        uint64 `json:"total_ns"` // CPU time; finer than its two parts
	UserNS         uint64 `json:"user_ns"`  // without a cgroup all of it counts as user time
	SystemNS       uint64 `json:"system_ns"`
	ThrottledNS    uint64 `json:"throttled_ns"`
	ThrottledCount uint64 `json:"throttled_count"`
	MemoryBytes    uint64 `json:"memory_bytes"` // charged to the cgroup, page cache included
	MemoryMaxBytes uint64 `json:"memory_max_bytes"`
	ResidentBytes  uint64 `json:"resident_bytes"`
	CacheBytes     uint64 `json:"cache_bytes"`
	SwapBytes      uint64 `json:"swap_bytes"`
	Cgroup         bool   `json:"cgroup"` // counted by the cgroup, else summed over the processes that live
	Processes      int    `json:"processes"`
}

func (g *group) stats() (Stats, error) {
	s, err := g.manager.GetStats()
	if s == nil {
		return Stats{}, err
	}
	// An error beside values is about a controller that this machine lacks.
	memory, detail := s.MemoryStats, s.MemoryStats.Stats
	return Stats{
		TotalNS:        s.CpuStats.CpuUsage.TotalUsage,
		UserNS:         s.CpuStats.CpuUsage.UsageInUsermode,
		SystemNS:       s.CpuStats.CpuUsage.UsageInKernelmode,
		ThrottledNS:    s.CpuStats.ThrottlingData.ThrottledTime,
		ThrottledCount: s.CpuStats.ThrottlingData.ThrottledPeriods,
		MemoryBytes:    memory.Usage.Usage,
		MemoryMaxBytes: memory.Usage.MaxUsage,
		ResidentBytes:  detail["rss"] + detail["anon"], // version 1, version 2
		CacheBytes:     detail["cache"] + detail["file"],
		SwapBytes:      detail["swap"],
		Cgroup:         true,
	}, nil
}

// clockTicks is USER_HZ, which is 100 on every Linux that Go runs on.
const clockTicks = 100

func sumStats(processes []proc.Process) Stats {
	s := Stats{Processes: len(processes)}
	for _, p := range processes {
		s.UserNS += p.CPUTicks * (1e9 / clockTicks)
		s.ResidentBytes += p.RSSPages * uint64(os.Getpagesize())
	}
	s.TotalNS, s.MemoryBytes = s.UserNS, s.ResidentBytes
	return s
}
