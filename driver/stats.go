// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"time"

	hoststats "github.com/hashicorp/nomad/client/stats"
	cstructs "github.com/hashicorp/nomad/client/structs"
	cpustats "github.com/hashicorp/nomad/helper/stats"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-muster/muster/driver/launch"
)

// TaskStats implements drivers.DriverPlugin: CPU and memory. GPUs are not in it, as Nomad's protocol between driver and
// client has no place for them: `nomad alloc status -stats` shows what the device plugin says of the task's devices.
func (p *Plugin) TaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *cstructs.TaskResourceUsage, error) {
	t, err := p.find(taskID)
	if err != nil {
		return nil, err
	}
	// Known to Nomad's conversion of CPU time to MHz from here on; without it the figures in MHz are 0.
	if err := hoststats.Init(0); err != nil {
		p.logger.Debug("the speed of the CPUs is not known", "error", err)
	}
	out := make(chan *cstructs.TaskResourceUsage)
	go t.sample(ctx, interval, out)
	return out, nil
}

// sample delivers one measurement per interval until the task ends.
func (t *task) sample(ctx context.Context, interval time.Duration, out chan<- *cstructs.TaskResourceUsage) {
	defer close(out)
	meter := newMeter()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.done:
			return
		case <-timer.C:
			timer.Reset(interval)
		}
		stats := launch.Stats{Cgroup: true} // of a task that waits for its gang: nothing is used
		if process, err := t.running(); err == nil {
			if stats, err = process.Stats(ctx); err != nil {
				continue
			}
		}
		select {
		case out <- meter.usage(stats, time.Now()):
		case <-ctx.Done():
			return
		case <-t.done:
			return
		}
	}
}

// meter turns counters of CPU time into percentages of one core between two samples.
type meter struct{ user, system, total *cpustats.CpuStats }

func newMeter() meter {
	return meter{user: cpustats.NewCpuStats(), system: cpustats.NewCpuStats(), total: cpustats.NewCpuStats()}
}

func (m meter) usage(s launch.Stats, now time.Time) *cstructs.TaskResourceUsage {
	percent := m.total.Percent(float64(s.TotalNS))
	cpu := &drivers.CpuStats{
		UserMode: m.user.Percent(float64(s.UserNS)), SystemMode: m.system.Percent(float64(s.SystemNS)),
		Percent: percent, TotalTicks: m.total.TicksConsumed(percent),
		ThrottledPeriods: s.ThrottledCount, ThrottledTime: s.ThrottledNS,
		Measured: []string{"System Mode", "User Mode", "Percent", "Throttled Periods", "Throttled Time"},
	}
	memory := &drivers.MemoryStats{
		RSS: s.ResidentBytes, Cache: s.CacheBytes, Swap: s.SwapBytes, Usage: s.MemoryBytes, MaxUsage: s.MemoryMaxBytes,
		Measured: []string{"RSS", "Cache", "Swap", "Usage", "Max Usage"},
	}
	if !s.Cgroup {
		cpu.Measured, memory.Measured = []string{"Percent"}, []string{"RSS", "Usage"}
	}
	return &cstructs.TaskResourceUsage{
		ResourceUsage: &cstructs.ResourceUsage{CpuStats: cpu, MemoryStats: memory}, Timestamp: now.UnixNano(),
	}
}
