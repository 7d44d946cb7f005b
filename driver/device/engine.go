// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/driver/pluginconf"
	"github.com/nomad-muster/muster/placer/ledger"
)

// pace holds the waiting times of the loops.
type pace struct {
	retry    time.Duration // after a failed request to Consul or the Nomad agent
	watch    time.Duration // longest wait of a blocking query
	session  time.Duration // between looks whether the session still lives
	taken    time.Duration // between tries to get a name that another machine has
	hardware time.Duration // between tries to open NVML
	closing  time.Duration // between looks at closing slots
	foreign  time.Duration // between looks at the allocations behind claims that the plugin wrote
	settle   time.Duration // between a change and its message to Nomad, for changes that come together
	reserve  time.Duration // longest time that Reserve takes

	strangers  time.Duration // between looks at GPUs that no task has
	again      time.Duration // the same while somebody uses one
	glance     time.Duration // between the two looks at the GPUs of a new slot
	unattended time.Duration // between looks at this node's allocations during an outage
}

func productionPace() pace {
	return pace{
		retry: time.Second, watch: time.Minute, session: 5 * time.Second, taken: 10 * time.Second, hardware: 10 * time.Second,
		closing: 500 * time.Millisecond, foreign: 5 * time.Second, settle: 50 * time.Millisecond, reserve: 1800 * time.Millisecond,
		strangers: 30 * time.Second, again: 5 * time.Second, glance: 200 * time.Millisecond, unattended: time.Second,
	}
}

// links are the ways to the rest of the cluster.
type links struct {
	store ledger.Store
	agent agent
}

// connect makes the clients. Nothing is asked of anybody yet.
func connect(s settings) (links, error) {
	consul, err := s.Consul.Client()
	if err != nil {
		return links{}, err
	}
	nomad, err := newNomadAgent(s.Nomad)
	if err != nil {
		return links{}, err
	}
	return links{store: ledger.NewConsul(consul), agent: nomad}, nil
}

// engine runs the loops of one plugin process.
type engine struct {
	log   hclog.Logger
	once  *onChange
	set   settings
	pace  pace
	books *ledger.Ledger
	agent agent
	open  Opener
	gpus  gpus
	world *shared
	disk  *disk
	hosts hostFiles
	loops sync.WaitGroup

	health saidHealth
}

// newEngine reads what the last process left on disk. It fails only where going on makes no sense.
func newEngine(log hclog.Logger, set settings, ways links, open Opener, p pace) (*engine, error) {
	var w world
	var err error
	if w.self.machineID, err = pluginconf.ReadID(set.MachineIDFile); err != nil {
		return nil, fmt.Errorf("machine_id_file: %w", err)
	}
	if w.self.bootID, err = pluginconf.ReadID(set.BootIDFile); err != nil {
		return nil, fmt.Errorf("boot_id_file: %w", err)
	}
	e := &engine{
		log: log, once: newOnChange(log), set: set, pace: p, open: open,
		books: ledger.New(ways.store, set.Region), agent: ways.agent,
		disk: newDisk(set.StateDir), hosts: newHostFiles(set.StateDir),
	}
	kept, err := e.disk.load()
	if err == nil {
		err = kept.restore(&w)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		log.Info("no slot table on disk: this node starts without one", "state_dir", set.StateDir)
	case err != nil:
		log.Warn("the slot table on disk is not used", "state_dir", set.StateDir, "error", err)
	default:
		log.Info("slot table on disk", "sequence", w.table.Sequence, "slots", len(w.table.Slots), "claims", len(w.claims))
	}
	e.world = newShared(w)
	return e, nil
}

// run starts the loops, which end with ctx; loops tells when they have.
func (e *engine) run(ctx context.Context) {
	e.loops.Go(func() { e.watchHardware(ctx) })
	e.loops.Go(func() { e.watchStrangers(ctx) })
	e.loops.Go(func() { e.keepDisk(ctx) })
	e.loops.Go(func() { e.joinCluster(ctx) })
}

// joinCluster learns this node's name, which everything in the ledger needs.
func (e *engine) joinCluster(ctx context.Context) {
	who, ok := e.identify(ctx)
	if !ok {
		return
	}
	if w, _ := e.world.get(); w.self.node != "" && w.self.node != who.node {
		e.log.Warn("the slot table on disk is of another node name and is given up", "node", who.node, "before", w.self.node)
		e.world.update(func(w *world) {
			w.table, w.asked, w.claims, w.unlisted, w.cleared = ledger.SlotTable{}, nil, nil, nil, nil
		})
	}
	e.world.update(func(w *world) {
		who.machineID, who.bootID = w.self.machineID, w.self.bootID
		w.self = who
	})
	e.log.Info("this node in the ledger", "node", who.node, "node_id", who.nodeID, "address", who.address)
	e.loops.Go(func() { e.watchTable(ctx, who.node) })
	e.loops.Go(func() { e.watchClaims(ctx, who.node) })
	e.loops.Go(func() { e.fetchGangs(ctx) })
	e.loops.Go(func() { e.publish(ctx) })
	e.loops.Go(func() { e.acknowledge(ctx) })
	e.loops.Go(func() { e.watchUnattended(ctx) })
}

// identify asks the local Nomad agent until it answers: when the plugin starts, the agent does not listen yet.
func (e *engine) identify(ctx context.Context) (self, bool) {
	for {
		who, err := e.askIdentity(ctx)
		if err == nil {
			e.once.clear("identity", "the Nomad agent answers")
			return who, true
		}
		e.once.info("identity", "waiting for the local Nomad agent, as the ledger needs this node's name and ID", "error", err)
		if !wait(ctx, nil, e.pace.retry) {
			return self{}, false
		}
	}
}

func (e *engine) askIdentity(ctx context.Context) (self, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := e.agent.Self(ctx)
	if err != nil {
		return self{}, err
	}
	who := self{node: answer.node, nodeID: answer.nodeID, address: answer.address}
	pluginconf.Override(&who.node, e.set.Node)
	pluginconf.Override(&who.address, e.set.Address)
	if who.address == "" {
		who.address, err = privateAddress()
	}
	return who, err
}

// keepDisk writes the state file at every change.
func (e *engine) keepDisk(ctx context.Context) {
	for {
		w, changed := e.world.get()
		e.save(w)
		if err := e.hosts.prune(w.table); err != nil {
			e.log.Debug("old host files", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// save reports whether the disk holds the world.
func (e *engine) save(w world) bool {
	if err := e.disk.save(w); err != nil {
		e.once.warn("disk", "the slot table can't be kept on disk: after a restart this plugin would not know its slots", "error", err)
		return false
	}
	e.once.clear("disk", "the slot table is on disk again")
	return true
}

// spread is a waiting time of d with a fifth more or less, so that nodes that fail together do not come back together.
func spread(d time.Duration) time.Duration {
	return d*4/5 + time.Duration(rand.Int64N(int64(d*2/5)+1)) //nolint:gosec // G404: nothing secret
}
