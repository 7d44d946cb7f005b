// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RunID names a run: a gang on a reservation.
type RunID struct{ Gang, Reservation string }

// RunState is a run with what its members have written.
type RunState struct {
	Run     Versioned[Run]
	Members map[int]Versioned[Member]
}

// Snapshot is the whole ledger at one moment. Read it, never change it: see Versioned.
type Snapshot struct {
	Index        uint64    // to follow from
	EpochID      string    // empty: the ledger is new or was lost, so nothing may be granted
	Leader       string    // name of the leading placer; empty: none leads
	LeaderSince  time.Time // when it took the lead, by its own clock; for people
	Levels       []string  // topology levels by which the leading placer decides, outermost first
	Nodes        map[string]Versioned[Node]
	NodeSessions map[string]string // session that holds nodes/<node>; empty: the node is silent
	Health       map[string]Versioned[Health]
	Tables       map[string]Versioned[SlotTable]
	Claims       map[string]map[SlotID]Versioned[Claim] // by node
	Acks         map[string]Versioned[Ack]
	Gangs        map[string]Versioned[Gang]
	Refusals     map[string]Versioned[Refusal] // by "<namespace>/<job>"
	Orders       map[string]Versioned[Order]   // by gang
	Queues       Versioned[Queues]             // Index 0: none were applied
	Usage        Versioned[Usage]              // Index 0: none was written
	Runs         map[RunID]RunState
	RunTimes     map[RunTimeID]Versioned[RunTime]
	// Newer are the keys of documents that this build can't read, in order. They are kept as they are, and whatever they
	// are about counts as taken: a node with one gets no grant, a slot with one is not clear.
	Newer []string

	keys    Keys
	indexes map[string]uint64 // of all keys, as they were read
}

// SetBackFrom says whether the ledger was set back or lost between an earlier reading and this one: a key has an older
// index than it had, or the index of the whole went back together with keys that are gone. An index that goes back alone
// is none: Consul forgets deletions after some time.
func (s Snapshot) SetBackFrom(earlier Snapshot) bool {
	for key, before := range earlier.indexes {
		now, there := s.indexes[key]
		if there && now < before || !there && s.Index < earlier.Index {
			return true
		}
	}
	return s.EpochID == "" && earlier.EpochID != ""
}

// Load reads the whole ledger at one moment, consistently.
func (l *Ledger) Load(ctx context.Context) (Snapshot, error) {
	listing, err := l.store.List(ctx, l.keys.Root())
	if err != nil {
		return Snapshot{}, err
	}
	return l.snapshot(listing), nil
}

// Follow waits until something in the ledger has changed after an index, or wait is over, and reads the whole ledger
// then. A Snapshot with a smaller Index than after means that the ledger was set back.
func (l *Ledger) Follow(ctx context.Context, after uint64, wait time.Duration) (Snapshot, error) {
	listing, err := l.store.WatchPrefix(ctx, l.keys.Root(), after, wait)
	if err != nil {
		return Snapshot{}, err
	}
	return l.snapshot(listing), nil
}

func (l *Ledger) snapshot(listing Listing) Snapshot {
	s := Snapshot{
		Index: listing.Index, keys: l.keys, indexes: make(map[string]uint64, len(listing.Entries)),
		Nodes: map[string]Versioned[Node]{}, NodeSessions: map[string]string{}, Health: map[string]Versioned[Health]{},
		Tables: map[string]Versioned[SlotTable]{}, Claims: map[string]map[SlotID]Versioned[Claim]{}, Acks: map[string]Versioned[Ack]{},
		Gangs: map[string]Versioned[Gang]{}, Refusals: map[string]Versioned[Refusal]{},
		Orders: map[string]Versioned[Order]{}, Runs: map[RunID]RunState{}, RunTimes: map[RunTimeID]Versioned[RunTime]{},
	}
	for _, entry := range listing.Entries {
		s.indexes[entry.Key] = entry.Index
		if !s.add(entry, l.decodeNode) {
			s.Newer = append(s.Newer, entry.Key)
		}
	}
	slices.Sort(s.Newer)
	l.forget(s.Nodes)
	return s
}

// decodeNode is decode with a memory of what was read before.
func (l *Ledger) decodeNode(entry Entry) (Versioned[Node], error) {
	hash := maphash.Bytes(l.seed, entry.Value)
	l.mu.Lock()
	known, ok := l.nodes[entry.Key]
	l.mu.Unlock()
	if ok && known.hash == hash {
		return Versioned[Node]{Doc: known.doc, Index: entry.Index}, nil
	}
	node, err := decode[Node](entry)
	if err == nil {
		l.mu.Lock()
		l.nodes[entry.Key] = decodedNode{hash: hash, doc: node.Doc}
		l.mu.Unlock()
	}
	return node, err
}

// forget drops the memory of nodes that are no longer there.
func (l *Ledger) forget(present map[string]Versioned[Node]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.nodes) == len(present) {
		return
	}
	maps.DeleteFunc(l.nodes, func(key string, _ decodedNode) bool {
		name, err := url.PathUnescape(strings.TrimPrefix(key, l.keys.Nodes()))
		_, ok := present[name]
		return err != nil || !ok
	})
}

