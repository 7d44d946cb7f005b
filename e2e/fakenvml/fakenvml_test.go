// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fakenvml_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/shoenig/test/must"
)

// What the library makes of these files is tested with the real go-nvml in driver/gpu/nvml.

func written(t *testing.T, m fakenvml.Machine) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "machine")
	must.NoError(t, m.WriteFile(file))
	text, err := os.ReadFile(file)
	must.NoError(t, err)
	return string(text)
}

func TestMachine_File(t *testing.T) {
	t.Parallel()
	m := fakenvml.Pairs("node1", 2)
	for i := range m.GPUs {
		m.GPUs[i].Links = m.GPUs[i].Links[:1]
	}
	board := " power_w=400 bar1_mib=131072 cores_mhz=1785 memory_mhz=2619 pcie_generation=5 pcie_width=16 display=Disabled persistence=Enabled"
	must.Eq(t, strings.Join([]string{
		"driver 570.158.01",
		"cuda 12080",
		"gpu uuid=" + m.GPUs[0].UUID + " minor=0 pci=0000:10:00.0 numa=0 memory_mib=95830" + board + " model=NVIDIA H100 NVL",
		"gpu uuid=" + m.GPUs[1].UUID + " minor=1 pci=0000:18:00.0 numa=1 memory_mib=95830" + board + " model=NVIDIA H100 NVL",
		"link 0 0 gpu 1 26562 6",
		"link 1 0 gpu 0 26562 6",
		"path 1 0 50",
		"",
	}, "\n"), written(t, m))
	tray := written(t, fakenvml.Tray("n", gpu.Fabric{ClusterUUID: "5f0c8f2e-0000-4000-8000-00000000000a", Clique: 3}))
	must.StrContains(t, tray, " fabric=5f0c8f2e-0000-4000-8000-00000000000a clique=3 power_w=1200 ")
	must.StrContains(t, tray, "link 3 17 switch 0 53125 7\n")
}

func TestMachine_NamesAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range []string{"a", "b", "a/1"} {
		m := fakenvml.PCIe(name, 200)
		buses := map[string]bool{}
		for i, uuid := range m.UUIDs() {
			must.RegexMatch(t, regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`), uuid)
			seen[uuid] = true
			buses[m.GPUs[i].PCIBusID] = true
		}
		must.MapLen(t, 200, buses)
	}
	must.MapLen(t, 600, seen)
	must.Eq(t, fakenvml.HGX8("a").UUIDs(), fakenvml.HGX8("a").UUIDs())
}

func TestReadTopology_Errors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "topology.json")
	_, err := fakenvml.ReadTopology(file, "n")
	must.ErrorIs(t, err, os.ErrNotExist)
	for text, want := range map[string]string{
		`{`:                           "unexpected end",
		`{"matrix": [["X", "SYS"]]}`:  "row 0 of the matrix has 2 words instead of 1",
		`{"matrix": [["what"]]}`:      `"what" is none of the PCIe paths`,
		`{"matrix": [["X"], ["NV"]]}`: "row 0",
	} {
		must.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		_, err := fakenvml.ReadTopology(file, "n")
		must.ErrorContains(t, err, want)
	}
}

func TestControl_File(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "control")
	c, err := fakenvml.NewControl(file)
	must.NoError(t, err)
	read := func() string {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		return string(text)
	}
	must.Eq(t, "", read())
	must.NoError(t, c.Lose(3))
	must.NoError(t, c.Set(1, func(s *fakenvml.GPUState) { s.LinksDown, s.MIG = []int{4}, true }))
	text := read()
	must.StrContains(t, text, "gpu 3 lost 1\n")
	must.StrContains(t, text, "gpu 3 temperature_c 35\n")
	must.StrContains(t, text, "gpu 1 mig 1\n")
	must.StrContains(t, text, "gpu 1 link_down 4\n")
	must.NoError(t, c.Return(3))
	must.StrNotContains(t, read(), "lost")
	for range 100 {
		must.NoError(t, c.FireXID(0, 79))
	}
	must.Eq(t, 64, strings.Count(read(), "xid "))
	must.NoError(t, c.FailInit(fakenvml.InitVersionMismatch))
	must.StrHasPrefix(t, "init version_mismatch\n", read())

	entries, err := os.ReadDir(filepath.Dir(file))
	must.NoError(t, err)
	must.Len(t, 1, entries) // nothing half written is left
}

func TestControl_NoSuchDirectory(t *testing.T) {
	t.Parallel()
	_, err := fakenvml.NewControl(filepath.Join(t.TempDir(), "missing", "control"))
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestBuild(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "lib")
	lib, err := fakenvml.Build(t.Context(), dir)
	must.NoError(t, err)
	must.Eq(t, filepath.Join(dir, fakenvml.LibraryName), lib)
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.Len(t, 1, entries)
}
