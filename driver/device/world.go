// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// world is everything that this node's plugin knows at one moment. Every decision is a function of it. What its maps,
// slices and pointers lead to is never changed; they are replaced.
type world struct {
	serial uint64 // counts the changes in this process
	self   self
	name   naming

	machine    gpu.Machine
	topology   *gpu.Topology
	health     map[string]gpu.Health
	unmanaged  []string // UUIDs
	discovered bool     // machine and health are of this process, not from disk
	trouble    string   // why no GPU can be read; empty: they can

	table   ledger.SlotTable
	read    bool            // the ledger has been asked for the table since this process started
	asked   *ledger.Lineage // the table by which the placer asks what this node remembers; nil: it does not
	setBack string          // why the ledger's own table is not taken; empty: table is the ledger's
	session string          // that holds the inventory; changes whenever everything is to be published again

	claims   map[ledger.SlotID]ledger.Claim
	unlisted map[ledger.SlotID]ledger.Claim // in force although the ledger has lost them
	gangs    map[string]gangFacts           // by reservation
	revs     map[ledger.SlotID]revision
	cleared  map[ledger.SlotID]bool // closing slots acknowledged as clear; never taken back
	served   map[ledger.SlotID]bool // slots that a task was started on, or may have been
	kept     map[ledger.SlotID]busy // what keeps closing slots from being clear

	strangers  map[string]stranger    // who uses GPUs that no task has, by UUID
	outage     bool                   // Consul does not answer
	unattended map[ledger.SlotID]bool // during an outage: open slots with no living member
}

// self says who this node is.
type self struct {
	node      string // Nomad node name, the name in the ledger
	nodeID    string
	address   string
	machineID string
	bootID    string
}

// naming says whether the node's name in the ledger is this machine's.
type naming int

const (
	unknownName naming = iota // not published yet in this process: go on with what is known, write nothing
	ownName
	takenName // another machine that is alive holds it: offer no slots, write nothing
)

// gangFacts is what Reserve tells a task about its gang, kept so that it can do so while Consul is down.
type gangFacts struct {
	Gang        string `json:"gang"`
	Reservation string `json:"reservation"`
	Hosts       []host `json:"hosts"` // one per member, in rank order
	MasterPort  int    `json:"master_port"`
}

// host is where one member of a gang is.
type host struct {
	Address string `json:"addr"`
	Node    string `json:"node"`
	Rank    int    `json:"rank"`
	Group   string `json:"group"`
	GPUs    int    `json:"gpus"`
}

// revision counts the health changes of a slot's GPUs while it was not claimed. Nomad remembers by a hash of a group's
// attributes, not of its health, that a group can't serve a job; a new number makes it look again.
type revision struct {
	Rev    int    `json:"rev"`
	Health string `json:"health"` // one letter per GPU at that revision
}

// claimed says whether a slot of this boot is in use.
func (w *world) claimed(id ledger.SlotID) bool {
	claim, ok := w.claims[id]
	lost, unlisted := w.unlisted[id]
	return ok && w.holds(claim) || unlisted && w.holds(lost)
}

// holds says whether a claim means anything: the processes of another boot are gone.
func (w *world) holds(claim ledger.Claim) bool { return claim.BootID == w.self.bootID }

// refusal says why a slot is neither offered nor served; empty: it is. A claimed open slot is refused only where its
// claim can't be of this machine and boot, or its task has ended while Consul is away.
func (w *world) refusal(s ledger.Slot) string {
	if why := w.void(s); why != "" {
		return why
	}
	if w.unattended[s.ID()] {
		return "is not offered: Consul does not answer, so that no task can be started on it"
	}
	if w.claimed(s.ID()) {
		return ""
	}
	_, known := w.gangs[s.Reservation]
	switch {
	case w.name == takenName:
		return "is not offered: another machine has this node's name"
	case w.setBack != "":
		return "is not offered: " + w.setBack
	case !known:
		return "is not ready: the hosts of its gang have not been read from the ledger yet"
	}
	return ""
}

