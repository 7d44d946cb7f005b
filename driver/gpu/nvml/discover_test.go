// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/shoenig/test/must"
)

// published is what the test expects of a published machine, read apart from fakenvml.
type published struct {
	NVLink *struct {
		GBps float64 `json:"gbyte_s_per_link_per_direction"`
	} `json:"nvlink"`
	Matrix [][]string `json:"matrix"`
	NUMA   []int      `json:"numa"`
}

func TestDiscover_PublishedMachines(t *testing.T) {
	data := os.Getenv("MUSTER_DATA")
	if data == "" {
		data = filepath.Join("..", "..", "..", "..", "shared", "data")
	}
	files, err := filepath.Glob(filepath.Join(data, "topologies", "*.json"))
	must.NoError(t, err)
	if len(files) == 0 {
		t.Skipf("no published machines in %s (set MUSTER_DATA)", data)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			fake, err := fakenvml.ReadTopology(file, "node1")
			must.NoError(t, err)
			machine(t, fake)
			got, health := discover(t, open(t))

			text, err := os.ReadFile(file)
			must.NoError(t, err)
			var want published
			must.NoError(t, json.Unmarshal(text, &want))
			must.Len(t, len(want.Matrix), got.GPUs)
			must.SliceEmpty(t, got.Notes)
			for i := range want.Matrix {
				checkGPU(t, fake.GPUs[i], got.GPUs[i], want.NUMA, health)
				for j, word := range want.Matrix[i] {
					checkLink(t, word, got.Links[i][j], want)
				}
			}
		})
	}
}

func checkGPU(t *testing.T, want fakenvml.GPU, got gpu.GPU, numa []int, health map[string]gpu.Health) {
	t.Helper()
	node := -1
	if numa != nil {
		node = numa[got.Index]
	}
	must.Eq(t, gpu.GPU{
		UUID: want.UUID, Index: got.Index, Minor: want.Minor, Model: want.Model, MemoryMiB: want.MemoryMiB,
		PCIBusID: want.PCIBusID, NUMANode: node, Facts: got.Facts,
	}, got)
	must.NotNil(t, got.Facts)
	must.Eq(t, want.Board.PowerW, got.Facts.PowerLimitW)
	must.Eq(t, gpu.Health{State: gpu.Healthy}, health[got.UUID])
}

func checkLink(t *testing.T, word string, got gpu.Link, want published) {
	t.Helper()
	if word == "X" {
		must.Eq(t, gpu.Link{}, got)
		return
	}
	must.Eq(t, word, got.String())
	must.NotEq(t, gpu.PathUnknown, got.PCIe)
	if want.NVLink != nil {
		must.Eq(t, got.NVLinks*int(math.Round(want.NVLink.GBps*1000)), got.NVLinkMBps)
	}
}

func TestDiscover_OurMachines(t *testing.T) {
	rack := gpu.Fabric{ClusterUUID: "5f0c8f2e-0000-4000-8000-00000000000a", Clique: 3}
	for name, tc := range map[string]struct {
		fake    fakenvml.Machine
		gpus    int
		islands []string
	}{
		"eight GPUs behind NVSwitch": {fakenvml.HGX8("n"), 8, []string{"0-7"}},
		"bridged pairs, one alone":   {fakenvml.Pairs("n", 5), 5, []string{"0-1", "2-3", "4"}},
		"no NVLink, 16 GPUs":         {fakenvml.PCIe("n", 16), 16, nil},
		"no NVLink, 40 GPUs":         {fakenvml.PCIe("n", 40), 40, nil},
		"cube mesh":                  {fakenvml.CubeMesh("n"), 8, []string{"0-3", "4-7"}},
		"tray of a rack":             {fakenvml.Tray("n", rack), 4, []string{"0-3"}},
		"no GPUs":                    {fakenvml.Machine{DriverVersion: "570.158.01"}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			machine(t, tc.fake)
			got, _ := discover(t, open(t))
			must.Len(t, tc.gpus, got.GPUs)
			must.Eq(t, "570.158.01", got.DriverVersion)
			if tc.islands != nil {
				var islands []string
				for _, island := range gpu.NewTopology(got).Islands() {
					islands = append(islands, island.String())
				}
				must.Eq(t, tc.islands, islands)
			}
			for _, g := range got.GPUs {
				must.Eq(t, g.Model == "NVIDIA GB200", g.Fabric != nil)
				if g.Fabric != nil {
					must.Eq(t, rack, *g.Fabric)
				}
			}
		})
	}
}

func TestDiscover_Versions(t *testing.T) {
	machine(t, fakenvml.PCIe("n", 1))
	got, _ := discover(t, open(t))
	must.Eq(t, "12.8", got.CUDAVersion)
	must.Eq(t, "0000:10:00.0", got.GPUs[0].PCIBusID)
}

