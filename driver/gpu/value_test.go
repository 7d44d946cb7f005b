// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestSet_Text(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]gpu.Set{
		"":         0,
		"0":        gpu.SetOf(0),
		"0-3,6":    gpu.SetOf(0, 1, 2, 3, 6),
		"1,3,5":    gpu.SetOf(1, 3, 5),
		"0-63":     ^gpu.Set(0),
		"62-63":    gpu.SetOf(62, 63),
		"0-1,3-15": gpu.FirstN(16).Remove(2),
	} {
		got, err := gpu.ParseSet(text)
		must.NoError(t, err)
		must.Eq(t, want, got)
		must.Eq(t, text, got.String())
	}
	for _, text := range []string{"a", "-", "1-", "3-1", "64", "0,,1", "+1", " 1", "0-1-2", "300", "-1"} {
		_, err := gpu.ParseSet(text)
		must.ErrorIs(t, err, gpu.ErrNotASet, must.Sprint(text))
	}
}

func TestSet_Operations(t *testing.T) {
	t.Parallel()
	s := gpu.SetOf(5, 1, 1, 63, -1, 64)
	must.Eq(t, []int{1, 5, 63}, s.Indexes())
	must.Eq(t, 3, s.Len())
	must.True(t, s.Has(63))
	must.False(t, s.Has(64))
	must.False(t, s.Has(-1))
	must.True(t, s.Contains(gpu.SetOf(1, 63)))
	must.False(t, s.Contains(gpu.SetOf(1, 2)))
	must.Eq(t, []int{1, 5}, slices.Collect(s.Remove(63).All()))
	for i := range s.All() {
		must.Eq(t, 1, i)
		break
	}
	must.Eq(t, 0, gpu.FirstN(-1).Len())
	must.Eq(t, 64, gpu.FirstN(70).Len())
}

func FuzzParseSet(f *testing.F) {
	f.Add("0-3,6")
	f.Add("63-0,64")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := gpu.ParseSet(text)
		if err != nil {
			return
		}
		again, err := gpu.ParseSet(s.String())
		must.NoError(t, err)
		must.Eq(t, s, again)
	})
}

func TestMachine_UUIDs(t *testing.T) {
	t.Parallel()
	m := pairs(t)
	s, err := m.SetOf([]string{"GPU-3", "GPU-1"})
	must.NoError(t, err)
	must.Eq(t, gpu.SetOf(1, 3), s)
	must.Eq(t, []string{"GPU-1", "GPU-3"}, m.UUIDs(s.Add(9)))
	_, err = m.SetOf([]string{"GPU-1", "GPU-9"})
	must.ErrorIs(t, err, gpu.ErrUnknownGPU)
	must.ErrorContains(t, err, "GPU-9")
}

func TestMachine_Free(t *testing.T) {
	t.Parallel()
	m := dgx1(t)
	m.GPUs[6].MIG = true
	health := map[string]gpu.Health{}
	for _, g := range m.GPUs[:7] { // nobody vouches for GPU 7
		health[g.UUID] = gpu.Health{State: gpu.Healthy}
	}
	health["GPU-0"] = gpu.Health{State: gpu.Unhealthy, Reason: "XID 48"}
	health["GPU-1"] = gpu.Health{State: gpu.Lost, Reason: "fallen off the bus"}
	free := m.Free(health, []string{"GPU-2"}, []string{"GPU-4", "GPU-of-another-machine"})
	must.Eq(t, "3,5", free.String())
	must.Eq(t, gpu.Set(0), m.Free(nil, nil, nil))
}

func TestMachine_JSON(t *testing.T) {
	t.Parallel()
	m := pairs(t)
	m.Links[0][1].PCIe, m.Links[1][0].PCIe = gpu.PathNODE, gpu.PathNODE
	m.GPUs[0].Fabric = &gpu.Fabric{ClusterUUID: "c", Clique: 7}
	text, err := json.Marshal(m)
	must.NoError(t, err)
	must.StrContains(t, string(text), `"links":[["-","NV12@318744/NODE","NODE","NODE"]`)
	var again gpu.Machine
	must.NoError(t, json.Unmarshal(text, &again))
	must.Eq(t, m, again)
}

func TestLink_Text(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := gpu.Link{PCIe: gpu.Path(rapid.Uint8Max(uint8(gpu.PathSYS)).Draw(t, "path"))}
		if rapid.Bool().Draw(t, "nvlink") {
			l.NVLinks = rapid.IntRange(1, 36).Draw(t, "links")
			l.NVLinkMBps = rapid.IntRange(0, 2_000_000).Draw(t, "rate")
		}
		text, err := l.MarshalText()
		must.NoError(t, err)
		var again gpu.Link
		must.NoError(t, again.UnmarshalText(text))
		must.Eq(t, l, again)
	})
}

