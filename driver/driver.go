// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is Nomad's task driver "muster": it starts one member of a gang when the whole gang is there, asks it to
// checkpoint, ends it with the gang, and says why. Its methods are thin; a task lives in a goroutine of its own (life.go),
// its processes under a supervisor (driver/launch), its gang in the ledger (driver/gang).
//
// It never decides who gets GPUs, and never takes silence for an order: a ledger that can't be reached, is empty or
// unreadable ends nothing. The main of plugin/nomad-driver-muster alone imports it; it and driver/device do not import
// each other.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/version"
	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	// name is the driver's name in job specs.
	name = "muster"
	// handleVersion is of the state that Nomad keeps for a task. A newer one is an error.
	handleVersion = 1
	// stopMargin is how long StopTask waits beyond its timeout for the processes to be gone.
	stopMargin = 15 * time.Second
	// comebackPatience is how long Nomad has to start a task again that it has stopped: to restart it in place takes it
	// about a second. While its placer is there, a gang whose member Nomad does not want any more does not wait for this:
	// its slots are closed.
	comebackPatience = 10 * time.Second
)

// Ledger is what the driver needs of the ledger.
type Ledger interface {
	gang.Ledger
	Claim(ctx context.Context, node string, c ledger.Claim, match func(ledger.Slot) error) (ledger.Slot, error)
	Unclaim(ctx context.Context, node string, id ledger.SlotID, allocation string) error
	GetGang(ctx context.Context, gang string) (ledger.Versioned[ledger.Gang], error)
}

// Hardware is what the driver needs of NVML.
type Hardware interface {
	Discover() (gpu.Machine, map[string]gpu.Health, error)
	Processes(uuid string) ([]gpu.Process, error)
}

// Dependencies make what the plugin works with from its configuration.
type Dependencies struct {
	Ledger   func(Config) (Ledger, error)
	Hardware func(library string) (Hardware, error)
}

// Plugin is the driver. Nothing is touched before its first task or fingerprint, as Nomad makes plugins just to ask them
// for their schema.
type Plugin struct {
	ctx    context.Context //nolint:containedctx // Nomad's interface gives most methods none; it ends with the plugin
	logger hclog.Logger
	deps   Dependencies
	events *events

	mu       sync.Mutex // protects what follows
	settings settings
	ledger   Ledger
	hardware Hardware // nil until NVML could be opened
	node     string   // as the last task had it
	tasks    map[string]*task
	care     map[string]care // by the task's directory: what a goroutine of this process cares for
	comeback time.Duration   // how long Nomad has to start a task again that it has stopped
	sweeping bool
}

// care is for a task from its start until its claim has ended, by its own goroutine, or by one that clears it away.
type care struct {
	seat gang.Seat
	task *task // nil: it is being cleared away
}

var (
	_ drivers.DriverPlugin            = (*Plugin)(nil)
	_ drivers.ExecTaskStreamingDriver = (*Plugin)(nil)
)

// New makes the plugin. It works until ctx ends; its tasks live on.
func New(ctx context.Context, logger hclog.Logger, deps Dependencies) *Plugin {
	logger = logger.Named(name)
	return &Plugin{
		ctx: ctx, logger: logger, deps: deps, events: newEvents(ctx, logger),
		tasks: map[string]*task{}, care: map[string]care{}, comeback: comebackPatience,
	}
}

// PluginInfo implements drivers.DriverPlugin.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDriver, PluginApiVersions: []string{drivers.ApiVersion010},
		PluginVersion: version.Version, Name: name,
	}, nil
}

// ConfigSchema implements drivers.DriverPlugin.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) { return configSpec(), nil }

// SetConfig implements drivers.DriverPlugin. Nomad calls it more than once.
func (p *Plugin) SetConfig(c *base.Config) error {
	var config Config
	if len(c.PluginConfig) > 0 {
		if err := base.MsgPackDecode(c.PluginConfig, &config); err != nil {
			return fmt.Errorf("decoding the plugin's configuration: %w", err)
		}
	}
	checked, err := config.check()
	if err != nil {
		return err
	}
	l, err := p.deps.Ledger(config)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings, p.ledger = checked, l
	p.logger.Info("configuration", checked.describe()...)
	return nil
}

// TaskConfigSchema implements drivers.DriverPlugin.
func (p *Plugin) TaskConfigSchema() (*hclspec.Spec, error) { return taskConfigSpec(), nil }

// Capabilities implements drivers.DriverPlugin.
func (p *Plugin) Capabilities() (*drivers.Capabilities, error) {
	return &drivers.Capabilities{
		SendSignals:       true,
		Exec:              true,
		FSIsolation:       drivers.FSIsolationNone,
		NetIsolationModes: []drivers.NetIsolationMode{drivers.NetIsolationModeHost},
		MountConfigs:      drivers.MountConfigSupportNone,
	}, nil
}

