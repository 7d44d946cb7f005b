// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"errors"
	"maps"
	"slices"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// devicePlugin is what a node's device plugin remembers.
type devicePlugin struct {
	table ledger.SlotTable // last acted on
	asked *ledger.Lineage  // the question that it answers now; nil: none
	clear []string

	inventory ledger.Node // as published last
}

// look takes a table of the same epoch that is not older, and one of another epoch after an answer in it.
func (p *devicePlugin) look(next ledger.SlotTable) {
	switch {
	case next.Rebuild:
		p.asked = &ledger.Lineage{Epoch: next.Epoch, Sequence: next.Sequence}
	case p.table.Sequence == 0, p.asked != nil && p.asked.Epoch == next.Epoch && p.asked.Sequence < next.Sequence,
		p.table.Epoch == next.Epoch && p.table.Sequence <= next.Sequence:
		p.table, p.asked = next, nil
	}
}

// ack lets every plugin look at its table and acknowledge it, or answer what it remembers; closing slots are clear when
// nothing claims them and Nomad has no living allocation on them. With a name only that node does; the allocations of one
// node may be forgotten. Nodes that are silent say nothing.
func (w *world) ack(only ...string) {
	ctx := w.t.Context()
	s := w.load()
	only = append(only, "", "")
	for name, table := range s.Tables {
		if only[0] != "" && name != only[0] || s.NodeSessions[name] == "" {
			continue
		}
		p := w.plugins[name]
		p.look(table.Doc)
		before := p.clear
		p.clear = nil
		for _, slot := range p.table.Slots {
			_, claimed := s.Claims[name][slot.ID()]
			id := slot.ID().String()
			if slices.Contains(before, id) || slot.State == ledger.SlotClosing && !claimed && (w.living(slot.ID()) == nil || name == only[1]) {
				p.clear = append(p.clear, id)
			}
		}
		ack := ledger.Ack{
			Version: ledger.Version, Epoch: p.table.Epoch, Sequence: p.table.Sequence, BootID: s.Nodes[name].Doc.BootID, Clear: p.clear,
		}
		if p.asked != nil {
			ack.Epoch, ack.Sequence = p.asked.Epoch, p.asked.Sequence
			ack.Remembered = &ledger.Remembered{Asked: p.asked.Sequence, Table: p.table, Ports: w.ports(p.table)}
		}
		must.NoError(w.t, w.ledger.PublishAck(ctx, name, ack))
	}
}

// ports are those that a plugin has told its tasks.
func (w *world) ports(table ledger.SlotTable) map[string]int {
	ports := map[string]int{}
	for _, slot := range table.Slots {
		ports[slot.Reservation] = 20100
	}
	return ports
}

// reassert lets drivers and plugins make the claims of living allocations again that the ledger has lost, and end those
// that it has again of tasks that have ended.
func (w *world) reassert() {
	ctx := w.t.Context()
	for _, node := range slices.Sorted(maps.Keys(w.plugins)) {
		for id, claim := range w.load().Claims[node] {
			if a := w.living(id); a == nil || a.ID != claim.Doc.Allocation {
				must.NoError(w.t, w.ledger.Unclaim(ctx, node, id, claim.Doc.Allocation))
			}
		}
		for _, slot := range w.plugins[node].table.Slots {
			a := w.living(slot.ID())
			if a == nil || slot.State != ledger.SlotOpen {
				continue
			}
			_, err := w.ledger.Claim(ctx, node, ledger.Claim{
				Version: ledger.Version, Reservation: slot.Reservation, Rank: slot.Rank, Allocation: a.ID, Task: slot.Owner.Task,
				Namespace: a.Job.Namespace, Job: a.Job.ID, BootID: "boot-" + node,
			}, func(ledger.Slot) error { return nil })
			if refused := (*ledger.SlotError)(nil); !errors.As(err, &refused) { // else it closes by now
				must.NoError(w.t, err)
			}
		}
	}
}

// lose deletes the whole ledger; the plugins that are not silent publish their nodes again.
func (w *world) lose() {
	before := w.load()
	root := w.ledger.Keys().Root()
	_, err := w.store.Txn(w.t.Context(), []ledger.Op{{Verb: ledger.DeleteTree, Key: root}})
	must.NoError(w.t, err)
	w.publishAgain(before)
}

// restore sets the ledger back to what was saved.
func (w *world) restore() {
	before := w.load()
	w.store.SetBack(w.saved)
	w.publishAgain(before)
}

func (w *world) publishAgain(before ledger.Snapshot) {
	for name, n := range before.Nodes {
		if before.NodeSessions[name] == "" {
			continue
		}
		session, err := w.store.CreateSession(w.t.Context(), ledger.NodeSession(name))
		must.NoError(w.t, err)
		must.NoError(w.t, w.ledger.PublishNode(w.t.Context(), session, n.Doc))
	}
}
