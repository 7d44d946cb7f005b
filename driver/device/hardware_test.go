// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
)

func TestTakeMachine(t *testing.T) {
	four, three := pairsMachine(4), pairsMachine(3)
	cases := map[string]struct {
		known, found gpu.Machine
		want         int // GPUs afterwards
		lost         []string
	}{
		"at first":                     {found: four, want: 4},
		"nothing new":                  {known: four, found: four, want: 4},
		"a GPU is not listed any more": {known: four, found: three, want: 4, lost: uuids(3)},
		"no GPU is listed any more":    {known: four, found: gpu.Machine{}, want: 4, lost: uuids(0, 1, 2, 3)},
		"another GPU came":             {known: three, found: four, want: 4},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := world{machine: c.known}
			w.takeMachine(c.found, allHealthy(c.found))
			must.Len(t, c.want, w.machine.GPUs)
			var lost []string
			for _, g := range w.machine.GPUs {
				if w.healthOf(g.UUID).State == gpu.Lost {
					lost = append(lost, g.UUID)
				}
			}
			must.Eq(t, c.lost, lost)
		})
	}
}

func TestResolveGPUs(t *testing.T) {
	m := pairsMachine(4)
	found, unknown := resolveGPUs(m, []string{"3", "gpu-1", "GPU-9", "12"})
	must.Eq(t, uuids(1, 3), found)
	must.Eq(t, []string{"GPU-9", "12"}, unknown)
}

func TestStatsGroups(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s, c := slot("r1", 0, 0), closing(slot("r1", 1, 1), "stopped")
	w := settledWorld(4, s, c)
	w.unmanaged = uuids(2)

	var percent, temperature uint32 = 97, 61
	var used, total, corrected, uncorrected uint64 = 1024, 81920, 3, 0
	power := 412.5
	kib := func(v uint64) *uint64 { return &v }
	reading := gpu.Stats{
		UUID: uuid(0), UtilizationPercent: &percent, TemperatureC: &temperature, MemoryUsedMiB: &used, MemoryTotalMiB: &total,
		PowerW: &power, ECCCorrected: &corrected, ECCUncorrected: &uncorrected, XIDCount: 2, LastXID: 79,
	}
	var sampled sampler
	reading.NVLinkRxKiB, reading.NVLinkTxKiB = kib(0), kib(4096)
	sampled.put([]gpu.Stats{reading}, now)
	reading.NVLinkRxKiB, reading.NVLinkTxKiB = kib(2048), kib(0)
	sampled.put([]gpu.Stats{reading}, now.Add(2*time.Second))

	groups := w.statsGroups(sampled.get(), now)
	must.Len(t, 3, groups)
	must.Eq(t, "train.0", groups[0].Name)
	got := groups[0].InstanceStats["GPU-0@r1"]
	must.Eq(t, now.Add(2*time.Second), got.Timestamp)
	must.Eq(t, 1024, *got.Summary.IntNumeratorVal)
	must.Eq(t, 81920, *got.Summary.IntDenominatorVal)
	values := got.Stats.Attributes
	must.Eq(t, 97, *values["GPU utilization"].IntNumeratorVal)
	must.Eq(t, 61, *values["Temperature"].IntNumeratorVal)
	must.Eq(t, 412.5, *values["Power usage"].FloatNumeratorVal)
	must.Eq(t, 1.0, *values["NVLink received"].FloatNumeratorVal)
	must.Eq(t, "N/A", *values["NVLink sent"].StringVal, must.Sprint("the counter started anew"))
	must.Eq(t, 3, *values["ECC errors corrected"].IntNumeratorVal)
	must.Eq(t, 2, *values["XID events"].IntNumeratorVal)
	must.Eq(t, 79, *values["Last XID"].IntNumeratorVal)

	must.NotNil(t, groups[1].InstanceStats["GPU-1@r1"], must.Sprint("a closing slot's allocation still shows its GPUs"))
	must.Eq(t, "nvidia", groups[2].Vendor)
	must.Eq(t, "N/A", *groups[2].InstanceStats["GPU-2"].Summary.StringVal)
	must.NotNil(t, groups[2].InstanceStats["GPU-2"].Stats, must.Sprint("Nomad's command line takes it for granted"))
}

func TestSamplerNeverWaits(t *testing.T) {
	var s sampler
	hang, asked := make(chan struct{}), make(chan struct{}, 2)
	ask := func() []gpu.Stats {
		asked <- struct{}{}
		<-hang
		return []gpu.Stats{{UUID: uuid(0)}}
	}
	s.refresh(ask)
	<-asked
	s.refresh(ask)
	must.MapEmpty(t, s.get())
	close(hang)
	eventually(t, "the answer arrives", func() bool { return len(s.get()) == 1 })
	must.Eq(t, 0, len(asked), must.Sprint("one question at a time"))
}