// What a GPU does not report is no fact, whatever it may be.
func TestDiscover_Facts(t *testing.T) {
	h100 := gpu.Facts{
		PowerLimitW: 700, BAR1MiB: 131072, CoresClockMHz: 1980, MemoryClockMHz: 2619, PCIeMBps: 63008,
		Display: gpu.Disabled, Persistence: gpu.Enabled,
	}
	for name, tc := range map[string]struct {
		change func(*fakenvml.Board)
		want   func(*gpu.Facts) *gpu.Facts
	}{
		"all are told":          {func(*fakenvml.Board) {}, func(f *gpu.Facts) *gpu.Facts { return f }},
		"none is told":          {func(b *fakenvml.Board) { *b = fakenvml.Board{} }, func(*gpu.Facts) *gpu.Facts { return nil }},
		"the power is not told": {func(b *fakenvml.Board) { b.PowerW = 0 }, func(f *gpu.Facts) *gpu.Facts { f.PowerLimitW = 0; return f }},
		"the width is not told": {func(b *fakenvml.Board) { b.PCIeWidth = 0 }, func(f *gpu.Facts) *gpu.Facts { f.PCIeMBps = 0; return f }},
		"a PCIe that we do not know": {
			func(b *fakenvml.Board) { b.PCIeGeneration = 9 }, func(f *gpu.Facts) *gpu.Facts { f.PCIeMBps = 0; return f },
		},
		"an older machine, with a screen": {
			func(b *fakenvml.Board) {
				b.PCIeGeneration, b.PCIeWidth, b.Display, b.Persistence = 3, 8, gpu.Enabled, gpu.Disabled
			},
			func(f *gpu.Facts) *gpu.Facts {
				f.PCIeMBps, f.Display, f.Persistence = 7880, gpu.Enabled, gpu.Disabled
				return f
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake := fakenvml.HGX8("n")
			tc.change(&fake.GPUs[2].Board)
			control := machine(t, fake)
			must.NoError(t, control.Set(2, func(s *fakenvml.GPUState) { s.PowerMilliwatt = 350500 })) // a reading, no fact
			m, _ := discover(t, open(t))
			want := h100
			must.Eq(t, tc.want(&want), m.GPUs[2].Facts)
			must.Eq(t, &h100, m.GPUs[3].Facts)
		})
	}
}

// The two ends of a pair may disagree; then what both have counts.
func TestDiscover_AsymmetricReports(t *testing.T) {
	fake := fakenvml.Pairs("n", 4)
	fake.GPUs[0].Links = fake.GPUs[0].Links[:5] // of 12
	fake.GPUs[3].Links = nil                    // of 12
	machine(t, fake)
	got, _ := discover(t, open(t))
	must.Eq(t, 5, got.Links[0][1].NVLinks)
	must.Eq(t, got.Links[0][1], got.Links[1][0])
	must.Eq(t, 5*26562, got.Links[0][1].NVLinkMBps)
	must.Eq(t, "NODE", got.Links[2][3].String())
	must.Eq(t, []string{
		"GPU 1 reports 12 NVLinks to GPU 0, which reports 5; the smaller number counts",
		"GPU 3 reports 0 NVLinks to GPU 2, which reports 12; the smaller number counts",
	}, got.Notes)
}

func TestDiscover_NVSwitchLinkDown(t *testing.T) {
	control := machine(t, fakenvml.HGX8("n"))
	must.NoError(t, control.Set(2, func(s *fakenvml.GPUState) { s.LinksDown = []int{4, 17} }))
	got, _ := discover(t, open(t))
	must.Eq(t, 16, got.Links[2][7].NVLinks)
	must.Eq(t, 16, got.Links[7][2].NVLinks)
	must.Eq(t, 18, got.Links[6][7].NVLinks)
	must.Eq(t, []string{"GPU 2 has 16 NVLinks to NVSwitch, others have 18; the smaller number counts"}, got.Notes)
}

// However far the questions have come when a GPU is lost: the others are discovered, and nothing fails.
func TestDiscover_LostInTheMiddle(t *testing.T) {
	control := machine(t, fakenvml.Pairs("n", 4))
	lib := open(t)
	whole, _ := discover(t, lib)
	const moreThanAllCalls = 400
	lostWhole := false
	for calls := 0; calls < moreThanAllCalls && !lostWhole; calls++ {
		must.NoError(t, control.Set(1, func(s *fakenvml.GPUState) { s.LostAfterCalls = &calls }))
		fresh, err := nvml.Open(libPath)
		must.NoError(t, err)
		got, health, err := fresh.Discover()
		must.NoError(t, err, must.Sprintf("lost after %d calls", calls))
		must.Eq(t, whole.Links[2][3], got.Links[len(got.GPUs)-2][len(got.GPUs)-1])
		if len(got.GPUs) == 3 {
			must.Eq(t, []string{"GPU 1 was lost before its UUID was known"}, got.Notes)
		}
		must.MapLen(t, len(got.GPUs), health)
		lostWhole = len(got.GPUs) == 4 && got.Links[1][3] == whole.Links[1][3]
		must.NoError(t, fresh.Shutdown())
	}
	must.True(t, lostWhole, must.Sprint("every question was answered in the end"))
}

