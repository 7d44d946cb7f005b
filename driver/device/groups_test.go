// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

func TestGroups(t *testing.T) {
	lost := gpu.Health{State: gpu.Lost, Reason: "fallen off the bus"}
	cases := map[string]struct {
		world world
		want  string
	}{
		"an empty table offers nothing": {world: settledWorld(4)},
		"each open slot is one group": {
			world: settledWorld(4, slot("r1", 1, 0, 1), slot("r1", 0, 1, 2)),
			want: `
muster/gang/train.0
  gang=train memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=false rank=0 reservation=r1 rev=1 size=2
  GPU-1@r1 0000:11:00.0 healthy
  GPU-2@r1 0000:12:00.0 healthy
muster/gang/train.1
  gang=train memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=true rank=1 reservation=r1 rev=1 size=2
  GPU-0@r1 0000:10:00.0 healthy
  GPU-1@r1 0000:11:00.0 healthy`,
		},
		"a single GPU counts as joined, and a group of several has its own value": {
			world: settledWorld(2, func() ledger.Slot {
				s := slot("r1", 0, 1)
				s.Owner.Value = "train/launcher"
				return s
			}()),
			want: `
muster/gang/train.0
  gang=train/launcher memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=true rank=0 reservation=r1 rev=1 size=2
  GPU-1@r1 0000:11:00.0 healthy`,
		},
		"a closing slot is withdrawn at once, claimed or not": {
			world: func() world {
				a, b := closing(slot("r1", 0, 0), "preempted"), closing(slot("r1", 1, 1), "preempted")
				w := settledWorld(4, a, b)
				w.claims = claims(claimOn(a, "driver", "a1"))
				return w
			}(),
		},
		"a slot of another boot or machine is not offered": {
			world: settledWorld(4, func() ledger.Slot {
				s := slot("r1", 0, 0)
				s.BootID = "boot-0"
				return s
			}(), func() ledger.Slot {
				s := slot("r1", 1, 1)
				s.MachineID = "machine-2"
				return s
			}()),
		},
		"a slot waits for its gang's hosts, unless it is claimed": {
			world: func() world {
				a, b := slot("r1", 0, 0), gangNamed(slot("r2", 0, 1), "other")
				w := settledWorld(4, a, b)
				w.gangs = nil
				w.claims = claims(claimOn(b, "driver", "a1"))
				return w
			}(),
			want: `
muster/gang/other.0
  gang=other memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=true rank=0 reservation=r2 rev=1 size=2
  GPU-1@r2 0000:11:00.0 healthy`,
		},
		"with a taken name or a ledger that was set back only claimed slots stay": {
			world: func() world {
				a, b := slot("r1", 0, 0), gangNamed(slot("r2", 0, 1), "other")
				w := settledWorld(4, a, b)
				w.name, w.setBack = takenName, "the ledger was set back"
				w.claims = claims(claimOn(b, "driver", "a1"))
				return w
			}(),
			want: `
muster/gang/other.0
  gang=other memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=true rank=0 reservation=r2 rev=1 size=2
  GPU-1@r2 0000:11:00.0 healthy`,
		},
		"trouble is a state: unhealthy and lost GPUs stay in their group": {
			world: func() world {
				w := settledWorld(4, slot("r1", 0, 0, 1, 7))
				w.health = map[string]gpu.Health{uuid(0): {State: gpu.Unhealthy, Reason: "XID 79"}, uuid(1): lost}
				return w
			}(),
			want: `
muster/gang/train.0
  gang=train memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=false rank=0 reservation=r1 rev=1 size=2
  GPU-0@r1 0000:10:00.0 unhealthy: XID 79
  GPU-1@r1 0000:11:00.0 unhealthy: fallen off the bus
  GPU-7@r1 - unhealthy: NVML does not report it`,
		},
		"of two slots with one name the claimed one stays": {
			world: func() world {
				a, b := slot("r1", 0, 0), slot("r2", 0, 1)
				w := settledWorld(4, a, b)
				w.claims = claims(claimOn(b, "driver", "a1"))
				return w
			}(),
			want: `
muster/gang/train.0
  gang=train memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=true rank=0 reservation=r2 rev=1 size=2
  GPU-1@r2 0000:11:00.0 healthy`,
		},
		"unmanaged GPUs are plain ones, unless they are still in a slot": {
			world: func() world {
				w := settledWorld(4, slot("r1", 0, 2))
				w.machine.GPUs[1].Facts = &gpu.Facts{
					PowerLimitW: 400, BAR1MiB: 131072, CoresClockMHz: 1410, MemoryClockMHz: 1593, PCIeMBps: 31504,
					Display: gpu.Disabled, Persistence: gpu.Enabled,
				}
				w.machine.GPUs[2].Facts = &gpu.Facts{PowerLimitW: 400} // of no interest to a slot
				w.machine.GPUs[3].Model = "NVIDIA T4"
				w.machine.GPUs[3].Facts = &gpu.Facts{PowerLimitW: 70, Persistence: gpu.Disabled}
				w.unmanaged = uuids(1, 2, 3)
				return w
			}(),
			want: `
muster/gang/train.0
  gang=train memory=81920MiB model=NVIDIA A100 muster.node=gpu-1 nvlink=true rank=0 reservation=r1 rev=1 size=2
  GPU-2@r1 0000:12:00.0 healthy
nvidia/gpu/NVIDIA A100
  bar1=131072MiB cores_clock=1410MHz display_state=Disabled driver_version=570.1 memory=81920MiB memory_clock=1593MHz pci_bandwidth=31504MB/s persistence_mode=Enabled power=400W
  GPU-1 0000:11:00.0 healthy
nvidia/gpu/NVIDIA T4
  driver_version=570.1 memory=81920MiB persistence_mode=Disabled power=70W
  GPU-3 0000:13:00.0 healthy`,
		},
		"a group that Nomad would not take is left out, as Nomad would drop the plugin for it": {
			world: func() world {
				w := settledWorld(2)
				w.machine.GPUs[0].Model = ""
				w.unmanaged = uuids(0)
				return w
			}(),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := describeGroups(c.world.groups())
			if got != "" {
				got = "\n" + got
			}
			must.Eq(t, c.want, got)
			must.True(t, sameGroups(c.world.groups(), c.world.groups()))
		})
	}
}

