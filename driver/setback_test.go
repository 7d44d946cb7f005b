// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// everWhole waits until the ledger has all that a running gang's drivers have to say.
func (w *world) everWhole(run ledger.Run) {
	w.t.Helper()
	for rank := range w.size {
		eventually(w.t, fmt.Sprintf("the claim of rank %d is back", rank), func() bool { return w.claims(rank) == 1 })
		eventually(w.t, fmt.Sprintf("rank %d says that it runs", rank), func() bool {
			member := w.member(rank)
			return member.State == ledger.MemberRunning && member.Generation == run.Generation
		})
	}
	eventually(w.t, "the run is back as it was", func() bool {
		now := w.run()
		return now.Phase == run.Phase && now.Generation == run.Generation && now.MasterPort == run.MasterPort
	})
}

// setBack restores a snapshot, as the placer answers it: with a table of a new epoch, by which everybody notices.
func (w *world) setBack(saved ledger.Saved) {
	w.store.SetBack(saved)
	w.epoch = "rebuilt"
	w.grant()
}

func TestALedgerThatWasLost(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Minute)
	run := w.run()
	w.store.SetBack(ledger.Saved{})
	w.epoch = "rebuilt"
	w.grant()
	w.everWhole(run)
	w.finish(tasks)
}

func TestALedgerThatIsRebuiltLate(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Minute)
	run := w.run()
	w.store.SetBack(ledger.Saved{})
	for _, task := range tasks {
		task.restart() // what it knew is on disk
		must.NoError(t, task.recover())
	}
	must.Eq(t, 0, w.claims(0))
	w.epoch = "rebuilt"
	w.grant()
	for rank := range tasks {
		eventually(t, "the claim is back", func() bool { return w.claims(rank) == 1 })
	}
	eventually(t, "the run is there", func() bool { return w.run().Phase == ledger.RunRunning && w.run().Generation == run.Generation })
	w.finish(tasks)
}

func TestALedgerThatWasSetBack(t *testing.T) {
	t.Run("to before the claims", func(t *testing.T) {
		w := newWorld(t, 2)
		before := w.store.Save()
		tasks := w.startNoting(time.Minute)
		run := w.run()
		w.setBack(before)
		w.everWhole(run)
		w.finish(tasks)
	})
	t.Run("to an earlier generation", func(t *testing.T) {
		w := newWorld(t, 2)
		tasks := w.startNoting(time.Minute)
		before := w.store.Save()
		tasks[1].stopForRestart()
		tasks[1] = tasks[1].startAgain()
		w.everStarted(tasks, "1", "2")
		run := w.run()
		w.setBack(before)
		w.everWhole(run)
		must.Eq(t, []string{"1", "2"}, tasks[0].starts())
		w.finish(tasks)
	})
	t.Run("to a moment between two generations", func(t *testing.T) {
		w := newWorld(t, 2)
		tasks := w.startNoting(time.Minute)
		tasks[0].stopForRestart()
		eventually(t, "the other waits", func() bool { return w.member(1).Generation == 2 })
		before := w.store.Save()
		tasks[0] = tasks[0].startAgain()
		w.everStarted(tasks, "1", "2")
		run := w.run()
		w.setBack(before)
		w.everWhole(run)
		w.finish(tasks)
	})
}

// A leader that was restarted with its ledger lost knows of the run from its own and the others' documents alone.
func TestARestartAfterTheLedgerWasLost(t *testing.T) {
	w := newWorld(t, 2)
	tasks := w.startNoting(time.Minute)
	w.store.SetBack(ledger.Saved{})
	must.NoError(t, tasks[0].StopTask(tasks[0].cfg.ID, patience, ""))
	tasks[0] = tasks[0].startAgain()
	w.epoch = "rebuilt"
	w.grant()
	w.everStarted(tasks, "1", "2")
	w.finish(tasks)
}

// A claim that is somebody else's by now ends nothing.
func TestAClaimThatIsNotGivenBack(t *testing.T) {
	w := newWorld(t, 1)
	tasks := w.startNoting(time.Minute)
	w.store.SetBack(ledger.Saved{})
	other := ledger.Claim{Version: ledger.Version, Reservation: reservation, Allocation: "other"}
	w.put(w.ledger.Keys().Claim(node(0), ledger.SlotID{Reservation: reservation}), other)
	w.epoch = "rebuilt"
	w.grant()
	eventually(t, "the run is back", func() bool { return w.run().Phase == ledger.RunRunning })
	tasks[0].touch("go")
	must.True(t, tasks[0].wait().Successful())
}
