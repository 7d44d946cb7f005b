// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"fmt"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// maxMissing bounds the list of ranks in a run document.
const maxMissing = 16

// Next is the run document that follows from the members, and whether it differs from the one that is there. It moves
// gathering -> running -> succeeded, or to failed from either; a run that has ended stays as it is. The caller fills in
// the master's address and port when it moves to running.
func Next(run ledger.Run, members map[int]ledger.Member, size int, now time.Time) (ledger.Run, bool) {
	next := run
	if next.Version == 0 {
		next = ledger.Run{Version: ledger.Version, Generation: 1}
	}
	if next.Phase == ledger.RunSucceeded || next.Phase == ledger.RunFailed {
		return run, false
	}
	present, finished := 0, 0
	next.Missing = nil
	for rank := range size {
		member, ok := members[rank]
		if !ok || member.Generation != next.Generation {
			if len(next.Missing) < maxMissing {
				next.Missing = append(next.Missing, rank)
			}
			continue
		}
		present++
		if member.State == ledger.MemberSucceeded {
			finished++
		}
	}
	switch first, left := firstToLeave(members, size, next.Generation); {
	case left:
		next = Failed(next, why(first), first.State == ledger.MemberStopped)
	case finished == size:
		next.Phase = ledger.RunSucceeded
	case next.Phase == ledger.RunRunning:
		next.Missing = nil // a member's document that was lost since is no reason to gather again
	case present == size:
		next.Phase, next.Started = ledger.RunRunning, &now
	default:
		next.Phase = ledger.RunGathering
	}
	return next, !same(run, next)
}

// Failed is the run after a member has left. Orderly: it was asked to, so the others still have something to save.
func Failed(run ledger.Run, why string, orderly bool) ledger.Run {
	if run.Version == 0 {
		run = ledger.Run{Version: ledger.Version, Generation: 1}
	}
	run.Phase, run.Why, run.Orderly, run.Missing = ledger.RunFailed, why, orderly, nil
	return run
}

// firstToLeave finds the member that failed or was stopped first by its own clock, failures before stops, since a
// failure makes others stop; the lowest rank among equals.
func firstToLeave(members map[int]ledger.Member, size, generation int) (ledger.Member, bool) {
	var first ledger.Member
	found := false
	for rank := range size {
		member, ok := members[rank]
		if !ok || member.Generation != generation || member.State != ledger.MemberFailed && member.State != ledger.MemberStopped {
			continue
		}
		if !found || earlier(member, first) {
			first, found = member, true
		}
	}
	return first, found
}

func earlier(a, b ledger.Member) bool {
	if a.State != b.State {
		return a.State == ledger.MemberFailed
	}
	return a.Ended != nil && (b.Ended == nil || a.Ended.Before(*b.Ended))
}

func why(member ledger.Member) string {
	text := fmt.Sprintf("rank %d on node %s %s", member.Rank, member.Node, member.State)
	if member.State == ledger.MemberStopped {
		text = fmt.Sprintf("rank %d on node %s was stopped", member.Rank, member.Node)
	}
	if member.Why != "" {
		text += ": " + member.Why
	}
	return text
}

func same(a, b ledger.Run) bool {
	if a.Version != b.Version || a.Phase != b.Phase || a.Why != b.Why || len(a.Missing) != len(b.Missing) {
		return false
	}
	for i := range a.Missing {
		if a.Missing[i] != b.Missing[i] {
			return false
		}
	}
	return true
}
