// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// driverMuster is the task driver that has barriers and writes the run's documents.
const driverMuster = "muster"

// member is one member of a reservation with all that is known of it.
type member struct {
	rank   int
	group  ledger.GroupSpec
	node   string
	slot   ledger.SlotID
	claim  *ledger.Claim  // nil: none
	doc    *ledger.Member // nil: its driver has written nothing
	allocs []*nomad.Alloc // of the owner that name the slot, oldest first
	run    *ledger.Run    // nil: none
}

// members are the members of a gang's reservation by rank; none without a reservation.
func (v View) members(g ledger.Gang) []member {
	if g.Reservation == nil {
		return nil
	}
	state := v.Ledger.Runs[ledger.RunID{Gang: g.Name, Reservation: g.Reservation.ID}]
	var run *ledger.Run
	if state.Run.Index != 0 {
		run = &state.Run.Doc
	}
	var out []member
	for _, p := range g.Reservation.Placements {
		for i := range p.Members {
			m := member{rank: p.Rank + i, node: p.Node, run: run}
			m.slot = ledger.SlotID{Reservation: g.Reservation.ID, Rank: m.rank}
			m.group = v.groupAt(p, m.slot, g.Spec)
			if claim, found := v.Ledger.Claims[p.Node][m.slot]; found {
				m.claim = &claim.Doc
			}
			if doc, found := state.Members[m.rank]; found {
				m.doc = &doc.Doc
			}
			for _, a := range v.Nomad.Slots[m.slot] {
				if v.isOwners(a, g) {
					m.allocs = append(m.allocs, a)
				}
			}
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.rank, b.rank) })
	return out
}

// isOwners says whether an allocation is of the job that owns the gang; others may have been placed on its slots by
// Nomad, and never get to a claim.
func (v View) isOwners(a *nomad.Alloc, g ledger.Gang) bool { return a.Job == jobOf(g) }

// groupAt is the group of a member as its slot has it: the spec may be of a newer version of the job already.
func (v View) groupAt(p ledger.Placement, id ledger.SlotID, spec ledger.Spec) ledger.GroupSpec {
	group := groupOf(spec, p.Group)
	if slot, found := v.Ledger.Tables[p.Node].Doc.Find(id); found {
		group.GPUs, group.Task, group.Driver, group.Checkpoint = len(slot.GPUs), slot.Owner.Task, slot.Driver, slot.Checkpoint
	}
	return group
}

func groupOf(spec ledger.Spec, name string) ledger.GroupSpec {
	for _, group := range spec.Groups {
		if group.Group == name {
			return group
		}
	}
	return ledger.GroupSpec{Group: name}
}

// alloc is the allocation that holds the slot by its claim, or else the last one that names it; nil: none is known.
func (m member) alloc() *nomad.Alloc {
	for _, a := range m.allocs {
		if m.claim != nil && a.ID == m.claim.Allocation {
			return a
		}
	}
	if m.claim != nil || len(m.allocs) == 0 {
		return nil
	}
	return m.allocs[len(m.allocs)-1]
}

// placed says whether Nomad has put a living allocation on the slot.
func (m member) placed() bool {
	return m.claim != nil || slices.ContainsFunc(m.allocs, func(a *nomad.Alloc) bool { return !a.Terminal() })
}

// done says whether the member has done its work: by the run for the muster driver, by the task's own exit for others.
func (m member) done() bool {
	if m.group.Driver == driverMuster {
		return m.run != nil && m.run.Phase == ledger.RunSucceeded
	}
	// Nomad may place the member again after it has succeeded; the device plugin lets nobody in then.
	return slices.ContainsFunc(m.allocs, func(a *nomad.Alloc) bool { return a.Terminal() && a.Tasks[m.group.Task].Succeeded() })
}

// loss is a member that is not there any more, or will not be.
type loss struct {
	member  member
	text    string // "rank 1 on n3 failed: exit code 2"
	failed  bool   // it failed by itself; others ended because of it
	started bool   // it had its claim
	blamed  bool   // on its command: such failures are counted
}

