// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	followWait   = time.Minute      // one blocking read at most
	troublePause = time.Second      // before a read that failed is tried again
	lookEvery    = 5 * time.Second  // at the job itself, of which the ledger may say nothing
	nobodyAfter  = 15 * time.Second // until it is said that no placer has taken the job
	drainWithin  = 10 * time.Second // for the end of the logs when all is over
)

// follower follows one gang of one job.
type follower struct {
	Meta
	ledger *ledger.Ledger
	nomad  *nomad.Client
	gang   string
	job    jobRef
	all    bool // logs of all ranks

	said    string // the last line about the gang's state
	known   bool   // the gang has been in the ledger
	started time.Time
	warned  bool // that no placer has taken the job
	logs    *logs
}

// follow prints what happens to the gang until it is over, and returns the exit code.
func (f *follower) follow(ctx context.Context) int {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	f.started, f.logs = f.Now(), newLogs(f)
	defer f.logs.streams.Wait()
	defer reading.Wait()
	defer cancel()
	gangs, refusals := make(chan *ledger.Gang), make(chan *ledger.Refusal)
	reading.Go(func() {
		watchDoc(ctx, f.say, gangs, func(after uint64) (ledger.Versioned[ledger.Gang], error) {
			return f.ledger.WatchGang(ctx, f.gang, after, followWait)
		})
	})
	reading.Go(func() {
		watchDoc(ctx, func(string, ...any) {}, refusals, func(after uint64) (ledger.Versioned[ledger.Refusal], error) {
			return f.ledger.WatchRefusal(ctx, f.job.namespace, f.job.id, after, followWait)
		})
	})
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		var end *ending
		select {
		case <-ctx.Done():
			f.say("detached; gang %s goes on. To stop it: %s. To follow it again: muster run -follow %s", f.gang, f.job.stopCommand(), f.gang)
			return exitInterrupted
		case g := <-gangs:
			end = f.sawGang(ctx, g)
		case r := <-refusals:
			end = f.sawRefusal(r)
		case <-look.C:
			end = f.lookAtJob(ctx)
		}
		if end != nil {
			f.logs.finish(ctx, drainWithin)
			f.say("%s", end.text)
			return end.code
		}
	}
}

// ending is how the following ends.
type ending struct {
	code int
	text string
}

// watchDoc hands out a document whenever it changes, nil while there is none, until the context ends.
func watchDoc[T any](ctx context.Context, say func(string, ...any), out chan<- *T, watch func(after uint64) (ledger.Versioned[T], error)) {
	down := false
	for after := uint64(0); ctx.Err() == nil; {
		doc, err := watch(after)
		var next *T
		switch {
		case err == nil:
			next = &doc.Doc
		case errors.Is(err, ledger.ErrNotFound):
		case ctx.Err() != nil:
			return
		default:
			if !down {
				say("the ledger can't be read; trying on: %s", err)
			}
			down, after = true, 0
			pause(ctx, troublePause)
			continue
		}
		down, after = false, doc.Index
		select {
		case out <- next:
		case <-ctx.Done():
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sawGang takes in what the ledger says about the gang now.
func (f *follower) sawGang(ctx context.Context, g *ledger.Gang) *ending {
	if g == nil || !f.job.owns(*g) {
		if f.known {
			f.known = false
			return f.lookAtJob(ctx)
		}
		return nil
	}
	f.known = true
	if g.Reservation != nil {
		f.logs.follow(ctx, g.Reservation.ID)
	}
	switch g.State {
	case ledger.GangFinished:
		if f.said == "" {
			return &ending{code: exitDone, text: fmt.Sprintf("gang %s has finished already; an unchanged job runs nothing", g.Name)}
		}
		return &ending{code: exitDone, text: fmt.Sprintf("gang %s has finished", g.Name)}
	case ledger.GangFailed:
		return &ending{code: exitFailed, text: fmt.Sprintf("gang %s has failed: %s", g.Name, reasonText(g.Why))}
	case ledger.GangWaiting, ledger.GangReserved, ledger.GangRunning, ledger.GangClosing:
	}
	if line := stateLine(*g); line != f.said {
		f.said = line
		f.say("%s", line)
	}
	return nil
}

// stateLine is what a gang does now, in words.
func stateLine(g ledger.Gang) string {
	why := ""
	if g.Why != nil {
		why = ": " + g.Why.Text
	}
	switch g.State {
	case ledger.GangWaiting:
		return "waits" + why
	case ledger.GangReserved:
		return "granted: " + placesText(*g.Reservation)
	case ledger.GangRunning:
		return "runs"
	case ledger.GangClosing:
		text := "ends" + why
		if g.After == ledger.GangWaiting {
			text += "; then it waits again"
		}
		return text
	case ledger.GangFinished, ledger.GangFailed:
	}
	return string(g.State)
}

// placesText lists the nodes of a grant with the ranks on each.
func placesText(grant ledger.Grant) string {
	parts := make([]string, 0, len(grant.Placements))
	for _, p := range grant.Placements {
		ranks := fmt.Sprintf("rank %d", p.Rank)
		if p.Members > 1 {
			ranks = fmt.Sprintf("ranks %d-%d", p.Rank, p.Rank+p.Members-1)
		}
		parts = append(parts, fmt.Sprintf("%s on %s", ranks, p.Node))
	}
	return strings.Join(parts, ", ")
}

// sawRefusal takes in that the job is not admitted, if it is this version of it.
func (f *follower) sawRefusal(r *ledger.Refusal) *ending {
	if r == nil || r.CreateIndex != f.job.createIndex || r.JobVersion < f.job.version {
		return nil
	}
	return &ending{code: exitFailed, text: fmt.Sprintf("job %s was refused: %s", f.job, r.Why.Text)}
}

// lookAtJob asks Nomad whether there is still something to follow.
func (f *follower) lookAtJob(ctx context.Context) *ending {
	if f.known {
		return nil // the gang's document says more
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	job, _, err := f.nomad.Jobs().Info(f.job.id, (&nomad.QueryOptions{Namespace: f.job.namespace}).WithContext(ctx))
	switch {
	case isNotFound(err), err == nil && (*job.CreateIndex != f.job.createIndex || *job.Stop):
		return &ending{code: exitFailed, text: fmt.Sprintf("job %s was stopped", f.job)}
	case err == nil && !f.warned && f.Now().Sub(f.started) >= nobodyAfter:
		f.warned = true
		f.say("no placer has taken the job yet; 'muster status' tells whether one leads")
	}
	return nil
}
