// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// TestCloseAsksTheLedgerAgain: Nomad's news of an end may come before the ledger's news of the success, which a leader
// must not take for a failure.
func TestCloseAsksTheLedgerAgain(t *testing.T) {
	w := running(t)
	behind := w.load()

	w.run("train", ledger.RunSucceeded, "")
	zero := 0
	w.end("train", 0, structs.AllocClientStatusComplete, nomad.Task{Exit: &zero})
	w.leader.snapshot, w.leader.doubtful = behind, false
	_, err := w.leader.decide(t.Context())
	must.NoError(t, err)

	g := w.load().Gangs["train"].Doc
	must.Eq(t, ledger.GangClosing, g.State)
	must.Eq(t, ledger.GangFinished, g.After, must.Sprintf("%+v", g.Why))
}

// running is a world in which the gang train runs on n1.
func running(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.addNode("n1", "r1", 8)
	w.settle()
	w.ack()
	w.happen([]string{"job", "train", "gpus=8"})
	w.settle()
	w.place()
	w.claim("train")
	w.run("train", ledger.RunRunning, "")
	w.settle()
	must.Eq(t, ledger.GangRunning, w.load().Gangs["train"].Doc.State)
	return w
}

// TestLostAnswersAreReadBack: whatever becomes of the transaction of a grant, the gang is granted once.
func TestLostAnswersAreReadBack(t *testing.T) {
	for name, fault := range map[string]ledger.Fault{
		"done, but the answer is lost":  ledger.Lose,
		"never done":                    ledger.Drop,
		"not done, and known":           ledger.Refuse,
		"done when nobody waits for it": ledger.Late,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addNode("n1", "r1", 8)
			w.addNode("n2", "r1", 8)
			w.settle()
			w.happen([]string{"job", "train", "count=2", "gpus=8"})
			w.settle()
			w.ack()
			faults := []ledger.Fault{fault}
			w.store.Inject(func(c ledger.Call) ledger.Fault {
				if c.Method != "Txn" || len(faults) == 0 || len(c.Ops) < 4 {
					return ledger.None
				}
				faults = nil
				return fault
			})
			w.settle()
			w.settle()
			w.store.Deliver()
			w.settle()
			machine{world: w}.checkNow(t)
			must.Eq(t, ledger.GangReserved, w.load().Gangs["train"].Doc.State)
			must.MapLen(t, 2, w.slotsOf("train"))
		})
	}
}

// TestOneBrokenDocumentStopsNobodyElse: a gang that can't be closed, because the slot table of its node was written by a
// newer version, leaves all others alone.
func TestOneBrokenDocumentStopsNobodyElse(t *testing.T) {
	w := running(t)
	w.addNode("n2", "r1", 8)
	w.settle()
	w.ack()
	newer := ledger.Op{Verb: ledger.Set, Key: w.ledger.Keys().Slots("n1"), Value: []byte(`{"version":99}`)}
	_, err := w.store.Txn(t.Context(), []ledger.Op{newer})
	must.NoError(t, err)

	w.happen([]string{"stop", "train"})
	w.happen([]string{"job", "next", "gpus=8"})
	log := w.settle()
	must.StrContains(t, log, "a decision could not be written; it will be tried again")
	must.StrContains(t, log, "granted gang=next")
	must.Eq(t, "", w.settle(), must.Sprint("the failure is logged once"))
}

// TestSetBackLedgerGrantsNothing: a node that remembers a later slot table than the ledger has is left alone.
func TestSetBackLedgerGrantsNothing(t *testing.T) {
	w := newWorld(t)
	w.addNode("n1", "r1", 8)
	w.settle()
	w.ack()
	before := w.store.Save()
	w.happen([]string{"job", "train", "gpus=8"})
	w.settle()
	w.ack()
	acked := w.load().Acks["n1"].Doc
	w.store.SetBack(before)
	must.NoError(t, w.ledger.PublishAck(t.Context(), "n1", acked))
	w.elect()
	log := w.settle()
	must.StrContains(t, log, "the ledger was lost or set back")
	must.StrNotContains(t, log, "granted gang=")
}

// stillNomad is a Follower for the loop's own tests: it changes only when it is told to.
type stillNomad struct {
	mu      sync.Mutex
	state   nomad.State
	changed chan struct{}
}

