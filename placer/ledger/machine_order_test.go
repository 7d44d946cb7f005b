// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"errors"
	"maps"
	"slices"

	"pgregory.net/rapid"
)

// elect ends the leader's session and makes another.
func (m *machine) elect() {
	if m.term.Session != "" {
		m.past = append(m.past, m.term)
		m.ok(m.store.DestroySession(m.ctx, m.term.Session))
	}
	id, err := m.store.CreateSession(m.ctx, SessionSpec{Name: "leader"})
	m.ok(err)
	m.term = Lease{Session: id, Key: m.l.Keys().Leader()}
	won := false
	for range 1000 {
		if won, err = m.clean.lock(m.ctx, m.term, CandidateSpec{Name: "leader"}); won {
			break
		}
		// A ledger that was set back has an old session hold the key again, until its check fails.
		entry, getErr := m.store.Get(m.ctx, m.term.Key)
		m.ok(errors.Join(err, getErr))
		m.ok(m.store.DestroySession(m.ctx, entry.Session))
	}
	if !won {
		m.Fatal("nobody can lead")
	}
	epoch, err := m.clean.NewEpoch(m.ctx, m.term)
	m.ok(err)
	m.epoch, m.seen = epoch.ID, Snapshot{}
}

// ask asks a node what it remembers.
func (m *machine) ask(node string) {
	if asking, due := BuildAsk(m.snapshot(), node); due {
		m.commitTable(node, asking)
	}
}

// restore takes a node's answer.
func (m *machine) restore(node string) {
	s := m.snapshot()
	restored, due := BuildRestore(s, node)
	if !due {
		return
	}
	if s.Contradicted(node) { // what the ledger says of these gangs is to be put in order
		for _, slot := range slices.Concat(s.Tables[node].Doc.Slots, s.Acks[node].Doc.Remembered.Table.Slots) {
			m.doubted[slot.Owner.Gang] = true
		}
	}
	m.commitTable(node, restored)
}

// adopt gives gangs their reservations back, closing if any of it is.
func (m *machine) adopt() {
	s := m.snapshot()
	for _, orphans := range s.Orphans() {
		slot := orphans[0]
		gang := asked(slot.Owner.Gang, slot.Size, len(slot.GPUs))
		gang.State, gang.Reservation = GangReserved, &Grant{ID: slot.Reservation}
		for node, slots := range s.Found(slot.Reservation) {
			for _, member := range slots {
				if member.State == SlotClosing {
					gang.State = GangClosing
				}
				gang.Reservation.Placements = append(gang.Reservation.Placements, Placement{Node: node, Group: "worker", Rank: member.Rank, Members: 1})
			}
		}
		m.decide(BuildAdopt(s, gang))
	}
}

// forget takes reservations out of gangs whose nodes do not have them.
func (m *machine) forget() {
	s := m.snapshot()
	for _, gang := range s.Gangs {
		m.decide(BuildForget(s, waiting(gang.Doc), false))
	}
}

// die is a task of which only the claim is left: its driver does not end it.
func (m *machine) die(*rapid.T) {
	if ids := slices.SortedFunc(maps.Keys(m.procs), compareSlots); len(ids) > 0 {
		delete(m.procs, pick(m, "process", ids))
	}
}

// vouch is an operator who has looked at the machines of a closing gang, and at whose word its slots go with their claims,
// the claims first if there are too many of both.
func (m *machine) vouch(*rapid.T) {
	s := m.snapshot()
	name, ok := m.anyGang(s)
	gang := s.Gangs[name].Doc
	if !ok || gang.State != GangClosing || !m.idle(gang.Reservation.ID) {
		return
	}
	change, err := BuildRelease(s, waiting(gang), Release{Vouched: true})
	if err == nil && rapid.Bool().Draw(m.T, "claims first") {
		order, err := m.clean.PutOrder(m.ctx, Order{Gang: name, Kind: OrderRelease})
		if err != nil {
			return
		}
		m.commit(func(lease Lease) error { return m.l.EndClaims(m.ctx, lease, s.Gangs[name], order, change.Claims) })
		_, err = m.clean.WithdrawOrder(m.ctx, order)
		m.ok(err)
		return
	}
	m.decide(change, err)
}

