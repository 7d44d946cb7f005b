// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/shoenig/test/must"
)

// libPath is the library that TestMain builds. All tests of this process use the one: go-nvml stays with the functions
// of the first library that it loads. Tests that need another one run this test binary again, see again.
var libPath string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if child := os.Getenv("NVML_TEST_CHILD"); child != "" {
		return runChild(child)
	}
	dir, err := os.MkdirTemp("", "fakenvml-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if libPath, err = fakenvml.Build(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// machine makes the library answer for a machine, and returns the means to change it. The tests cannot run in
// parallel, because the library learns of its machine from the environment.
func machine(t testing.TB, m fakenvml.Machine) *fakenvml.Control {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, m.WriteFile(filepath.Join(dir, "machine")))
	control, err := fakenvml.NewControl(filepath.Join(dir, "control"))
	must.NoError(t, err)
	t.Setenv("FAKENVML_MACHINE", filepath.Join(dir, "machine"))
	t.Setenv("FAKENVML_CONTROL", filepath.Join(dir, "control"))
	t.Setenv("FAKENVML_DEV_ROOT", dir)
	return control
}

// open opens the library, for the machine set before.
func open(t testing.TB) *nvml.Library {
	t.Helper()
	lib, err := nvml.Open(libPath)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, lib.Shutdown()) })
	return lib
}

func discover(t testing.TB, lib *nvml.Library) (gpu.Machine, map[string]gpu.Health) {
	t.Helper()
	m, health, err := lib.Discover()
	must.NoError(t, err)
	must.MapLen(t, len(m.GPUs), health)
	return m, health
}