// add takes one entry in, and says whether it was understood. Keys that the ledger does not know are passed over.
func (s *Snapshot) add(entry Entry, decodeNode func(Entry) (Versioned[Node], error)) bool {
	section, rest, _ := strings.Cut(strings.TrimPrefix(entry.Key, s.keys.Root()), "/")
	parts := strings.Split(rest, "/")
	for i := range parts {
		name, err := url.PathUnescape(parts[i])
		if err != nil {
			return false
		}
		parts[i] = name
	}
	one, two := len(parts) == 1, len(parts) == 2
	switch {
	case section == "leader":
		doc := leaderOf(entry)
		s.Leader, s.LeaderSince, s.Levels = doc.Name, doc.Since, doc.Levels
	case section == "epoch":
		epoch, err := decode[Epoch](entry)
		s.EpochID = epoch.Doc.ID
		return err == nil
	case section == "queues" && rest == "":
		return keepOne(&s.Queues, entry)
	case section == "usage" && rest == "":
		return keepOne(&s.Usage, entry)
	case section == "nodes" && one:
		s.NodeSessions[parts[0]] = entry.Session
		node, err := decodeNode(entry)
		return keep(s.Nodes, parts[0], node, err)
	case section == "health" && one:
		return keepEntry(s.Health, parts[0], entry)
	case section == "slots" && one:
		return keepEntry(s.Tables, parts[0], entry)
	case section == "claims" && two:
		return s.addClaim(parts[0], parts[1], entry)
	case section == "acks" && one:
		return keepEntry(s.Acks, parts[0], entry)
	case section == "gangs" && one:
		return keepEntry(s.Gangs, parts[0], entry)
	case section == "refusals" && two:
		return keepEntry(s.Refusals, parts[0]+"/"+parts[1], entry)
	case section == "orders" && one:
		return keepEntry(s.Orders, parts[0], entry)
	case section == "runtimes" && len(parts) == 3:
		doc, err := decode[RunTime](entry)
		if err == nil {
			s.RunTimes[RunTimeID{Queue: parts[0], Namespace: parts[1], Job: parts[2]}] = doc
		}
		return err == nil
	case section == "runs" && len(parts) >= 2:
		return s.addRun(RunID{Gang: parts[0], Reservation: parts[1]}, parts[2:], entry)
	}
	return true
}

func keepOne[T document](into *Versioned[T], entry Entry) bool {
	doc, err := decode[T](entry)
	if err == nil {
		*into = doc
	}
	return err == nil
}

func keepEntry[T document](into map[string]Versioned[T], name string, entry Entry) bool {
	doc, err := decode[T](entry)
	return keep(into, name, doc, err)
}

func keep[T any](into map[string]Versioned[T], name string, doc Versioned[T], err error) bool {
	if err == nil {
		into[name] = doc
	}
	return err == nil
}

// addClaim takes a claim in even when it can't be read: the slot is claimed whoever has it.
func (s *Snapshot) addClaim(node, name string, entry Entry) bool {
	id, claim, err := decodeClaim(name, entry)
	if id == (SlotID{}) {
		return false
	}
	if s.Claims[node] == nil {
		s.Claims[node] = map[SlotID]Versioned[Claim]{}
	}
	s.Claims[node][id] = claim
	return err == nil
}

// decodeClaim reads a claim whose slot is named by its key. A claim of a newer version comes with its slot alone and an
// error; a key that names no slot, with the zero ID.
func decodeClaim(name string, entry Entry) (SlotID, Versioned[Claim], error) {
	id, err := ParseSlotID(name)
	if err != nil {
		return SlotID{}, Versioned[Claim]{}, err
	}
	claim, err := decode[Claim](entry)
	if err != nil {
		claim = Versioned[Claim]{Doc: Claim{Reservation: id.Reservation, Rank: id.Rank}, Index: entry.Index}
	}
	return id, claim, err
}

// addRun takes a run (no parts) or one of its members ("members", rank) in.
func (s *Snapshot) addRun(id RunID, parts []string, entry Entry) bool {
	state, ok := s.Runs[id]
	if !ok {
		state.Members = map[int]Versioned[Member]{}
	}
	defer func() { s.Runs[id] = state }()
	if len(parts) == 0 {
		var err error
		state.Run, err = decode[Run](entry)
		return err == nil
	}
	return addMember(state.Members, parts[len(parts)-1], entry)
}

func addMember(into map[int]Versioned[Member], name string, entry Entry) bool {
	rank, err := strconv.Atoi(name)
	if err != nil {
		return false
	}
	member, err := decode[Member](entry)
	if err == nil {
		into[rank] = member
	}
	return err == nil
}

// leaderDoc is what a leading placer says about itself, for people.
type leaderDoc struct {
	Name   string    `json:"name"`
	Since  time.Time `json:"since,omitzero"`
	Levels []string  `json:"levels,omitempty"`
}

// leaderOf is who leads; the zero leaderDoc: nobody.
func leaderOf(entry Entry) leaderDoc {
	var doc leaderDoc
	if entry.Session == "" || json.Unmarshal(entry.Value, &doc) != nil {
		return leaderDoc{}
	}
	return doc
}

// unreadable says whether the document under a key is one that this build can't read.
func (s Snapshot) unreadable(key string) bool {
	_, found := slices.BinarySearch(s.Newer, key)
	return found
}
