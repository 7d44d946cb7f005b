// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/driver/pluginconf"
	"github.com/nomad-muster/muster/placer/ledger"
)

// The test binary is also the supervisor of the tasks that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == launch.SuperviseArgument {
		code := launch.Supervise(os.Args[2])
		// The race detector would sleep for a second in os.Exit.
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
	os.Exit(m.Run())
}

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// world is a ledger with one gang in it, whose members stand on nodes n0, n1, ...
type world struct {
	t      *testing.T
	store  *ledger.Memory
	ledger *ledger.Ledger
	size   int
	gang   ledger.Gang
	wrap   func(Ledger) Ledger // what the drivers see of the ledger; nil: itself

	comeback  time.Duration // of the drivers that start from now on
	termGrace time.Duration // of the drivers that start from now on
	epoch     string        // of the slot tables that are written from now on
}

const (
	gangName    = "resnet50"
	reservation = "r1"
)

// newWorld makes the world of one test, which runs beside others from here on: much of it is waiting.
func newWorld(t *testing.T, size int) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, store: ledger.NewMemory(), size: size, comeback: time.Second, termGrace: patience}
	w.ledger = ledger.New(w.store, "global")
	grant := &ledger.Grant{ID: reservation}
	for rank := range size {
		grant.Placements = append(grant.Placements, ledger.Placement{
			Node: node(rank), Address: "127.0.0.1", Group: "worker", Rank: rank, Members: 1, GPUs: 2,
		})
	}
	w.gang = ledger.Gang{Version: ledger.Version, Name: gangName, State: ledger.GangReserved, Reservation: grant}
	w.grant()
	return w
}

// grant writes the gang's document and its slots, as the placer does.
func (w *world) grant() {
	w.t.Helper()
	for rank := range w.size {
		w.setSlot(rank, ledger.SlotOpen, "")
	}
	w.put(w.ledger.Keys().Gang(gangName), w.gang)
}

func node(rank int) string { return "n" + strconv.Itoa(rank) }

func (w *world) put(key string, doc any) {
	w.t.Helper()
	value, err := json.Marshal(doc)
	must.NoError(w.t, err)
	_, err = w.store.Txn(w.t.Context(), []ledger.Op{{Verb: ledger.Set, Key: key, Value: value}})
	must.NoError(w.t, err)
}

// setSlot writes the table of a rank's node, with its slot in a state.
func (w *world) setSlot(rank int, state ledger.SlotState, why string) {
	w.t.Helper()
	boot, err := pluginconf.ReadID("/proc/sys/kernel/random/boot_id")
	must.NoError(w.t, err)
	w.put(w.ledger.Keys().Slots(node(rank)), ledger.SlotTable{Version: ledger.Version, Epoch: w.epoch, Sequence: 1, Slots: []ledger.Slot{{
		Reservation: reservation, Rank: rank, Size: w.size, Driver: name, GPUs: []string{"GPU-a", "GPU-b"}, State: state, Why: why,
		Owner:  ledger.Owner{Gang: gangName, Value: gangName, Namespace: "default", Job: "resnet", CreateIndex: 7, Group: "worker", Task: "train"},
		BootID: boot, MachineID: "m",
	}}})
}

// close closes all slots, as the placer does: in one go.
func (w *world) close(why string) {
	w.t.Helper()
	for rank := range w.size {
		w.setSlot(rank, ledger.SlotClosing, why)
	}
}

func (w *world) run() ledger.Run {
	run, err := w.ledger.WatchRun(w.t.Context(), gangName, reservation, 0, 0)
	if errors.Is(err, ledger.ErrNotFound) {
		return ledger.Run{}
	}
	must.NoError(w.t, err)
	return run.Doc
}

func (w *world) member(rank int) ledger.Member {
	members, _, err := w.ledger.WatchMembers(w.t.Context(), gangName, reservation, 0, 0)
	must.NoError(w.t, err)
	return members[rank].Doc
}

func (w *world) claims(rank int) int {
	claims, _, err := w.ledger.WatchClaims(w.t.Context(), node(rank), 0, 0)
	must.NoError(w.t, err)
	return len(claims)
}