func TestRevisionRisesOnlyWhileUnclaimed(t *testing.T) {
	s := slot("r1", 0, 0, 1)
	w := settledWorld(2, s)
	rev := func() int { return w.revs[s.ID()].Rev }
	set := func(state gpu.HealthState, reason string) {
		w.health = allHealthy(w.machine)
		w.health[uuid(1)] = gpu.Health{State: state, Reason: reason}
		w.settle()
	}
	must.Eq(t, 1, rev())
	set(gpu.Unhealthy, "XID 79")
	must.Eq(t, 2, rev())
	set(gpu.Lost, "fallen off the bus")
	must.Eq(t, 2, rev(), must.Sprint("Nomad sees no difference"))
	set(gpu.Healthy, "")
	must.Eq(t, 3, rev())

	w.claims = claims(claimOn(s, "driver", "a1"))
	set(gpu.Unhealthy, "XID 79")
	must.Eq(t, 3, rev(), must.Sprint("attributes of a slot in use do not change"))
	w.claims = nil
	w.settle()
	must.Eq(t, 4, rev(), must.Sprint("free again, with other health than at the last revision"))
}

func TestSameGroupsComparesValues(t *testing.T) {
	a, b := settledWorld(4, slot("r1", 0, 0, 1)), settledWorld(4, slot("r1", 0, 0, 1))
	must.True(t, sameGroups(a.groups(), b.groups()))
	b.health = map[string]gpu.Health{}
	must.False(t, sameGroups(a.groups(), b.groups()))
}

func BenchmarkGroups(b *testing.B) {
	for _, gpus := range []int{8, 16} {
		b.Run(fmt.Sprintf("%d slots of one GPU", gpus), func(b *testing.B) {
			var slots []ledger.Slot
			for i := range gpus {
				slots = append(slots, slot("0f2c2f0e", i, i))
			}
			w := settledWorld(gpus, slots...)
			last := w.groups()
			b.ReportAllocs()
			for b.Loop() {
				if !sameGroups(w.groups(), last) {
					b.Fatal("nothing has changed")
				}
			}
		})
	}
}