func FuzzLink(f *testing.F) {
	for _, text := range []string{"NV18@478125/NODE", "SYS", "-", "SOC", "NV/PIX", "NV0@1/PIX", "NV2@-1/PIX", "18@1/PIX", "NV2@1/XYZ", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var l gpu.Link
		if err := l.UnmarshalText([]byte(text)); err != nil {
			must.ErrorIs(t, err, gpu.ErrNotALink)
			return
		}
		again, err := l.MarshalText()
		must.NoError(t, err)
		var second gpu.Link
		must.NoError(t, second.UnmarshalText(again))
		must.Eq(t, l, second)
	})
}

func TestLink_StrengthOrder(t *testing.T) {
	t.Parallel()
	weakestFirst := []gpu.Link{
		{}, {PCIe: gpu.PathSYS}, {PCIe: gpu.PathNODE}, {PCIe: gpu.PathPHB}, {PCIe: gpu.PathPXB}, {PCIe: gpu.PathPIX},
		{NVLinks: 1}, {NVLinks: 1, NVLinkMBps: 20000, PCIe: gpu.PathSYS}, {NVLinks: 4, NVLinkMBps: 56248}, {NVLinks: 3, NVLinkMBps: 75000},
	}
	for i := 1; i < len(weakestFirst); i++ {
		must.Less(t, weakestFirst[i].Strength(), weakestFirst[i-1].Strength())
	}
}

// Reports that differ by direction and matrices that are too small must not lift a link.
func TestTopology_ToleratesBadMatrices(t *testing.T) {
	t.Parallel()
	m := pairs(t)
	m.Links[1][0] = gpu.Link{NVLinks: 6, NVLinkMBps: 150000}
	m.Links[3] = m.Links[3][:2]
	top := gpu.NewTopology(m)
	must.Eq(t, 6, top.Link(0, 1).NVLinks)
	must.Eq(t, gpu.Link{}, top.Link(2, 3))
	must.Eq(t, gpu.Link{}, top.Link(7, 9))

	m.Links = nil
	c, ok := gpu.NewTopology(m).Choose(4, m.All())
	must.True(t, ok)
	must.Eq(t, m.All(), c.GPUs)
	must.False(t, c.OneIsland)
}

func TestRender(t *testing.T) {
	t.Parallel()
	full := pairs(t)
	full.DriverVersion, full.CUDAVersion = "570.158.01", "12.8"
	full.GPUs[3].MIG, full.GPUs[3].NUMANode, full.GPUs[2].PCIBusID = true, -1, ""
	full.Links[0][2], full.Links[2][0] = gpu.Link{}, gpu.Link{}
	full.Notes = []string{"GPU 1 reports 12 NVLinks to GPU 0, which reports 5; the smaller number counts"}
	rack := matrix(t, "NVIDIA GB200", 53125, []int{0, 1}, "X NV18", "NV18 X")
	for i := range rack.GPUs {
		rack.GPUs[i].Fabric = &gpu.Fabric{ClusterUUID: "5f0c8f2e-0000-4000-8000-000000000001", Clique: 3}
	}
	machines := map[string]gpu.Machine{
		"pairs": full, "dgx1": dgx1(t), "sockets": sockets(t), "rack": rack, "none": {},
		"one": {GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "NVIDIA L4", MemoryMiB: 23034, NUMANode: -1}}},
	}
	datadriven.RunTest(t, "testdata/render", func(t *testing.T, d *datadriven.TestData) string {
		var name string
		d.ScanArgs(t, "machine", &name)
		m := machines[name]
		if d.Cmd == "render" {
			return gpu.Render(m)
		}
		var k int
		d.ScanArgs(t, "k", &k)
		c, ok := gpu.NewTopology(m).Choose(k, m.All())
		if !ok {
			return "impossible\n"
		}
		return c.String() + "\n"
	})
}

func TestXIDMeaning(t *testing.T) {
	t.Parallel()
	for _, xid := range []uint64{48, 62, 64, 74, 79, 94, 95, 119, 120} {
		meaning, unfit := gpu.XIDMeaning(xid)
		must.True(t, unfit, must.Sprint(xid))
		must.NotEq(t, "", meaning)
	}
	for _, xid := range []uint64{0, 13, 31, 32, 43, 45, 63, 68, 154, 999} {
		meaning, unfit := gpu.XIDMeaning(xid)
		must.False(t, unfit, must.Sprint(xid))
		must.Eq(t, "", meaning)
	}
}