// outage makes the ledger unreachable until the returned function is called.
func (w *world) outage() (over func()) {
	w.store.Inject(func(ledger.Call) ledger.Fault { return ledger.Refuse })
	return func() { w.store.Inject(nil) }
}

func (w *world) noClaims() {
	w.t.Helper()
	for rank := range w.size {
		eventually(w.t, "the claim of rank "+strconv.Itoa(rank)+" has ended", func() bool { return w.claims(rank) == 0 })
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(
		wait.BoolFunc(condition), wait.Timeout(patience), wait.Gap(20*time.Millisecond),
	), must.Sprint(what))
}

// machine is made-up hardware.
type machine struct{}

func (machine) Discover() (gpu.Machine, map[string]gpu.Health, error) {
	link := gpu.Link{NVLinks: 4, NVLinkMBps: 100_000}
	return gpu.Machine{
		DriverVersion: "570.1", CUDAVersion: "12.8",
		GPUs:  []gpu.GPU{{UUID: "GPU-a", Model: "H100"}, {UUID: "GPU-b", Index: 1, Model: "H100"}},
		Links: [][]gpu.Link{{{}, link}, {link, {}}},
	}, nil, nil
}

func (machine) Processes(string) ([]gpu.Process, error) { return nil, nil }

// client is one node's driver, as Nomad's client uses it: over gRPC.
type client struct {
	drivers.DriverPlugin
	t        *testing.T
	world    *world
	rank     int
	stateDir string
	plugin   *Plugin
	kill     func() // ends the plugin's process, as far as it can tell; its tasks live on

	mu     sync.Mutex // protects events
	events []string
}

func (w *world) client(rank int) *client {
	w.t.Helper()
	c := &client{t: w.t, world: w, rank: rank, stateDir: w.t.TempDir()}
	c.startPlugin()
	w.t.Cleanup(func() { c.kill() })
	return c
}

// startPlugin begins a process of the plugin, as far as the plugin can tell.
func (c *client) startPlugin() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c.plugin = New(ctx, hclog.New(&hclog.LoggerOptions{Output: c.t.Output(), Level: hclog.Debug, Name: node(c.rank)}), Dependencies{
		Ledger: func(Config) (Ledger, error) {
			if c.world.wrap != nil {
				return c.world.wrap(c.world.ledger), nil
			}
			return c.world.ledger, nil
		},
		Hardware: func(string) (Hardware, error) { return machine{}, nil },
	})
	c.plugin.comeback = c.world.comeback
	logger := hclog.NewNullLogger()
	client, _ := goplugin.TestPluginGRPCConn(c.t, false, map[string]goplugin.Plugin{
		base.PluginTypeDriver: drivers.NewDriverPlugin(c.plugin, logger),
		base.PluginTypeBase:   &base.PluginBase{Impl: c.plugin},
	})
	raw, err := client.Dispense(base.PluginTypeDriver)
	must.NoError(c.t, err)
	c.DriverPlugin = raw.(drivers.DriverPlugin)
	c.kill = func() { cancel(); _ = client.Close() } // which stops the server as well
	var packed []byte
	must.NoError(c.t, base.MsgPackEncode(&packed, Config{
		Enabled: true, Region: "global", StateDir: c.stateDir, DevRoot: "/dev", BootIDFile: "/proc/sys/kernel/random/boot_id",
		CgroupParent: "muster-test", TermGrace: c.world.termGrace.String(),
	}))
	must.NoError(c.t, c.SetConfig(&base.Config{PluginConfig: packed}))
	events, err := c.TaskEvents(ctx)
	must.NoError(c.t, err)
	go func() {
		for event := range events {
			c.mu.Lock()
			c.events = append(c.events, event.Message)
			c.mu.Unlock()
		}
	}()
	// Nomad's client listens long before its first task; here the stream may still be on its way.
	eventually(c.t, "events arrive", func() bool {
		c.plugin.events.emit(&drivers.TaskConfig{}, "hello")
		return c.told("hello")
	})
}

func (c *client) told(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Contains(strings.Join(c.events, "\n"), text)
}

func (c *client) everTold(text string) {
	c.t.Helper()
	eventually(c.t, "an event says: "+text, func() bool { return c.told(text) })
}

