// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
)

// Hardware is what the plugin asks of a machine's GPUs; driver/gpu/nvml answers it. Methods may be called concurrently,
// and may block for as long as NVIDIA's driver does.
type Hardware interface {
	// Discover reads the inventory, and the health of each GPU by UUID. An error means that no GPU can be asked.
	Discover() (gpu.Machine, map[string]gpu.Health, error)
	// Processes lists the users of one GPU.
	Processes(uuid string) ([]gpu.Process, error)
	// Stats reads what moves from second to second on all GPUs.
	Stats() []gpu.Stats
	// Watch calls on for every XID event until ctx ends; Discover says then what it means for the GPU's health.
	Watch(ctx context.Context, on func(gpu.XIDEvent)) error
	// Shutdown ends the use of the library; nothing else is called during or after it.
	Shutdown() error
}

// Opener opens the machine's GPUs through an NVML library; an empty path means that the loader finds it.
type Opener func(library string) (Hardware, error)

// errNoHardware says that NVML is not open.
var errNoHardware = errors.New("NVML is not available")

// gpus is the hardware while it is open.
type gpus struct {
	mu   sync.RWMutex
	open Hardware // nil: not open
}

// use calls f with the hardware, which stays open meanwhile.
func (g *gpus) use(f func(Hardware) error) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.open == nil {
		return errNoHardware
	}
	return f(g.open)
}

func (g *gpus) set(hw Hardware) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = hw
}

// watchHardware keeps machine and health up to date, and opens NVML again whenever it does not answer.
func (e *engine) watchHardware(ctx context.Context) {
	for {
		hw, err := e.open(e.set.NVMLLibrary)
		if err == nil {
			err = e.followHardware(ctx, hw)
			err = errors.Join(err, hw.Shutdown())
		}
		if ctx.Err() != nil {
			return
		}
		e.noHardware(err)
		if !wait(ctx, nil, e.pace.hardware) {
			return
		}
	}
}

// followHardware discovers at every period and event until the hardware fails. Nobody uses it any more when it returns.
func (e *engine) followHardware(ctx context.Context, hw Hardware) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer func() {
		cancel()
		watching.Wait()
		e.gpus.set(nil)
	}()
	e.gpus.set(hw)
	events := make(chan struct{}, 1)
	tick := time.NewTicker(e.set.fingerprintPeriod)
	defer tick.Stop()
	for first := true; ; first = false {
		machine, health, err := hw.Discover()
		if err != nil {
			return err
		}
		e.foundHardware(machine, health)
		if first { // only GPUs that are known can be watched
			watching.Go(func() { e.watchEvents(ctx, hw, events) })
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-events:
		}
	}
}

// watchEvents signals each event that may have changed the health of a GPU.
func (e *engine) watchEvents(ctx context.Context, hw Hardware, events chan<- struct{}) {
	err := hw.Watch(ctx, func(event gpu.XIDEvent) {
		if event.XID != 0 {
			e.log.Warn("the NVIDIA driver reports an error", "gpu", event.UUID, "xid", event.XID)
		}
		select {
		case events <- struct{}{}:
		default: // one is waiting already
		}
	})
	if ctx.Err() == nil {
		e.once.warn("events", "NVML sends no events: a failing GPU is noticed at the next fingerprint_period", "error", err)
	}
}

func (e *engine) foundHardware(machine gpu.Machine, health map[string]gpu.Health) {
	before, _ := e.world.get()
	var unknown []string
	after := e.world.update(func(w *world) {
		w.takeMachine(machine, health)
		w.discovered, w.trouble = true, ""
		w.unmanaged, unknown = resolveGPUs(w.machine, e.set.Unmanaged)
	})
	if len(unknown) > 0 {
		e.once.warn("unmanaged", "the option `unmanaged` names GPUs that this machine does not have", "gpus", unknown)
	}
	if !before.discovered || before.trouble != "" {
		e.once.info("hardware", "GPUs found", "gpus", len(after.machine.GPUs), "driver_version", machine.DriverVersion)
	}
	for _, g := range after.machine.GPUs {
		h := after.healthOf(g.UUID)
		if h.State == gpu.Healthy {
			e.once.clear(g.UUID, "GPU is healthy again", "gpu", g.UUID)
			continue
		}
		e.once.warn(g.UUID, "GPU can't be used", "gpu", g.UUID, "state", h.State, "reason", h.Reason)
	}
}

