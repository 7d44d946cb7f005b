// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml_test

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestStats(t *testing.T) {
	control := machine(t, fakenvml.Pairs("n", 3))
	lib := open(t)
	must.SliceEmpty(t, lib.Stats())
	m, _ := discover(t, lib)
	must.NoError(t, control.Set(1, func(s *fakenvml.GPUState) {
		s.UtilizationPercent, s.MemoryUsedMiB, s.TemperatureC, s.PowerMilliwatt = 97, 1000, 71, 350500
		s.NVLinkRxKiB, s.NVLinkTxKiB, s.ECCCorrected, s.ECCUncorrected = 1<<40, 7, 3, 1
	}))
	stats := lib.Stats()
	must.Len(t, 3, stats)
	got := stats[1]
	must.Eq(t, m.GPUs[1].UUID, got.UUID)
	must.Eq(t, 97, *got.UtilizationPercent)
	must.Eq(t, 1000, *got.MemoryUsedMiB)
	must.Eq(t, m.GPUs[1].MemoryMiB, *got.MemoryTotalMiB)
	must.Eq(t, 71, *got.TemperatureC)
	must.Eq(t, 350.5, *got.PowerW)
	must.Eq(t, 1<<40, *got.NVLinkRxKiB)
	must.Eq(t, 7, *got.NVLinkTxKiB)
	must.Eq(t, 3, *got.ECCCorrected)
	must.Eq(t, 1, *got.ECCUncorrected)
	must.Eq(t, 35, *stats[0].TemperatureC)
	must.Nil(t, stats[2].NVLinkRxKiB) // the GPU without a bridge
}

// watch starts Watch and returns its events; it ends with the test.
func watch(t *testing.T, lib *nvml.Library) <-chan gpu.XIDEvent {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan gpu.XIDEvent, 100)
	ended := make(chan error, 1)
	go func() { ended <- lib.Watch(ctx, func(e gpu.XIDEvent) { events <- e }) }()
	t.Cleanup(func() {
		cancel()
		must.NoError(t, <-ended)
	})
	return events
}

// fire fires an XID until it arrives, because nobody says when Watch has begun to listen.
func fire(t *testing.T, control *fakenvml.Control, events <-chan gpu.XIDEvent, gpuIndex int, xid uint64) gpu.XIDEvent {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		must.NoError(t, control.FireXID(gpuIndex, xid))
		select {
		case e := <-events:
			return e
		case <-time.After(200 * time.Millisecond):
		case <-deadline:
			t.Fatal("the XID did not arrive")
		}
	}
}

func TestWatch(t *testing.T) {
	control := machine(t, fakenvml.Pairs("n", 2))
	lib := open(t)
	must.ErrorIs(t, lib.Watch(t.Context(), nil), nvml.ErrNoEvents) // nothing discovered yet
	m, _ := discover(t, lib)
	uuid := m.GPUs[1].UUID
	events := watch(t, lib)

	must.Eq(t, gpu.XIDEvent{UUID: uuid, XID: 43}, fire(t, control, events, 1, 43))
	_, health := discover(t, lib)
	must.Eq(t, gpu.Healthy, health[uuid].State) // the application's fault

	must.NoError(t, control.FireXID(1, 31))
	must.NoError(t, control.FireXID(1, 48))
	for e := range events {
		if e.XID == 48 {
			break
		}
	}
	_, health = discover(t, lib)
	must.Eq(t, gpu.Health{State: gpu.Unhealthy, Reason: "XID 48: double-bit memory error"}, health[uuid])
	must.Eq(t, gpu.Healthy, health[m.GPUs[0].UUID].State)
	stats := lib.Stats()
	must.Eq(t, 48, stats[1].LastXID)
	must.GreaterEq(t, 3, stats[1].XIDCount)
	must.Eq(t, 0, stats[0].XIDCount)

	must.NoError(t, control.Lose(1))
	must.NoError(t, control.FireXID(1, 79)) // cannot be asked for its UUID any more
	must.Eq(t, gpu.XIDEvent{UUID: uuid, XID: 79}, <-events)
	discover(t, lib)
	must.NoError(t, control.Return(1))
	_, health = discover(t, lib)
	must.Eq(t, gpu.Healthy, health[uuid].State) // it must have been reset
}

// devices makes the device nodes of the machine that was set before.
func devices(t *testing.T, n int) []string {
	t.Helper()
	nodes, err := fakenvml.MakeDevices(os.Getenv("FAKENVML_DEV_ROOT"), n)
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("needs the right to make device nodes")
	}
	must.NoError(t, err)
	return nodes
}

