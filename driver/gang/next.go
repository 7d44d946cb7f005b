// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// maxMissing bounds the list of ranks in a run document.
const maxMissing = 16

// Next is the run document that follows from the members, and whether it differs from the one that is there. It moves
// gathering -> running -> succeeded, or to failed from either; a run that has ended stays as it is. A member that leaves
// and may come back, or has come back already, makes it gather again, as the next generation. The caller fills in the
// master's address and port when it moves to running.
func Next(run ledger.Run, members map[int]ledger.Member, size int, now time.Time) (ledger.Run, bool) {
	if over(run) {
		return run, false
	}
	next := begin(run, members, size)
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
	switch first, left := firstToLeave(members, size); {
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

func over(run ledger.Run) bool {
	return run.Phase == ledger.RunSucceeded || run.Phase == ledger.RunFailed
}

// begin is the run in the latest generation that any member is on its way to.
func begin(run ledger.Run, members map[int]ledger.Member, size int) ledger.Run {
	if run.Version == 0 {
		run = ledger.Run{Version: ledger.Version, Generation: 1}
	}
	latest, cause := run.Generation, ""
	for rank := range size {
		member, ok := members[rank]
		if generation := heading(member); ok && generation > latest {
			latest, cause = generation, comeback(member)
		}
	}
	if latest == run.Generation {
		return run
	}
	return ledger.Run{Version: run.Version, Generation: latest, Phase: ledger.RunGathering, Why: cause, Orderly: true}
}

// heading is the generation that a member is on its way to.
func heading(member ledger.Member) int {
	if member.State == ledger.MemberLeaving {
		return member.Generation + 1
	}
	return member.Generation
}

func comeback(member ledger.Member) string {
	text := fmt.Sprintf("rank %d on node %s", member.Rank, member.Node)
	if member.State == ledger.MemberLeaving {
		return text + " was told to end by Nomad, which may start it again"
	}
	return text + " was started again by Nomad"
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
// failure makes others stop; the lowest rank among equals. Its generation does not matter: such a member's task is over,
// or else it would have said that it arrives in the next one.
func firstToLeave(members map[int]ledger.Member, size int) (ledger.Member, bool) {
	var first ledger.Member
	found := false
	for rank := range size {
		member, ok := members[rank]
		if !ok || member.State != ledger.MemberFailed && member.State != ledger.MemberStopped {
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
	return a.Version == b.Version && a.Generation == b.Generation && a.Phase == b.Phase && a.Why == b.Why && slices.Equal(a.Missing, b.Missing)
}

// Older says whether a run document is of before another one of the same reservation: the ledger was set back. The zero
// document, of a run that is not there, is older than any.
func Older(a, b ledger.Run) bool {
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(progress(a), progress(b))) < 0
}

func progress(run ledger.Run) int {
	switch run.Phase {
	case ledger.RunGathering:
		return 1
	case ledger.RunRunning:
		return 2
	case ledger.RunSucceeded, ledger.RunFailed:
		return 3
	}
	return 0
}

// Word is what a run says to one of its members.
type Word int

// The words.
const (
	Wait    Word = iota // nothing new: wait, or go on
	Start               // the gang is complete in the member's generation
	Again               // the gang gathers in a later generation: end the process, if there is one, and arrive there
	Success             // end well
	Failure             // end failed
)

// Hear is what a run says to a member of a generation. A member has the process of its generation only, and enters the
// next one when that is gone; a run reaches no generation before all members have; so no two generations ever run.
func Hear(run ledger.Run, generation int) Word {
	switch {
	case run.Phase == ledger.RunFailed:
		return Failure
	case run.Phase == ledger.RunSucceeded:
		return Success
	case run.Generation > generation:
		return Again
	case run.Generation == generation && run.Phase == ledger.RunRunning:
		return Start
	}
	return Wait
}