func (e *engine) noHardware(err error) {
	e.once.warn("hardware", "no GPUs are offered: NVML can't be used; it is tried again", "every", e.pace.hardware.String(), "error", err)
	e.world.update(func(w *world) {
		w.discovered, w.trouble = true, err.Error()
		w.loseAll(err.Error())
	})
}

// takeMachine takes what was discovered. GPUs that are known of this boot but not reported any more have fallen off the
// bus: the known machine stays as it is, so that groups keep their attributes, and they count as lost.
func (w *world) takeMachine(machine gpu.Machine, health map[string]gpu.Health) {
	if missing := missingGPUs(w.machine, machine); len(missing) > 0 && len(missingGPUs(machine, w.machine)) == 0 {
		all := make(map[string]gpu.Health, len(w.machine.GPUs))
		for _, g := range w.machine.GPUs {
			all[g.UUID] = health[g.UUID]
		}
		for _, uuid := range missing {
			if all[uuid].State != gpu.Lost {
				all[uuid] = gpu.Health{State: gpu.Lost, Reason: "NVML does not list it any more"}
			}
		}
		w.health = all
		return
	}
	w.health = health
	if !reflect.DeepEqual(w.machine, machine) {
		w.machine, w.topology = machine, gpu.NewTopology(machine)
	}
}

// missingGPUs lists the GPUs of a machine that another view of it lacks.
func missingGPUs(of, in gpu.Machine) []string {
	var uuids []string
	for _, g := range of.GPUs {
		if !slices.ContainsFunc(in.GPUs, func(other gpu.GPU) bool { return other.UUID == g.UUID }) {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// loseAll counts every known GPU as lost.
func (w *world) loseAll(reason string) {
	health := make(map[string]gpu.Health, len(w.machine.GPUs))
	for _, g := range w.machine.GPUs {
		health[g.UUID] = gpu.Health{State: gpu.Lost, Reason: reason}
	}
	w.health = health
}

// resolveGPUs turns UUIDs and indexes into UUIDs, in index order, and lists what it does not know.
func resolveGPUs(machine gpu.Machine, names []string) (uuids, unknown []string) {
	for _, name := range names {
		known := slices.ContainsFunc(machine.GPUs, func(g gpu.GPU) bool { return isNamed(g, name) })
		if !known {
			unknown = append(unknown, name)
		}
	}
	for _, g := range machine.GPUs {
		if slices.ContainsFunc(names, func(name string) bool { return isNamed(g, name) }) {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids, unknown
}

func isNamed(g gpu.GPU, name string) bool {
	return strings.EqualFold(g.UUID, name) || strconv.Itoa(g.Index) == name
}

// processesOn asks NVML who uses GPUs; one that can't be asked is left out.
func (e *engine) processesOn(uuids []string) map[string][]gpu.Process {
	users := make(map[string][]gpu.Process, len(uuids))
	for _, uuid := range uuids {
		err := e.gpus.use(func(hw Hardware) error {
			processes, err := hw.Processes(uuid)
			if err == nil {
				users[uuid] = processes
			}
			return err
		})
		if err != nil {
			e.log.Debug("NVML does not say who uses a GPU", "gpu", uuid, "error", err)
		}
	}
	return users
}

// processNames reads the command names of processes.
func processNames(procRoot string, users map[string][]gpu.Process) map[int]string {
	names := map[int]string{}
	for _, processes := range users {
		for _, p := range processes {
			data, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(p.PID), "comm"))
			if err == nil {
				names[p.PID] = strings.TrimSpace(string(data))
			}
		}
	}
	return names
}
