// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-muster/muster/driver/version"
	"github.com/nomad-muster/muster/placer/ledger"
)

// Name is the plugin's name, the file name of its binary and the label of its block in the agent's configuration.
const Name = "nomad-device-muster"

// Plugin implements Nomad's device plugin interface. Nomad launches it several times at each agent start only to read its
// schema and to check its configuration, so that nothing has an effect before the first Fingerprint, Reserve or Stats.
type Plugin struct {
	ctx     context.Context // the process's life
	log     hclog.Logger
	once    *onChange
	open    Opener
	connect func(settings) (links, error)
	pace    pace

	mu     sync.Mutex
	set    *settings // nil: not configured yet
	engine *engine   // nil: not started yet
}

var _ device.DevicePlugin = (*Plugin)(nil)

// New makes the plugin. Its loops end with ctx.
func New(ctx context.Context, log hclog.Logger, open Opener) *Plugin {
	log = log.Named(Name)
	return &Plugin{ctx: ctx, log: log, once: newOnChange(log), open: open, connect: connect, pace: productionPace()}
}

// PluginInfo implements base.BasePlugin.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDevice,
		PluginApiVersions: []string{device.ApiVersion010},
		PluginVersion:     version.Version,
		Name:              Name,
	}, nil
}

// ConfigSchema implements base.BasePlugin.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) { return configSpec(), nil }

// SetConfig implements base.BasePlugin. It only checks and keeps the configuration.
func (p *Plugin) SetConfig(c *base.Config) error {
	var config Config
	if err := base.MsgPackDecode(c.PluginConfig, &config); err != nil {
		return fmt.Errorf("reading the configuration of plugin %s: %w", Name, err)
	}
	set, err := config.check()
	if err != nil {
		return fmt.Errorf("configuration of plugin %s: %w", Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = &set
	return nil
}

// errNotConfigured is a call out of order.
var errNotConfigured = errors.New("plugin " + Name + " was not configured")

// ready refuses calls of a plugin that was not configured or is disabled.
func (p *Plugin) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.set == nil:
		return errNotConfigured
	case !p.set.Enabled:
		return device.ErrPluginDisabled
	}
	return nil
}

// started returns the engine, and starts it at the first call.
func (p *Plugin) started() (*engine, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine != nil {
		return p.engine, nil
	}
	e, err := p.start(*p.set)
	if err != nil {
		p.once.warn("start", "the plugin can't start, so no devices are offered; it is tried again", "every", p.pace.hardware.String(), "error", err)
		return nil, err
	}
	p.engine = e
	return e, nil
}

func (p *Plugin) start(set settings) (*engine, error) {
	p.once.info("configuration", "configuration", append([]any{"version", version.String()}, set.describe()...)...)
	ways, err := p.connect(set)
	if err != nil {
		return nil, err
	}
	e, err := newEngine(p.log, set, ways, p.open, p.pace)
	if err != nil {
		return nil, err
	}
	e.run(p.ctx)
	return e, nil
}

// startedAtLast tries until the engine starts; nil: ctx has ended.
func (p *Plugin) startedAtLast(ctx context.Context) *engine {
	for {
		if e, err := p.started(); err == nil {
			return e
		}
		if !wait(ctx, nil, p.pace.hardware) {
			return nil
		}
	}
}

// Fingerprint implements device.DevicePlugin. The first message comes at once, since the agent waits for it before it
// registers the node and restores allocations; later ones only when something has changed. Whatever is wrong, the stream
// goes on: after an error Nomad would not ask again before its next start.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	out := make(chan *device.FingerprintResponse)
	go func() {
		defer close(out)
		e, err := p.started()
		if err != nil {
			select {
			case <-ctx.Done():
				return
			case out <- device.NewFingerprint():
			}
			e = p.startedAtLast(ctx)
		}
		if e != nil {
			e.streamGroups(ctx, out)
		}
	}()
	return out, nil
}

// streamGroups sends the groups at each change of their values until ctx ends. It waits for nothing, not even the disk.
func (e *engine) streamGroups(ctx context.Context, out chan<- *device.FingerprintResponse) {
	var last []*device.DeviceGroup
	for first := true; ; first = false {
		w, changed := e.world.get()
		if groups := w.groups(); first || !sameGroups(groups, last) {
			select {
			case <-ctx.Done():
				return
			case out <- device.NewFingerprint(groups...):
				last = groups
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if !wait(ctx, nil, e.pace.settle) {
			return
		}
	}
}

// Stats implements device.DevicePlugin.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration) (<-chan *device.StatsResponse, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	if interval <= 0 {
		return nil, fmt.Errorf("statistics every %s can't be sent: give a positive interval", interval)
	}
	out := make(chan *device.StatsResponse)
	go func() {
		defer close(out)
		if e := p.startedAtLast(ctx); e != nil {
			e.streamStats(ctx, out, interval)
		}
	}()
	return out, nil
}