func (n *stillNomad) State() nomad.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}
func (n *stillNomad) Changed() <-chan struct{} { return n.changed }
func (n *stillNomad) Track([]nomad.JobID)      {}

// TestRunFollowsAndHandsOver lets two placers campaign on a ledger: one leads and acts on what changes in the ledger and
// in Nomad, without waiting for its tick; when it is stopped, the other takes over; a ledger that is set back makes it
// start anew.
func TestRunFollowsAndHandsOver(t *testing.T) {
	w := newWorld(t)
	must.NoError(t, w.store.DestroySession(t.Context(), w.leader.lease.Session))
	options := w.leader.Options
	options.Tick, options.Now = time.Hour, time.Now
	options.Logger = slog.New(slog.DiscardHandler)
	follower := &stillNomad{state: w.State(), changed: make(chan struct{}, 2)}
	options.Nomad = follower

	stop := map[string]func(){}
	start := func(name string) {
		ctx, cancel := context.WithCancel(t.Context())
		o := options
		o.Name, o.Rules.Read = name, NewReader(jobspecsOptions()).Read
		o.Turn = nil
		o.Rules.Refusal = func(*nomad.Job, string, *structs.Node, nomad.SlotDevice) string { return "" }
		done := make(chan error, 1)
		go func() { done <- Run(ctx, o) }()
		stop[name] = func() { cancel(); must.NoError(t, <-done) }
	}
	start("first")
	w.await("first leads", func(s ledger.Snapshot) bool { return s.Leader == "first" })
	start("second")

	w.addNode("n1", "r1", 8)
	w.await("a table for the node", func(s ledger.Snapshot) bool { return len(s.Tables) == 1 })
	w.ack()
	w.happen([]string{"job", "train", "gpus=8"})
	follower.mu.Lock()
	follower.state = w.State()
	follower.mu.Unlock()
	follower.changed <- struct{}{}
	w.await("a grant", func(s ledger.Snapshot) bool { return s.Gangs["train"].Doc.State == ledger.GangReserved })

	stop["first"]()
	w.await("second leads", func(s ledger.Snapshot) bool { return s.Leader == "second" && s.Tables["n1"].Doc.Rebuild })
	w.ack()
	w.place()
	w.claim("train")
	w.await("running", func(s ledger.Snapshot) bool { return s.Gangs["train"].Doc.State == ledger.GangRunning })
	stop["second"]()
	w.await("nobody leads", func(s ledger.Snapshot) bool { return s.Leader == "" })
}

// TestFollowNoticesThatTheLedgerWasSetBack: the lead ends, so that everything is read again.
func TestFollowNoticesThatTheLedgerWasSetBack(t *testing.T) {
	w := running(t)
	early := ledger.NewMemory().Save()
	l := newLeader(w.leader.Options, w.leader.lease, ledger.Snapshot{})
	l.epoch = w.leader.epoch
	l.Logger = slog.New(slog.DiscardHandler)
	snapshots := make(chan ledger.Snapshot, 1)
	done := make(chan error, 1)
	go func() { done <- l.follow(t.Context(), snapshots) }()
	<-snapshots
	w.store.SetBack(early)
	err := <-done
	must.ErrorIs(t, err, errSetBack)
}

// await waits until the ledger passes a check.
func (w *world) await(what string, check func(ledger.Snapshot) bool) {
	until(w.t, func() error {
		s, err := w.ledger.Load(w.t.Context())
		if err == nil && !check(s) {
			err = errors.New(what + " never came: " + fmt.Sprint(strings.TrimSpace(w.show())))
		}
		return err
	})
}

// TestUsersAreToldWhy: reasons to wait and refusals reach the job, each once.
func TestUsersAreToldWhy(t *testing.T) {
	w := newWorld(t)
	w.happen([]string{"job", "train", "gpus=8"})
	w.happen([]string{"job", "thief", "gang=train"})
	w.settle()
	w.settle()
	must.Eq(t, []string{
		"Muster refused the gang: the gang name train belongs to job train in namespace default, which asked first; choose another name",
		"The gang waits: the cluster has no GPU nodes",
	}, w.said)
}