// runningTask is a task of a client.
type runningTask struct {
	*client
	cfg    *drivers.TaskConfig
	handle *drivers.TaskHandle
}

// config describes the task of a client's rank, running a shell script.
func (c *client) config(script string, change ...func(*TaskConfig)) *drivers.TaskConfig {
	c.t.Helper()
	alloc := fmt.Sprintf("%08d-0000-0000-0000-000000000000", c.rank)
	cfg := &drivers.TaskConfig{
		ID: alloc + "/train/" + fmt.Sprintf("%08x", time.Now().UnixNano()&0xffffffff), AllocID: alloc, Name: "train", JobID: "resnet", JobName: "resnet",
		TaskGroupName: "worker", Namespace: "default", NodeName: node(c.rank), Env: map[string]string{"PATH": os.Getenv("PATH")},
		DeviceEnv: map[string]string{
			"MUSTER_GANG": gangName, "MUSTER_NODE": node(c.rank), "MUSTER_RESERVATION": reservation,
			"MUSTER_RANK": strconv.Itoa(c.rank), "MUSTER_SIZE": strconv.Itoa(c.world.size), "MUSTER_GPUS": "GPU-a,GPU-b",
			"MUSTER_MASTER_ADDR": "192.0.2.1", "MUSTER_MASTER_PORT": "1",
		},
		Resources: &drivers.Resources{LinuxResources: &drivers.LinuxResources{CPUShares: 100, MemoryLimitBytes: 256 << 20}},
	}
	config := TaskConfig{Command: "/bin/sh", Args: []string{"-c", script}, BarrierTimeout: "1m"}
	for _, apply := range change {
		apply(&config)
	}
	must.NoError(c.t, cfg.EncodeConcreteDriverConfig(&config))
	cfg.AllocDir = c.t.TempDir()
	dir := cfg.TaskDir()
	for _, path := range []string{dir.LocalDir, dir.SecretsDir, dir.LogDir} {
		must.NoError(c.t, os.MkdirAll(path, 0o755))
	}
	cfg.StdoutPath, cfg.StderrPath = filepath.Join(dir.LogDir, "stdout"), filepath.Join(dir.LogDir, "stderr")
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		must.NoError(c.t, os.WriteFile(path, nil, 0o600))
	}
	return cfg
}

func (c *client) start(script string, change ...func(*TaskConfig)) *runningTask {
	c.t.Helper()
	return c.startConfig(c.config(script, change...))
}

func (c *client) startConfig(cfg *drivers.TaskConfig) *runningTask {
	c.t.Helper()
	handle, _, err := c.StartTask(cfg)
	must.NoError(c.t, err)
	r := &runningTask{client: c, cfg: cfg, handle: handle}
	c.t.Cleanup(func() {
		if t, err := c.plugin.find(cfg.ID); err == nil && !t.over() {
			t.stop(stopOrder{until: time.Now()})
			_ = t.await(context.Background(), patience)
		}
		eventually(c.t, "nothing of the task is left", func() bool {
			c.plugin.mu.Lock()
			defer c.plugin.mu.Unlock()
			return len(c.plugin.care) == 0
		})
	})
	return r
}

// wait returns how the task ended for Nomad.
func (r *runningTask) wait() *drivers.ExitResult {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	results, err := r.WaitTask(ctx, r.cfg.ID)
	must.NoError(r.t, err)
	select {
	case result := <-results:
		must.NotNil(r.t, result)
		return result
	case <-ctx.Done():
		r.t.Fatalf("task of rank %d did not end", r.rank)
		return nil
	}
}

// file is a path in the task's own directory.
func (r *runningTask) file(name string) string { return filepath.Join(r.cfg.TaskDir().Dir, name) }

func (r *runningTask) touch(name string) {
	r.t.Helper()
	must.NoError(r.t, os.WriteFile(r.file(name), nil, 0o600))
}

func (r *runningTask) has(name string) bool {
	_, err := os.Stat(r.file(name))
	return err == nil
}

func (r *runningTask) everHas(name string) {
	r.t.Helper()
	eventually(r.t, "file "+name+" of rank "+strconv.Itoa(r.rank), func() bool { return r.has(name) })
}

func (r *runningTask) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(r.file(name))
	must.NoError(r.t, err)
	return string(text)
}
