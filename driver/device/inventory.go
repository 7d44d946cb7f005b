// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// inventory is what this node publishes about itself.
func (w *world) inventory(topology map[string]string) ledger.Node {
	return ledger.Node{
		Version: ledger.Version,
		Node:    w.self.node, NodeID: w.self.nodeID, Address: w.self.address,
		MachineID: w.self.machineID, BootID: w.self.bootID,
		Topology: topology, Unmanaged: w.unmanaged, Machine: w.machine,
		Problem: w.trouble,
	}
}

// gpuHealth is the health that this node publishes, of every GPU.
func (w *world) gpuHealth() ledger.Health {
	gpus := make(map[string]gpu.Health, len(w.health))
	for uuid := range w.health {
		gpus[uuid] = w.healthOf(uuid)
	}
	return ledger.Health{Version: ledger.Version, GPUs: gpus}
}

// publisher keeps the inventory and the health in the ledger, the inventory held by a session of this process.
type publisher struct {
	*engine
	session string // empty: none yet
	renewed time.Time
	node    *ledger.Node // as published with the session; nil: not yet
	ledger  string       // the ledger in which it was, see standing
}

// saidHealth is the health as published; two loops publish it.
type saidHealth struct {
	mu   sync.Mutex
	last *ledger.Health // nil: not yet, or not by the session that holds the inventory
}

// publishHealth publishes the health of this moment, unless the ledger has it.
func (e *engine) publishHealth(ctx context.Context) error {
	e.health.mu.Lock()
	defer e.health.mu.Unlock()
	w, _ := e.world.get()
	health := w.gpuHealth()
	if e.health.last != nil && reflect.DeepEqual(*e.health.last, health) {
		return nil
	}
	if err := e.books.PublishHealth(ctx, w.self.node, health); err != nil {
		return err
	}
	e.health.last = &health
	return nil
}

// publish runs a publisher until ctx ends. The session stays behind: the next process of this machine takes it over, and
// a node that is only restarting its plugin is not silent meanwhile.
func (e *engine) publish(ctx context.Context) {
	p := &publisher{engine: e}
	for {
		w, changed := e.world.get()
		pause := e.pace.session
		if w.discovered {
			err := p.once(ctx, w)
			e.reportPublished(ctx, err)
			var taken *ledger.NameTakenError
			switch {
			case errors.As(err, &taken):
				pause = e.pace.taken
			case err != nil:
				pause = spread(e.pace.retry)
			}
			if err != nil {
				changed = nil // no hurry after a failure
			}
		}
		if !wait(ctx, changed, pause) {
			return
		}
	}
}

// once publishes what has changed, and makes sure of the session.
func (p *publisher) once(ctx context.Context, w world) error {
	if now := w.standing(); now != p.ledger {
		p.forgetDocuments()
		p.ledger = now
	}
	if err := p.keepSession(ctx, w.self.node); err != nil {
		return err
	}
	if node := w.inventory(p.set.Topology); p.node == nil || !reflect.DeepEqual(*p.node, node) {
		err := p.books.PublishNode(ctx, p.session, node)
		if errors.Is(err, ledger.ErrNoSession) {
			p.forget()
		}
		if err != nil {
			return err
		}
		p.node = &node
	}
	if err := p.publishHealth(ctx); err != nil {
		return err
	}
	p.world.update(func(w *world) { w.name, w.session = ownName, p.session })
	return nil
}

// keepSession makes a session, and another one when it was lost.
func (p *publisher) keepSession(ctx context.Context, node string) error {
	if p.session != "" && time.Since(p.renewed) >= p.pace.session {
		err := p.books.Store().RenewSession(ctx, p.session)
		if errors.Is(err, ledger.ErrNoSession) {
			p.log.Warn("the session that holds this node's inventory was lost: making another one")
			p.forget()
		} else if err != nil {
			return err
		}
		p.renewed = time.Now()
	}
	if p.session == "" {
		session, err := p.books.Store().CreateSession(ctx, ledger.NodeSession(node))
		if err != nil {
			return fmt.Errorf("making a session: %w", err)
		}
		p.session, p.renewed = session, time.Now()
	}
	return nil
}

// forget makes everything be published again, by a new session.
func (p *publisher) forget() {
	p.session = ""
	p.forgetDocuments()
}

// forgetDocuments makes everything be published again: the ledger may have lost it.
func (p *publisher) forgetDocuments() {
	p.node = nil
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	p.health.last = nil
}

// reportPublished notes whether the node's name is this machine's.
func (e *engine) reportPublished(ctx context.Context, err error) {
	var taken *ledger.NameTakenError
	if !errors.As(err, &taken) {
		e.ledgerAnswered(ctx, "inventory", err)
		if err == nil {
			e.once.clear("name", "this node's name is its own now")
		}
		return
	}
	e.ledgerAnswered(ctx, "inventory", nil)
	e.once.warn("name", "no slots are offered: "+taken.Error())
	e.world.update(func(w *world) { w.name = takenName })
}

// wait waits for a change (nil: for none) or for d, and says whether ctx is still good.
func wait(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-timer.C:
	}
	return true
}