func TestProcesses(t *testing.T) {
	fake := fakenvml.Pairs("n", 2)
	machine(t, fake)
	nodes := devices(t, 2)
	lib := open(t)
	users := func(i int) []gpu.Process {
		t.Helper()
		processes, err := lib.Processes(fake.GPUs[i].UUID)
		must.NoError(t, err)
		return processes
	}
	must.SliceEmpty(t, users(0))
	_, err := lib.Processes("GPU-of-another-machine")
	must.ErrorIs(t, err, nvml.ErrUnknownGPU)

	file, err := os.OpenFile(nodes[0], os.O_RDWR, 0)
	must.NoError(t, err)
	must.Eq(t, []gpu.Process{{PID: os.Getpid(), UsedMemoryMiB: 512}}, users(0))
	must.SliceEmpty(t, users(1))

	pid := holder(t, nodes[0])
	must.Len(t, 2, users(0)) // two users: NVML asks for more room than one
	must.NoError(t, file.Close())
	must.Eq(t, pid, users(0)[0].PID)
}

// Another machine's nodes are no users of this one, but a container's own node is if its environment names the GPU.
func TestProcesses_NodesOfOthers(t *testing.T) {
	fake := fakenvml.Pairs("n", 2)
	machine(t, fake)
	devices(t, 2)
	lib := open(t)
	elsewhere, err := fakenvml.MakeDevices(t.TempDir(), 2)
	must.NoError(t, err)
	holder(t, elsewhere[0], "CUDA_VISIBLE_DEVICES=GPU-of-another-machine")
	processes, err := lib.Processes(fake.GPUs[0].UUID)
	must.NoError(t, err)
	must.SliceEmpty(t, processes)

	pid := holder(t, elsewhere[0], "CUDA_VISIBLE_DEVICES="+fake.GPUs[1].UUID+","+fake.GPUs[0].UUID)
	processes, err = lib.Processes(fake.GPUs[0].UUID)
	must.NoError(t, err)
	must.Eq(t, []gpu.Process{{PID: pid, UsedMemoryMiB: 512}}, processes)
	processes, err = lib.Processes(fake.GPUs[1].UUID) // named, but its node is not open
	must.NoError(t, err)
	must.SliceEmpty(t, processes)
}

// holder starts a process that holds a file open until the test ends, and returns its PID.
func holder(t *testing.T, node string, env ...string) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `exec 3<"$1"; echo ready; exec cat`, "sh", node)
	cmd.Env = append(os.Environ(), env...)
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // ends cat
		_ = cmd.Wait()
	})
	_, err = bufio.NewReader(stdout).ReadString('\n')
	must.NoError(t, err)
	return cmd.Process.Pid
}

func TestMakeDevices_KeepsWhatIsThere(t *testing.T) {
	machine(t, fakenvml.PCIe("n", 2))
	first := devices(t, 2)
	second := devices(t, 2)
	must.Eq(t, first, second)
	var st unix.Stat_t
	must.NoError(t, unix.Stat(filepath.Join(filepath.Dir(first[0]), "nvidia-uvm"), &st))
	must.Eq(t, unix.S_IFCHR|0o666, st.Mode)
}

// Whatever is in the control and machine files, the library answers.
func TestGarbageFiles(t *testing.T) {
	machine(t, fakenvml.CubeMesh("n"))
	good, err := os.ReadFile(os.Getenv("FAKENVML_MACHINE"))
	must.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	for _, text := range []string{
		"", "\x00\x01\xff\n\n", "gpu", "gpu 99 lost 1\ngpu -1 lost\ngpu 1\ngpu x lost 1\n", "gpu 2 ecc_uncorrected 99999999999999999999999\n",
		"gpu 2 link_down 36\ngpu 2 link_down 99999999\n", "xid 1\nxid 1 99 1\nxid 1 2\n", "init\ninit nonsense\n", "gpu 1 power_mw 99999999999\ngpu 1 memory_used_mib 99999999999\n",
	} {
		must.NoError(t, os.WriteFile(os.Getenv("FAKENVML_CONTROL"), []byte(text), 0o644))
		lib, err := nvml.Open(libPath)
		must.NoError(t, err)
		m, _ := discover(t, lib)
		must.Len(t, 8, m.GPUs)
		must.NoError(t, lib.Shutdown())
	}
	for range 200 {
		for _, name := range []string{"FAKENVML_MACHINE", "FAKENVML_CONTROL"} {
			text := append([]byte("gpu 1 lost 0\nxid 5 1 48\ngpu 0 mig 1\n"), good...)
			for range r.IntN(60) {
				text[r.IntN(len(text))] = byte(r.IntN(256))
			}
			must.NoError(t, os.WriteFile(os.Getenv(name), text[:r.IntN(len(text))], 0o644))
		}
		lib, err := nvml.Open(libPath)
		if err != nil {
			continue
		}
		_, _, err = lib.Discover()
		must.NoError(t, err)
		lib.Stats()
		must.NoError(t, lib.Shutdown())
	}
}