// A GPU that was known stays in the inventory as it was, so that the inventory does not change with its health.
func TestDiscover_LostAndBack(t *testing.T) {
	control := machine(t, fakenvml.HGX8("n"))
	lib := open(t)
	before, _ := discover(t, lib)
	uuid := before.GPUs[3].UUID

	must.NoError(t, control.Lose(3))
	lost, health := discover(t, lib)
	must.Eq(t, before, lost)
	must.Eq(t, gpu.Lost, health[uuid].State)
	must.StrContains(t, health[uuid].Reason, "reset it or reboot")
	must.Eq(t, gpu.Healthy, health[before.GPUs[4].UUID].State)

	_, err := lib.Processes(uuid)
	must.ErrorIs(t, err, nvml.ErrGPULost)
	stats := lib.Stats()
	must.Eq(t, gpu.Stats{UUID: uuid}, stats[3])
	must.NotNil(t, stats[4].TemperatureC)

	must.NoError(t, control.Return(3))
	back, health := discover(t, lib)
	must.Eq(t, before, back)
	must.Eq(t, gpu.Healthy, health[uuid].State)
}

func TestDiscover_Health(t *testing.T) {
	fake := fakenvml.HGX8("n")
	control := machine(t, fake)
	lib := open(t)
	for name, tc := range map[string]struct {
		change func(*fakenvml.GPUState)
		reason string
	}{
		"corrected errors are harmless": {func(s *fakenvml.GPUState) { s.ECCCorrected = 9 }, ""},
		"uncorrectable errors":          {func(s *fakenvml.GPUState) { s.ECCUncorrected = 2 }, "2 uncorrectable memory errors"},
		"row remap pending":             {func(s *fakenvml.GPUState) { s.RemapPending = true }, "waits to be replaced; reset the GPU"},
		"row remap failed":              {func(s *fakenvml.GPUState) { s.RemapFailure = true }, "needs service"},
		"two at once": {func(s *fakenvml.GPUState) { s.RemapFailure, s.ECCUncorrected = true, 1 },
			"service; 1 uncorrectable"},
	} {
		t.Run(name, func(t *testing.T) {
			must.NoError(t, control.Set(5, tc.change))
			_, health := discover(t, lib)
			got := health[fake.GPUs[5].UUID]
			must.StrContains(t, got.Reason, tc.reason)
			must.Eq(t, tc.reason == "", got.State == gpu.Healthy)
			must.NoError(t, control.Return(5))
			_, health = discover(t, lib)
			must.Eq(t, gpu.Health{State: gpu.Healthy}, health[fake.GPUs[5].UUID])
		})
	}
}

func TestDiscover_MIG(t *testing.T) {
	control := machine(t, fakenvml.HGX8("n"))
	must.NoError(t, control.Set(1, func(s *fakenvml.GPUState) { s.MIG = true }))
	m, health := discover(t, open(t))
	must.True(t, m.GPUs[1].MIG)
	must.False(t, m.GPUs[0].MIG)
	must.Eq(t, "0,2-7", m.Free(health, nil, nil).String())
}

// fabricManager edits the machine file's fabric words, which Machine has no need for.
func fabricManager(t *testing.T, words string) {
	t.Helper()
	file := os.Getenv("FAKENVML_MACHINE")
	text, err := os.ReadFile(file)
	must.NoError(t, err)
	edited := strings.ReplaceAll(string(text), " model=", " "+words+" model=")
	must.NoError(t, os.WriteFile(file, []byte(edited), 0o644))
}

func TestDiscover_FabricTrouble(t *testing.T) {
	for name, tc := range map[string]struct{ words, reason string }{
		"not joined yet":      {"fabric_state=2", "nvidia-fabricmanager runs"},
		"joined with failure": {"fabric_status=999", "status 999"},
		"of this machine only": {
			"fabric=00000000-0000-0000-0000-000000000000", "",
		},
		"not started": {"fabric_state=1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			machine(t, fakenvml.Tray("n", gpu.Fabric{ClusterUUID: "5f0c8f2e-0000-4000-8000-00000000000a", Clique: 1}))
			fabricManager(t, tc.words)
			m, health := discover(t, open(t))
			must.Nil(t, m.GPUs[0].Fabric)
			got := health[m.GPUs[0].UUID]
			must.StrContains(t, got.Reason, tc.reason)
			must.Eq(t, tc.reason == "", got.State == gpu.Healthy)
		})
	}
}

// A driver that does not tell the rate of its NVLinks still tells their version.
func TestDiscover_RateNotTold(t *testing.T) {
	for version, want := range map[int]int{1: 20000, 2: 25000, 4: 25000} {
		fake := fakenvml.Pairs("n", 2)
		for i := range fake.GPUs {
			for n := range fake.GPUs[i].Links {
				fake.GPUs[i].Links[n].MBps, fake.GPUs[i].Links[n].Version = 0, version
			}
		}
		machine(t, fake)
		lib, err := nvml.Open(libPath)
		must.NoError(t, err)
		m, _ := discover(t, lib)
		must.Eq(t, 12*want, m.Links[0][1].NVLinkMBps)
		must.NoError(t, lib.Shutdown())
	}
}