// lost says whether the member has left the gang before its work was done. claimGone says that its claim has been gone
// for long.
func (m member) lost(running, claimGone bool) (loss, bool) {
	if m.done() {
		return loss{}, false
	}
	of := func(failed bool, format string, args ...any) (loss, bool) {
		text := fmt.Sprintf("rank %d on %s ", m.rank, m.node) + fmt.Sprintf(format, args...)
		return loss{member: m, text: text, failed: failed, started: running || m.claim != nil || m.doc != nil}, true
	}
	if text, some := m.displaced(); some {
		return of(false, "%s", text)
	}
	if d := m.doc; d != nil {
		switch d.State {
		case ledger.MemberFailed:
			l, some := of(true, "failed: %s", cmp.Or(exitText(d.ExitCode), d.Why, "its driver gives no reason"))
			l.blamed = !d.Lost
			return l, some
		case ledger.MemberStopped:
			return of(false, "was stopped%s", colon(d.Why))
		case ledger.MemberArrived, ledger.MemberRunning, ledger.MemberSucceeded, ledger.MemberLeaving: // it may come back
		}
	}
	if m.rank == 0 && m.run != nil && m.run.Phase == ledger.RunFailed {
		return loss{member: m, text: cmp.Or(m.run.Why, "the run failed"), started: true}, true
	}
	a := m.alloc()
	if failed := m.failedToStart(); failed != nil && !running {
		a = failed
	}
	switch {
	case a != nil && a.Terminal() && (m.claim != nil || running || a.Client == structs.AllocClientStatusFailed || !m.placed()):
		l, some := of(true, "%s", m.endText(a, running || m.claim != nil || m.doc != nil))
		l.blamed = blames(a, a.Tasks[m.group.Task])
		return l, some
	case a != nil && a.Stopping():
		return of(false, "is being stopped by Nomad%s", colon(a.Message))
	case running && m.claim == nil && claimGone && m.group.Driver == driverMuster:
		return of(false, "has ended without a word from its driver")
	case running && m.claim == nil && claimGone:
		return of(false, "has ended, and Nomad does not say how")
	}
	return loss{}, false
}

// failedToStart is the last allocation that failed on the slot while nobody has claimed it; nil: none did. Nomad may have
// placed the next one in the moment in which it told of the failure, and would go on so for ever.
func (m member) failedToStart() *nomad.Alloc {
	if m.claim != nil {
		return nil
	}
	for _, a := range slices.Backward(m.allocs) {
		if a.Client == structs.AllocClientStatusFailed {
			return a
		}
	}
	return nil
}

// displaced says in words that Nomad has put the member out of step with its gang, which is nobody's failure.
func (m member) displaced() (text string, some bool) {
	a := m.alloc()
	switch {
	case a == nil:
	case a.Desired == structs.AllocDesiredStatusEvict:
		return "was evicted by Nomad for a job of higher priority", true
	case m.group.Driver != driverMuster && a.Tasks[m.group.Task].Restarts > 0:
		return "was restarted in place by Nomad: without the muster driver, a gang starts again only as a whole", true
	}
	return "", false
}

// endText says in words how an allocation ended; started says that it had got to its claim.
func (m member) endText(a *nomad.Alloc, started bool) string {
	task := a.Tasks[m.group.Task]
	verb := "failed"
	if !started {
		verb = "failed to start"
	}
	switch {
	case a.Client == structs.AllocClientStatusLost:
		return "was lost with its node"
	case task.Exit != nil && *task.Exit != 0:
		return verb + ": " + exitText(task.Exit)
	case task.Message != "":
		return verb + ": " + task.Message
	case a.Message != "":
		return verb + ": " + a.Message
	}
	return "ended: Nomad calls its allocation " + a.Client
}

func exitText(code *int) string {
	if code == nil {
		return ""
	}
	return fmt.Sprintf("exit code %d", *code)
}

func colon(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// firstLoss is the loss that a gang ends for: one that failed by itself before those that ended with it, then the one
// that ended first by the drivers' clocks, then the lowest rank.
func firstLoss(losses []loss) (loss, bool) {
	if len(losses) == 0 {
		return loss{}, false
	}
	return slices.MinFunc(losses, func(a, b loss) int {
		return cmp.Or(-compareBool(a.failed, b.failed), compareEnds(a.member.doc, b.member.doc), cmp.Compare(a.member.rank, b.member.rank))
	}), true
}

func compareEnds(a, b *ledger.Member) int {
	if a == nil || b == nil || a.Ended == nil || b.Ended == nil {
		return 0
	}
	return a.Ended.Compare(*b.Ended)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
