// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/shoenig/test/must"
)

func TestOpen_Errors(t *testing.T) {
	control := machine(t, fakenvml.PCIe("n", 1))

	_, err := nvml.Open(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
	must.ErrorIs(t, err, nvml.ErrLibraryMissing)
	must.ErrorContains(t, err, "No such file")

	_, err = nvml.Open("libm.so.6")
	must.ErrorIs(t, err, nvml.ErrLibraryMissing)
	must.ErrorContains(t, err, "is not NVML")

	must.NoError(t, control.FailInit(fakenvml.InitDriverNotLoaded))
	_, err = nvml.Open(libPath)
	must.ErrorIs(t, err, nvml.ErrDriverNotLoaded)
	must.ErrorContains(t, err, "modprobe nvidia")

	must.NoError(t, control.FailInit(fakenvml.InitVersionMismatch))
	_, err = nvml.Open(libPath)
	must.ErrorIs(t, err, nvml.ErrVersionMismatch)

	// And then the driver comes.
	must.NoError(t, control.FailInit(fakenvml.InitWorks))
	m, _ := discover(t, open(t))
	must.Len(t, 1, m.GPUs)
}

func TestShutdown_TwiceIsAnError(t *testing.T) {
	machine(t, fakenvml.PCIe("n", 1))
	lib, err := nvml.Open(libPath)
	must.NoError(t, err)
	must.NoError(t, lib.Shutdown())
	must.Error(t, lib.Shutdown())
}

// again runs this test binary again as a child with the given role (see runChild) and returns what it printed.
func again(t *testing.T, role string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), "NVML_TEST_CHILD="+role), env...)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return string(out)
}

// runChild opens the library at the path, or under NVML's usual name for "default", and prints what it discovers.
func runChild(path string) int {
	if path == "default" {
		path = ""
	}
	lib, err := nvml.Open(path)
	if err != nil {
		fmt.Println(err)
		return 0
	}
	m, health, err := lib.Discover()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(gpu.Render(m))
	for _, g := range m.GPUs {
		processes, err := lib.Processes(g.UUID)
		fmt.Println(g.UUID, health[g.UUID].State, processes, err)
	}
	fmt.Println(len(lib.Stats()), lib.Shutdown())
	return 0
}

func TestOpen_UsualName(t *testing.T) {
	machine(t, fakenvml.Pairs("n", 2))
	out := again(t, "default", "LD_LIBRARY_PATH="+filepath.Dir(libPath))
	must.StrContains(t, out, "GPUs 0-1: 318.7 GB/s between each pair")
	out = again(t, "default", "LD_LIBRARY_PATH=")
	must.StrContains(t, out, "NVML library missing: libnvidia-ml.so.1: cannot open shared object file")
}

func TestDiscover_OldLibrary(t *testing.T) {
	old, err := fakenvml.BuildOld(t.Context(), t.TempDir())
	must.NoError(t, err)
	for name, fake := range map[string]fakenvml.Machine{
		"directly linked":  fakenvml.CubeMesh("n"),
		"through a switch": fakenvml.HGX8("n"),
	} {
		t.Run(name, func(t *testing.T) {
			machine(t, fake)
			got := again(t, old)
			var want string
			if name == "directly linked" {
				want = "GPUs 0-3: 25.0 to 50.0 GB/s between pairs"
			} else {
				want = "GPUs 0-7: 478.1 GB/s between each pair"
			}
			must.StrContains(t, got, want)
			must.StrContains(t, got, fake.GPUs[7].UUID+" healthy [] <nil>")
		})
	}
}