// vouchOrphan is the same for slots that no gang holds.
func (m *machine) vouchOrphan(*rapid.T) {
	s, node := m.snapshot(), m.anyNode()
	orphans := s.Orphans()[node]
	if len(orphans) == 0 || orphans[0].State != SlotClosing || !m.idle(orphans[0].Reservation) {
		return
	}
	reservation := orphans[0].Reservation
	if table, due, err := BuildSweep(s, node, reservation); err == nil && due {
		m.commit(func(lease Lease) error {
			_, err := m.l.CommitTable(m.ctx, lease, node, table, s.ClaimsOn(node, reservation)...)
			return err
		})
	}
}

// idle says whether nothing of a reservation runs, and notes that an operator has said so.
func (m *machine) idle(reservation string) bool {
	for id := range m.procs {
		if id.Reservation == reservation {
			return false
		}
	}
	m.vouched[reservation] = true
	return true
}

// reassert is drivers and plugins that make the claims anew of what runs, and end those of what does not.
func (m *machine) reassert() {
	for id, p := range m.procs {
		claim := claimOf(id.Reservation, id.Rank, p.allocation)
		claim.BootID = m.nodes[p.node].bootID()
		_, _ = m.clean.Claim(m.ctx, p.node, claim, anyone) // the slot may not be back yet, or close
	}
	for node, claims := range m.load().Claims {
		for id, claim := range claims {
			if p, runs := m.procs[id]; !runs || p.allocation != claim.Doc.Allocation {
				m.ok(m.clean.Unclaim(m.ctx, node, id, claim.Doc.Allocation))
			}
		}
	}
}

// settle asks all nodes and takes their answers, without faults.
func (m *machine) settle() {
	for node := range m.nodes {
		if asking, due := BuildAsk(m.read(), node); due {
			_, err := m.clean.CommitTable(m.ctx, m.term, node, asking)
			m.ok(err)
		}
		m.lookAt(node)
		m.ack(node)
		if restored, due := BuildRestore(m.read(), node); due {
			_, err := m.clean.CommitTable(m.ctx, m.term, node, restored)
			m.ok(err)
		}
		m.lookAt(node)
		m.ack(node)
	}
}

// wrapUp is a leader that puts everything in order: no gang is in part, nothing runs without its slot, and the nodes
// agree with the ledger.
func (m *machine) wrapUp() {
	m.store.fault, m.store.late = None, nil
	m.elect()
	m.settle()
	m.reassert()
	s := m.read()
	for name, gang := range s.Gangs {
		if change, err := BuildForget(s, waiting(gang.Doc), false); err == nil {
			_, err := m.clean.Commit(m.ctx, m.term, change)
			m.ok(err)
		} else if gang.Doc.Reservation != nil && !inOrder(s, gang.Doc) {
			change, err := BuildClose(s, closing(gang.Doc), "test")
			m.ok(err)
			_, err = m.clean.Commit(m.ctx, m.term, change)
			m.ok(err)
		}
		delete(m.doubted, name)
	}
	for node := range m.nodes {
		if swept, due, err := BuildSweep(m.read(), node, ""); due {
			m.ok(err)
			_, err := m.clean.CommitTable(m.ctx, m.term, node, swept)
			m.ok(err)
		}
	}
	m.check(m.T)
	s = m.load()
	for node := range m.nodes {
		if s.Unheard(node) {
			m.Fatalf("node %s has not answered", node)
		}
	}
}

// inOrder says whether a gang has all of its slots, in the state that it is in.
func inOrder(s Snapshot, gang Gang) bool {
	found, right := 0, 0
	for _, slots := range s.Found(gang.Reservation.ID) {
		for _, slot := range slots {
			found++
			if (slot.State == SlotClosing) == (gang.State == GangClosing) {
				right++
			}
		}
	}
	return found == gang.Spec.Size() && right == found
}
