// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// ran is one run of a gang from start to finish.
type ran struct {
	id    ledger.RunTimeID
	time  time.Duration
	ended time.Time
}

// ran is what the end of a gang teaches about gangs like it: nothing unless it has finished, in one go. One that had to start
// again, in its place or anew, has done the rest only.
func (s step) ran(g, closing ledger.Gang) *ran {
	run := s.Ledger.Runs[ledger.RunID{Gang: g.Name, Reservation: g.Reservation.ID}].Run.Doc
	began := started(g, run)
	again := run.Generation > 1 || g.LastRun != nil && g.LastRun.Started != nil && g.LastRun.Result != resultFinished
	if closing.After != ledger.GangFinished || began.IsZero() || again || !s.now.After(began) {
		return nil
	}
	return &ran{id: runTimeID(g), time: s.now.Sub(began), ended: s.now}
}

// runTimeID names the gangs that are expected to run for as long as one another. Nomad names the children of a job after it.
func runTimeID(g ledger.Gang) ledger.RunTimeID {
	job := g.Job
	for _, mark := range []string{"/dispatch-", "/periodic-"} {
		if at := strings.LastIndex(job, mark); at > 0 {
			job = job[:at]
		}
	}
	return ledger.RunTimeID{Queue: g.Spec.Queue, Namespace: g.Namespace, Job: job}
}