// Reserve implements device.DevicePlugin. It knows nothing but the IDs, may be called several times for them, and answers
// within 2 s: a call that hangs would also hang the end of the job.
func (p *Plugin) Reserve(ids []string) (*device.ContainerReservation, error) {
	e, err := p.started()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.pace.reserve)
	defer cancel()
	r, err := e.reserve(ctx, ids)
	if err != nil {
		e.log.Warn("a start was refused", "ids", ids, "error", err)
		return nil, err
	}
	return r, nil
}

// reserve waits only for what a plugin that has just started does not know yet.
func (e *engine) reserve(ctx context.Context, ids []string) (*device.ContainerReservation, error) {
	slotIDs, err := isSlot(ids)
	if err != nil {
		return nil, err
	}
	for {
		w, changed := e.world.get()
		var slot ledger.Slot
		if slotIDs {
			slot, err = w.slotFor(ids)
		} else {
			err = w.checkPlain(ids)
		}
		switch {
		case err == nil && slotIDs:
			return e.reserveSlot(ctx, w, slot, ids)
		case err == nil:
			return plainReservation(ids), nil
		case w.discovered && (w.read || !slotIDs):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (the plugin has just started and has not heard from all of NVML, Consul and the Nomad agent yet)", err)
		case <-changed:
		}
	}
}

// reserveSlot serves a slot that was found open. For any driver but Muster's own the claim is written here.
func (e *engine) reserveSlot(ctx context.Context, w world, slot ledger.Slot, ids []string) (*device.ContainerReservation, error) {
	nodes := findDeviceNodes(e.set.DevRoot, w.gpusOf(slot))
	r, err := w.slotReservation(slot, e.hosts.path(slot.ID()), nodes)
	if err != nil {
		return nil, err
	}
	if _, err := e.hosts.write(slot.ID(), w.gangs[slot.Reservation]); err != nil {
		return nil, err
	}
	if err := e.checkUnused(ctx, w, slot); err != nil {
		return nil, err
	}
	e.world.update(func(w *world) { w.serve(slot.ID()) })
	if slot.Driver != musterDriver {
		if err := e.claim(ctx, w, slot, ids); err != nil {
			return nil, fmt.Errorf("slot %s can't be claimed for a task of driver %s: %w", slotName(slot), slot.Driver, err)
		}
	}
	return r, nil
}

// claim finds the allocation that is about to start, and claims the slot for it if it is the owner's.
func (e *engine) claim(ctx context.Context, w world, slot ledger.Slot, ids []string) error {
	if w.self.nodeID == "" {
		return errors.New("the Nomad agent has not answered yet")
	}
	allocs, err := e.agent.Allocations(ctx, w.self.nodeID)
	if err != nil {
		return err
	}
	if hasSucceeded(ids, allocs) {
		return errors.New("its member has finished already, and waits only for the end of its gang")
	}
	holder, task, found := holderOf(ids, allocs)
	if !found {
		return fmt.Errorf("the Nomad agent knows no allocation that is to start on these GPUs (does the plugin's Nomad token have read-job in namespace %s?)", slot.Owner.Namespace)
	}
	if err := owns(holder, slot); err != nil {
		return err
	}
	claim := ledger.Claim{
		Version: ledger.Version, Reservation: slot.Reservation, Rank: slot.Rank,
		Allocation: holder.id, Task: task, Namespace: holder.namespace, Job: holder.job,
		By: claimedByPlugin, BootID: w.self.bootID, At: time.Now().UTC(),
	}
	var refused error
	_, err = e.books.Claim(ctx, w.self.node, claim, func(now ledger.Slot) error {
		if refused = owns(holder, now); !slices.Equal(now.GPUs, slot.GPUs) {
			refused = errors.New("the slot has other GPUs in the ledger")
		}
		return refused
	})
	if refused == nil { // whatever else went wrong, the ledger was asked
		e.asked(context.WithoutCancel(ctx), "claim", err)
	}
	if err == nil {
		e.world.update(func(w *world) { w.takeClaim(claim) })
	}
	return err
}
