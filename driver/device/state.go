// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// stateVersion is the version of the state file that this build writes. It reads no newer one, and never overwrites it.
const stateVersion = 1

// errNewerState says that the state file is of a newer build.
var errNewerState = errors.New("written by a newer version of Muster")

// state is the part of the world that outlives the plugin's process: what it needs to offer the same groups again at
// once, to answer Reserve without Consul, and to notice a ledger that was set back.
type state struct {
	Version   int                   `json:"version"`
	MachineID string                `json:"machine_id"`
	BootID    string                `json:"boot_id"`
	Node      string                `json:"node"`
	Table     ledger.SlotTable      `json:"table"`
	Asked     *ledger.Lineage       `json:"asked,omitempty"`
	Claims    []ledger.Claim        `json:"claims,omitempty"`
	Cleared   []string              `json:"cleared,omitempty"` // SlotID texts
	Served    []string              `json:"served,omitempty"`  // SlotID texts
	Gangs     map[string]gangFacts  `json:"gangs,omitempty"`
	Revisions map[string]revision   `json:"revisions,omitempty"` // by SlotID text
	Machine   gpu.Machine           `json:"machine"`
	Health    map[string]gpu.Health `json:"health,omitempty"`
	Unmanaged []string              `json:"unmanaged,omitempty"`
	Strangers map[string]stranger   `json:"strangers,omitempty"` // by UUID
}

// stateOf picks out of a world what is kept on disk.
func stateOf(w world) state {
	s := state{
		Version:   stateVersion,
		MachineID: w.self.machineID, BootID: w.self.bootID, Node: w.self.node,
		Table: w.table, Asked: w.asked, Gangs: w.gangs,
		Machine: w.machine, Health: w.health, Unmanaged: w.unmanaged, Strangers: w.strangers,
	}
	claims := maps.Clone(w.unlisted)
	if claims == nil {
		claims = map[ledger.SlotID]ledger.Claim{}
	}
	maps.Copy(claims, w.claims)
	for _, id := range sortedIDs(claims) {
		s.Claims = append(s.Claims, claims[id])
	}
	for _, id := range sortedIDs(w.cleared) {
		s.Cleared = append(s.Cleared, id.String())
	}
	for _, id := range sortedIDs(w.served) {
		s.Served = append(s.Served, id.String())
	}
	s.Revisions = make(map[string]revision, len(w.revs))
	for id, rev := range w.revs {
		s.Revisions[id.String()] = rev
	}
	return s
}

// restore puts a state into a world that knows its machine and boot. The state of another machine (a copied disk) is
// ignored; of another boot only the table counts, as GPUs may have been exchanged and nothing runs any more.
func (s state) restore(w *world) error {
	if s.MachineID != w.self.machineID {
		return fmt.Errorf("it is of another machine (machine ID %s)", s.MachineID)
	}
	w.self.node, w.table, w.asked, w.gangs = s.Node, s.Table, s.Asked, s.Gangs
	w.claims = make(map[ledger.SlotID]ledger.Claim, len(s.Claims))
	for _, claim := range s.Claims {
		w.claims[ledger.SlotID{Reservation: claim.Reservation, Rank: claim.Rank}] = claim
	}
	if s.BootID != w.self.bootID {
		return nil
	}
	w.cleared, w.served = slotSet(s.Cleared), slotSet(s.Served)
	w.revs = make(map[ledger.SlotID]revision, len(s.Revisions))
	for text, rev := range s.Revisions {
		if id, err := ledger.ParseSlotID(text); err == nil {
			w.revs[id] = rev
		}
	}
	w.machine, w.topology, w.health, w.unmanaged = s.Machine, gpu.NewTopology(s.Machine), s.Health, s.Unmanaged
	w.strangers = s.Strangers
	return nil
}

// slotSet reads the texts of slots' IDs.
func slotSet(texts []string) map[ledger.SlotID]bool {
	ids := make(map[ledger.SlotID]bool, len(texts))
	for _, text := range texts {
		if id, err := ledger.ParseSlotID(text); err == nil {
			ids[id] = true
		}
	}
	return ids
}

// disk is the state file.
type disk struct {
	dir string

	mu      sync.Mutex
	written []byte // what the file holds, as far as this process knows
	serial  uint64 // of the world that it holds
	newer   error  // set: the file must not be overwritten
}

func newDisk(dir string) *disk { return &disk{dir: dir} }

func (d *disk) path() string { return filepath.Join(d.dir, "state.json") }

// load reads the state. A missing file is fs.ErrNotExist. One that can't be read is moved aside, since what it says is of
// use to nobody but a person.
func (d *disk) load() (state, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, err := os.ReadFile(d.path())
	if err != nil {
		return state{}, err
	}
	var head struct {
		Version int `json:"version"`
	}
	var s state
	if err = json.Unmarshal(data, &head); err == nil && head.Version > stateVersion {
		d.newer = fmt.Errorf("%s has version %d and this build knows %d, so it is kept as it is; upgrade the plugin: %w",
			d.path(), head.Version, stateVersion, errNewerState)
		return state{}, d.newer
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		aside := d.path() + ".unreadable"
		return state{}, errors.Join(fmt.Errorf("%s can't be read and was renamed to %s: %w", d.path(), aside, err), os.Rename(d.path(), aside))
	}
	d.written = data
	return s, nil
}

// save writes the state, unless the file says the same already or holds a later world: several loops save. A crash leaves
// the old file or the new one.
func (d *disk) save(w world) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.newer != nil {
		return d.newer
	}
	if w.serial < d.serial {
		return nil
	}
	data, err := json.Marshal(stateOf(w))
	if err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	if bytes.Equal(data, d.written) {
		d.serial = w.serial
		return nil
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if err := writeFile(d.path(), data, 0o600, true); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	d.written, d.serial = data, w.serial
	return nil
}

// writeFile replaces a file in one step. A durable one outlives a loss of power, which takes as long as the disk does.
func writeFile(path string, data []byte, mode fs.FileMode, durable bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
