// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// blames says whether an allocation ended because its command, or what it needs to start, failed. A device that the node
// does not offer any more, or that its plugin did not serve, is nobody's command.
func blames(a *nomad.Alloc, task nomad.Task) bool {
	return a.Client == structs.AllocClientStatusFailed && !strings.Contains(task.Message, "failed to reserve device")
}

// ranLong says whether a gang has run for so long that what failed before is forgiven.
func (s step) ranLong(g ledger.Gang) bool {
	return g.State == ledger.GangRunning && s.now.Sub(g.Since) >= backoffForgiven
}

// mustCloseLost closes a gang that has lost a member. Where a driver was asked to end one and Nomad has not said why yet, it
// is waited for.
func (s step) mustCloseLost(g ledger.Gang, l loss, w want, how standing) (ledger.Gang, bool) {
	a := l.member.alloc()
	if l.failed || a == nil {
		return s.closeLost(g, l), true
	}
	if how == owns && a.JobVersion < w.job.Version && a.Desired != structs.AllocDesiredStatusRun {
		return s.move(g, WhyEdited, fmt.Sprintf("job %s was edited: Nomad ends version %d and starts version %d", g.Job, a.JobVersion, w.job.Version)), true
	}
	_, asked := s.Memory.Stopped[g.Reservation.ID]
	if asked && !a.Terminal() && !a.Stopping() && !longer(s.Memory.Stopped, g.Reservation.ID, reasonTakes, s.now) {
		return g, false
	}
	return s.closeLost(g, l), true
}

// closeLost closes a gang that has lost a member. It waits again, unless its command has failed too often in a row.
func (s step) closeLost(g ledger.Gang, l loss) ledger.Gang {
	code, avoid := WhyFailed, []string(nil)
	if !l.started {
		code, avoid = WhyNotStarted, []string{l.member.node}
	}
	closed := s.closeAndWait(g, l.text, code, avoid)
	if !l.blamed {
		return closed
	}
	closed.Failures++
	if most := s.rules.MaxFailures; most == 0 || closed.Failures < most {
		return closed
	}
	closed.After, closed.NotBefore, closed.Avoid = ledger.GangFailed, nil, nil
	closed.Why = reason(WhyGivenUp, fmt.Sprintf("failed %s in a row: %s; edit and run the job again", times(closed.Failures), l.text))
	closed.LastRun.Reason = *closed.Why
	return closed
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