// void says why a slot can never be started on any more.
func (w *world) void(s ledger.Slot) string {
	switch {
	case s.State == ledger.SlotClosing:
		return joinReason("is closing", s.Why)
	case s.State != ledger.SlotOpen:
		return "is in the unknown state " + string(s.State)
	case s.MachineID != w.self.machineID:
		return "was granted on another machine of this name"
	case s.BootID != w.self.bootID:
		return "was granted before this machine started anew"
	case len(s.GPUs) == 0:
		return "has no GPUs"
	}
	return ""
}

func joinReason(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// slotName is how people call a slot.
func slotName(s ledger.Slot) string { return s.Owner.Gang + "." + strconv.Itoa(s.Rank) }

// gpu finds one GPU of the machine.
func (w *world) gpu(uuid string) (gpu.GPU, bool) {
	for _, g := range w.machine.GPUs {
		if g.UUID == uuid {
			return g, true
		}
	}
	return gpu.GPU{}, false
}

// healthOf is a GPU's health; one that nobody vouches for is lost.
func (w *world) healthOf(uuid string) gpu.Health {
	h, ok := w.health[uuid]
	if !ok {
		return gpu.Health{State: gpu.Lost, Reason: "NVML does not report it"}
	}
	if s, some := w.strangers[uuid]; some && h.State == gpu.Healthy {
		return s.health()
	}
	return h
}

// settle keeps what follows from other fields in step after a change.
func (w *world) settle() {
	w.raiseRevisions()
	present := map[ledger.SlotID]bool{}
	reservations := map[string]bool{}
	for _, s := range w.table.Slots {
		present[s.ID()] = true
		reservations[s.Reservation] = true
	}
	w.cleared = keep(w.cleared, func(id ledger.SlotID) bool { return present[id] })
	w.unlisted = keep(w.unlisted, func(id ledger.SlotID) bool { return present[id] })
	w.settleTrouble(present)
	w.gangs = keep(w.gangs, func(reservation string) bool { return reservations[reservation] })
}

// keep returns the map without the keys that are not wanted, and the same map if none is.
func keep[K comparable, V any](all map[K]V, wanted func(K) bool) map[K]V {
	for key := range all {
		if !wanted(key) {
			rest := maps.Clone(all)
			maps.DeleteFunc(rest, func(k K, _ V) bool { return !wanted(k) })
			return rest
		}
	}
	return all
}

// raiseRevisions starts a revision for each new slot and raises it where health has changed while nobody had the slot.
func (w *world) raiseRevisions() {
	revs := make(map[ledger.SlotID]revision, len(w.table.Slots))
	for _, s := range w.table.Slots {
		now := w.healthLetters(s)
		rev, known := w.revs[s.ID()]
		if !known || rev.Health != now && !w.claimed(s.ID()) {
			rev = revision{Rev: rev.Rev + 1, Health: now}
		}
		revs[s.ID()] = rev
	}
	w.revs = revs
}

func (w *world) healthLetters(s ledger.Slot) string {
	var letters strings.Builder
	for _, uuid := range s.GPUs {
		if w.healthOf(uuid).State == gpu.Healthy {
			letters.WriteByte('h')
		} else {
			letters.WriteByte('u') // Nomad knows no difference between unhealthy and lost
		}
	}
	return letters.String()
}

// shared is the world as the loops and calls share it.
type shared struct {
	mu      sync.Mutex
	world   world
	changed chan struct{} // closed at the next change
}

func newShared(w world) *shared {
	w.settle()
	return &shared{world: w, changed: make(chan struct{})}
}

// get returns the world and a channel that is closed when it has changed.
func (s *shared) get() (world, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world, s.changed
}

// update changes the world. Waiters are woken only if it really is another one.
func (s *shared) update(change func(*world)) world {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.world
	change(&next)
	next.settle()
	if !reflect.DeepEqual(next, s.world) {
		next.serial++
		s.world = next
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return s.world
}

// sortedIDs returns the keys of a map by slot in a fixed order.
func sortedIDs[V any](m map[ledger.SlotID]V) []ledger.SlotID {
	ids := slices.Collect(maps.Keys(m))
	slices.SortFunc(ids, func(a, b ledger.SlotID) int { return strings.Compare(a.String(), b.String()) })
	return ids
}