// StartTask implements drivers.DriverPlugin. It returns at once: the task then waits for its slot and its gang by itself,
// and is running for Nomad meanwhile.
func (p *Plugin) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tasks[cfg.ID] != nil {
		return nil, nil, fmt.Errorf("task %s has been started already", cfg.ID)
	}
	var options TaskConfig
	if err := cfg.DecodeDriverConfig(&options); err != nil {
		return nil, nil, fmt.Errorf("decoding the configuration of task %s: %w", cfg.Name, err)
	}
	seat, err := identify(cfg)
	if err != nil {
		return nil, nil, err
	}
	saved := savedTask{Seat: seat, Started: time.Now().UTC(), Config: cfg, Options: options}
	t, err := newTask(p, taskDir(p.settings.StateDir, cfg.ID), saved)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("making the task's directory: %w", err)
	}
	if err := saveTask(t.dir, saved); err != nil {
		return nil, nil, err
	}
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config, handle.State = cfg, drivers.TaskStateRunning
	if err := handle.SetDriverState(&taskState{Version: handleVersion, Dir: t.dir}); err != nil {
		return nil, nil, fmt.Errorf("encoding the task's state: %w", err)
	}
	p.supersedeLocked(t)
	p.startLocked(t)
	return handle, nil, nil
}

// startLocked lets a task live in a goroutine of its own.
func (p *Plugin) startLocked(t *task) {
	p.node = t.seat.Node
	p.tasks[t.cfg.ID], p.care[t.dir] = t, care{seat: t.seat, task: t}
	p.sweepLocked()
	go func() {
		t.run(p.ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.care, t.dir)
	}()
}

// RecoverTask implements drivers.DriverPlugin. A task whose directory is there is recovered in whatever state it is; how
// it ended meanwhile comes from WaitTask.
func (p *Plugin) RecoverTask(handle *drivers.TaskHandle) error {
	if handle == nil || handle.Config == nil {
		return errors.New("recovering a task: Nomad gave no handle")
	}
	id := handle.Config.ID
	if err := readable(handle.Version); err != nil {
		return fmt.Errorf("task %s: %w", id, err)
	}
	var state taskState
	if err := handle.GetDriverState(&state); err != nil {
		return fmt.Errorf("decoding the state of task %s: %w", id, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tasks[id] != nil {
		return nil
	}
	_, cared := p.care[state.Dir]
	if _, err := os.Stat(state.Dir); err != nil || cared {
		return fmt.Errorf("task %s has ended and is being cleared away: %w", id, drivers.ErrTaskNotFound)
	}
	saved, err := loadTask(state.Dir)
	if err != nil {
		return fmt.Errorf("task %s: %w", id, err)
	}
	t, err := newTask(p, state.Dir, saved)
	if err != nil {
		return err
	}
	p.startLocked(t)
	return nil
}

// find returns a task that Nomad knows by its ID.
func (p *Plugin) find(id string) (*task, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.tasks[id]; t != nil {
		return t, nil
	}
	return nil, drivers.ErrTaskNotFound
}

// WaitTask implements drivers.DriverPlugin. The channel is closed after its one result only: Nomad's client does not
// survive one that is closed without.
func (p *Plugin) WaitTask(ctx context.Context, taskID string) (<-chan *drivers.ExitResult, error) {
	t, err := p.find(taskID)
	if err != nil {
		return nil, err
	}
	out := make(chan *drivers.ExitResult, 1)
	go func() {
		select {
		case <-ctx.Done():
		case <-t.done:
			out <- t.result.Copy()
			close(out)
		}
	}()
	return out, nil
}

// StopTask implements drivers.DriverPlugin.
func (p *Plugin) StopTask(taskID string, timeout time.Duration, signal string) error {
	t, err := p.find(taskID)
	if err != nil {
		return err
	}
	order := stopOrder{until: time.Now().Add(timeout)}
	if signal != "" {
		if order.signal, err = parseSignal(signal); err != nil {
			return err
		}
	}
	t.stop(order)
	return t.await(p.ctx, timeout+stopMargin)
}

// DestroyTask implements drivers.DriverPlugin. The claim of the task outlives it until its processes are gone.
func (p *Plugin) DestroyTask(taskID string, force bool) error {
	t, err := p.find(taskID)
	if err != nil {
		return err
	}
	if !t.over() {
		if !force {
			return errors.New("the task still runs: stop it first")
		}
		t.stop(stopOrder{until: time.Now()})
		if err := t.await(p.ctx, stopMargin); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tasks, taskID)
	return nil
}

// InspectTask implements drivers.DriverPlugin.
func (p *Plugin) InspectTask(taskID string) (*drivers.TaskStatus, error) {
	t, err := p.find(taskID)
	if err != nil {
		return nil, err
	}
	return t.status(), nil
}

// TaskEvents implements drivers.DriverPlugin.
func (p *Plugin) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	return p.events.subscribe(ctx)
}

// SignalTask implements drivers.DriverPlugin: the task's command gets the signal, not its children.
func (p *Plugin) SignalTask(taskID string, signal string) error {
	t, err := p.find(taskID)
	if err != nil {
		return err
	}
	number, err := parseSignal(signal)
	if err != nil {
		return err
	}
	process, err := t.running()
	if err != nil {
		return err
	}
	return process.Signal(p.ctx, number)
}
