// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"io/fs"
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// keptWorld has something of everything that is kept.
func keptWorld() world {
	a, b := slot("r1", 0, 0, 1), closing(slot("r2", 3, 2), "stopped")
	w := settledWorld(4, a, b)
	w.claims = claims(claimOn(a, "driver", "a1"))
	w.cleared = map[ledger.SlotID]bool{b.ID(): true}
	w.unmanaged = uuids(3)
	w.health[uuid(2)] = gpu.Health{State: gpu.Unhealthy, Reason: "XID 79"}
	w.settle()
	return w
}

func restoreFrom(t *testing.T, d *disk, machine, boot string) world {
	t.Helper()
	s, err := newDisk(d.dir).load()
	must.NoError(t, err)
	w := world{self: self{machineID: machine, bootID: boot}}
	must.NoError(t, s.restore(&w))
	w.settle()
	return w
}

func TestStateOutlivesTheProcess(t *testing.T) {
	d := newDisk(t.TempDir())
	before := keptWorld()
	before.health[uuid(2)] = gpu.Health{State: gpu.Healthy}
	before.strangers = map[string]stranger{uuid(2): {PID: 7, Users: "process 7 (python3)", Since: noon}}
	before.settle()
	must.NoError(t, d.save(before))
	after := restoreFrom(t, d, thisMachine, thisBoot)
	must.Eq(t, describeGroups(before.groups()), describeGroups(after.groups()))
	must.Eq(t, before.table, after.table)
	must.Eq(t, before.claims, after.claims)
	must.Eq(t, before.cleared, after.cleared)
	must.Eq(t, before.served, after.served)
	must.MapLen(t, 1, before.strangers)
	must.Eq(t, before.strangers, after.strangers)
	must.Eq(t, before.gangs, after.gangs)
	must.Eq(t, before.revs, after.revs)
	must.Eq(t, thisNode, after.self.node)
	must.False(t, after.discovered)
	must.False(t, after.read)
}

func TestStateOfAnotherBoot(t *testing.T) {
	d := newDisk(t.TempDir())
	must.NoError(t, d.save(keptWorld()))
	w := restoreFrom(t, d, thisMachine, "boot-2")
	must.SliceEmpty(t, w.groups())
	must.SliceEmpty(t, w.machine.GPUs, must.Sprint("GPUs may have been exchanged"))
	must.Eq(t, 7, w.table.Sequence)
	must.MapEmpty(t, w.cleared, must.Sprint("asked again"))
}

func TestStateOfAnotherMachine(t *testing.T) {
	d := newDisk(t.TempDir())
	must.NoError(t, d.save(keptWorld()))
	s, err := newDisk(d.dir).load()
	must.NoError(t, err)
	w := world{self: self{machineID: "machine-2", bootID: thisBoot}}
	must.EqError(t, s.restore(&w), "it is of another machine (machine ID machine-1)")
	must.Eq(t, 0, w.table.Sequence)
}

func TestStateFile(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		_, err := newDisk(t.TempDir()).load()
		must.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("of a newer version it is kept", func(t *testing.T) {
		d := newDisk(t.TempDir())
		newer := `{"version":2,"table":"in another form"}`
		must.NoError(t, os.WriteFile(d.path(), []byte(newer), 0o600))
		_, err := d.load()
		must.ErrorIs(t, err, errNewerState)
		must.ErrorIs(t, d.save(keptWorld()), errNewerState)
		kept, err := os.ReadFile(d.path())
		must.NoError(t, err)
		must.Eq(t, newer, string(kept))
	})
	t.Run("that can't be read it is moved aside", func(t *testing.T) {
		d := newDisk(t.TempDir())
		must.NoError(t, os.WriteFile(d.path(), []byte(`{"version":1,"tab`), 0o600))
		_, err := d.load()
		must.ErrorContains(t, err, "was renamed to "+d.path()+".unreadable")
		must.FileExists(t, d.path()+".unreadable")
		must.NoError(t, d.save(keptWorld()))
		must.Eq(t, 7, restoreFrom(t, d, thisMachine, thisBoot).table.Sequence)
	})
	t.Run("never gets an earlier world back", func(t *testing.T) {
		d := newDisk(t.TempDir())
		later := keptWorld()
		later.serial, later.table.Sequence = 2, 8
		must.NoError(t, d.save(later))
		must.NoError(t, d.save(keptWorld()))
		must.Eq(t, 8, restoreFrom(t, d, thisMachine, thisBoot).table.Sequence)
	})
	t.Run("is written only when it changes", func(t *testing.T) {
		d := newDisk(t.TempDir())
		must.NoError(t, d.save(keptWorld()))
		must.NoError(t, os.Remove(d.path()))
		must.NoError(t, d.save(keptWorld()))
		must.FileNotExists(t, d.path())
	})
}

// TestStateVersion1 reads a file as version 1 wrote it, for ever.
func TestStateVersion1(t *testing.T) {
	d := newDisk(t.TempDir())
	v1, err := os.ReadFile("testdata/state.v1.json")
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(d.path(), v1, 0o600))
	w := restoreFrom(t, d, thisMachine, thisBoot)
	kept := keptWorld()
	must.Eq(t, describeGroups(kept.groups()), describeGroups(w.groups()))
	must.Eq(t, kept.claims, w.claims)
	must.Eq(t, kept.cleared, w.cleared)
}
