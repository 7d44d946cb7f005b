// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package realgpu checks on a machine with GPUs what all other tests see on made-up ones: discovery, the choice of a
// set, and one task that opens its GPU under the supervisor. Without a GPU it says so and skips.
package realgpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
	"github.com/nomad-muster/muster/driver/launch"
)

// The test binary is also the task's supervisor, and the task.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == launch.SuperviseArgument:
		os.Exit(launch.Supervise(os.Args[2]))
	case len(os.Args) == 3 && os.Args[1] == "use-gpu":
		os.Exit(useGPU(os.Args[2]))
	default:
		os.Exit(m.Run())
	}
}

// useGPU is the task: it opens the device node that it was given and asks NVML who is there.
func useGPU(path string) int {
	node, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		fmt.Println("opening the GPU:", err)
		return 1
	}
	defer node.Close()
	library, err := nvml.Open("")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	machine, _, err := library.Discover()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for _, g := range machine.GPUs {
		fmt.Println("sees", g.UUID)
	}
	return 0
}

// discover opens NVML or skips the test with the reason.
func discover(t *testing.T) (*nvml.Library, gpu.Machine, map[string]gpu.Health) {
	t.Helper()
	library, err := nvml.Open("")
	if errors.Is(err, nvml.ErrLibraryMissing) || errors.Is(err, nvml.ErrDriverNotLoaded) {
		t.Skipf("this machine has no GPU: %v", err)
	}
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, library.Shutdown()) })
	machine, health, err := library.Discover()
	must.NoError(t, err)
	if len(machine.GPUs) == 0 {
		t.Skip("this machine has no GPU: NVML lists none")
	}
	return library, machine, health
}

func TestRealGPU_Discovery(t *testing.T) {
	library, machine, health := discover(t)
	t.Logf("driver %s, CUDA %s\n%s", machine.DriverVersion, machine.CUDAVersion, gpu.Render(machine))
	for _, g := range machine.GPUs {
		must.StrHasPrefix(t, "GPU-", g.UUID)
		must.Positive(t, g.MemoryMiB)
		t.Logf("GPU %d: %s, %v", g.Index, g.Model, health[g.UUID])
		_, err := library.Processes(g.UUID)
		must.NoError(t, err)
	}
	must.Len(t, len(machine.GPUs), library.Stats())
}

func TestRealGPU_Choice(t *testing.T) {
	_, machine, health := discover(t)
	topology := gpu.NewTopology(machine)
	free := machine.Free(health, nil, nil)
	for k := 1; k <= free.Len(); k++ {
		choice, ok := topology.Choose(k, free)
		must.True(t, ok)
		must.EqOp(t, k, choice.GPUs.Len())
		t.Logf("a member of %d gets %s", k, choice)
	}
}

func TestRealGPU_Task(t *testing.T) {
	_, machine, _ := discover(t)
	g := machine.GPUs[0]
	node := fmt.Sprintf("/dev/nvidia%d", g.Minor)
	work := t.TempDir()
	spec := launch.Spec{
		Name: "realgpu-" + filepath.Base(work), Command: os.Args[0], Args: []string{"use-gpu", node}, Dir: work,
		Env:    map[string]string{"LD_LIBRARY_PATH": os.Getenv("LD_LIBRARY_PATH")},
		Stdout: filepath.Join(work, "out"), Stderr: filepath.Join(work, "err"),
		Limits: launch.Limits{
			Parent: "muster-test", RestrictDevices: true, DeviceNodes: []string{node, "/dev/nvidiactl", "/dev/nvidia-uvm"},
		},
	}
	for _, path := range []string{spec.Stdout, spec.Stderr} {
		must.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	task, err := launch.Start(ctx, t.TempDir(), spec)
	must.NoError(t, err)
	exit, err := task.Wait(ctx)
	must.NoError(t, err)
	must.NoError(t, task.Gone(ctx))
	out, err := os.ReadFile(spec.Stdout)
	must.NoError(t, err)
	must.True(t, exit.Success(), must.Sprintf("%s: %s", exit, out))
	must.StrContains(t, string(out), g.UUID)
	t.Logf("the task opened %s; notes: %v", node, task.State().Notes)
}
