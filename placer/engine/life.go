// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

func compareRuns(a, b ledger.RunID) int {
	return cmp.Or(cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Reservation, b.Reservation))
}

// live is the next step in a gang's life, if there is one now; being granted is not among them.
func (s step) live(g ledger.Gang) (Action, bool) {
	if s.unsure(g) {
		return Action{}, false
	}
	if g.Reservation != nil {
		if astray, some := s.liveAstray(g); some {
			return astray, true
		}
	}
	switch g.State {
	case ledger.GangWaiting:
		return s.liveWaiting(g)
	case ledger.GangReserved, ledger.GangRunning:
		return s.liveHolding(g)
	case ledger.GangClosing:
		return s.liveClosing(g)
	case ledger.GangFinished, ledger.GangFailed:
		return s.liveOver(g)
	}
	return Action{}, false
}

func (s step) put(what string, g ledger.Gang) (Action, bool) {
	return Action{Kind: Put, What: what, Gang: g}, true
}

func (s step) drop(why string, g ledger.Gang) (Action, bool) {
	return Action{Kind: Delete, What: why, Gang: g}, true
}

// liveWaiting: a gang that waits holds nothing, so that its document simply follows its job.
func (s step) liveWaiting(g ledger.Gang) (Action, bool) {
	if s.Nomad.Stale != "" {
		return Action{}, false
	}
	w, how, why := s.owner(g)
	switch {
	case how == unknown:
		return Action{}, false
	case how != owns:
		return s.drop(why, g)
	case g.Reset != nil:
		return s.liveReset(g, w)
	case w.refused != nil:
		return s.drop(w.refused.Text, g)
	case w.job.Version != g.JobVersion:
		return s.put(putVersion, anew(g, w))
	}
	if s.freeze != nil {
		return Action{}, false // it may hold a reservation of which the ledger does not know yet
	}
	if reset, must := s.mustReset(g, w.job); must {
		return s.put(putReset, reset)
	}
	if longer(s.Memory.Dead, g.Name, deadFor, s.now) {
		g = s.waitsNoMore(g)
		g.State, g.Since = ledger.GangFailed, s.now
		g.Why = reason(WhyDead, fmt.Sprintf("Nomad will place nothing more of job %s, and the gang has not finished; run the job again", g.Job))
		return s.put(putFailed, g)
	}
	if moved, some := requeued(g, w); some {
		return s.put(putQueue, moved)
	}
	return Action{}, false
}

// liveHolding: a gang that holds slots goes on running, or is closed for one reason.
func (s step) liveHolding(g ledger.Gang) (Action, bool) {
	members := s.members(g)
	if s.Nomad.Stale != "" {
		return s.progress(g, members)
	}
	w, how, why := s.owner(g)
	if closing, some := s.mustClose(g, members, w, how, why); some {
		return Action{Kind: Close, What: closing.Why.Code, Gang: closing, Ran: s.ran(g, closing)}, true
	}
	if how == owns && w.job.Version != g.JobVersion {
		return s.put(putVersion, withSpec(g, w))
	}
	if how == owns {
		if moved, some := requeued(g, w); some {
			return s.put(putQueue, moved)
		}
	}
	return s.progress(g, members)
}

// progress turns a reserved gang whose slots are all claimed into a running one.
func (s step) progress(g ledger.Gang, members []member) (Action, bool) {
	if g.State != ledger.GangReserved || len(members) == 0 {
		return Action{}, false
	}
	for _, m := range members {
		if m.claim == nil && !m.done() {
			return Action{}, false
		}
	}
	g.State, g.Since = ledger.GangRunning, s.now
	return s.put(putRunning, g)
}

// mustClose says whether a gang that holds slots must give them up, and how its document looks then.
func (s step) mustClose(g ledger.Gang, members []member, w want, how standing, why string) (ledger.Gang, bool) {
	if finished(members) {
		g.JobVersion = workedOn(g, members)
		return s.closing(g, ledger.GangFinished, resultFinished, reason(WhyFinished, "all members succeeded")), true
	}
	switch how {
	case stopped, left:
		return s.closing(g, "", resultStopped, reason(WhyStopped, why)), true
	case owns:
		if w.job.Version != g.JobVersion && w.spec.Shape != g.Reservation.Shape {
			text := fmt.Sprintf("job %s was edited: it held slots for %s and asks for %s now", g.Job, g.Reservation.Shape, w.spec.Shape)
			return s.closing(withSpec(g, w), ledger.GangWaiting, resultStopped, reason(WhyShape, text)), true
		}
	case unknown:
	}
	if s.ajar(g) {
		return s.move(g, WhyLedger, "the ledger was set back while the gang ended"), true
	}
	if foreign, some := s.foreignClaim(g, members); some {
		return s.closeAndWait(g, foreign, WhyForeign, nil), true
	}
	if text, some := s.bornAnew(members); some {
		return s.move(g, WhyBornAnew, text), true
	}
	l, lost := s.loss(g, members)
	if node, some := s.drainingNode(g); some && !l.blamed { // Nomad may have stopped members for it already
		return s.move(g, WhyDrain, fmt.Sprintf("node %s is draining", node)), true
	}
	if lost {
		return s.mustCloseLost(g, l, w, how)
	}
	if text, some := s.fencedNode(members); some {
		return s.move(g, WhySilent, text), true
	}
	return s.overdue(g, members)
}

// finished says whether every member has done its work.
func finished(members []member) bool {
	return len(members) > 0 && !slices.ContainsFunc(members, func(m member) bool { return !m.done() })
}

// workedOn is the job version whose work the members have done: of a newer one Nomad may have placed nothing yet, and
// then it has yet to run.
func workedOn(g ledger.Gang, members []member) uint64 {
	version := g.JobVersion
	for _, m := range members {
		if a := m.alloc(); a != nil {
			version = min(version, a.JobVersion)
		}
	}
	return version
}

// loss finds the member for which a gang ends.
func (s step) loss(g ledger.Gang, members []member) (loss, bool) {
	var losses []loss
	for _, m := range members {
		gone := longer(s.Memory.ClaimGone, m.slot, claimGoneFor, s.now)
		if l, some := m.lost(g.State == ledger.GangRunning, gone); some {
			losses = append(losses, l)
		}
	}
	return firstLoss(losses)
}

// foreignClaim finds a claim on one of the gang's slots by a task of another job.
func (s step) foreignClaim(g ledger.Gang, members []member) (text string, some bool) {
	for _, m := range members {
		c := m.claim
		if c == nil || c.Job == "" || jobOf(g) == (nomad.JobID{Namespace: c.Namespace, ID: c.Job}) {
			continue
		}
		return fmt.Sprintf("a task of job %s in namespace %s has claimed rank %d on %s", c.Job, c.Namespace, m.rank, m.node), true
	}
	return "", false
}

// drainingNode finds a node of the gang that Nomad is draining: the gang moves whole, before Nomad stops one member.
func (s step) drainingNode(g ledger.Gang) (node string, some bool) {
	for _, p := range g.Reservation.Placements {
		n := s.Nomad.Nodes[s.Ledger.Nodes[p.Node].Doc.NodeID]
		if n != nil && n.DrainStrategy != nil {
			return p.Node, true
		}
	}
	return "", false
}

// overdue says whether a reserved gang has taken too long to start.
func (s step) overdue(g ledger.Gang, members []member) (ledger.Gang, bool) {
	if g.State != ledger.GangReserved {
		return g, false
	}
	if longer(s.Memory.Granted, g.Reservation.ID, s.rules.PlacementDeadline, s.now) {
		missing := slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.placed() || m.done() })
		if len(missing) > 0 {
			text := fmt.Sprintf("Nomad has placed no allocation on %s within %s", ranks(missing), jobspecs.ShortDuration(s.rules.PlacementDeadline))
			return s.closeAndWait(g, text, WhyNotStarted, nodesOf(missing)), true
		}
	}
	if longer(s.Memory.Granted, g.Reservation.ID, s.rules.StartTimeout, s.now) {
		missing := slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.claim != nil || m.done() })
		if len(missing) > 0 { // else the last claim came just in time
			text := fmt.Sprintf("%s did not start within %s", ranks(missing), jobspecs.ShortDuration(s.rules.StartTimeout))
			return s.closeAndWait(g, text, WhyNotStarted, nodesOf(missing)), true
		}
	}
	return g, false
}

// ranks lists members, at most three of them.
func ranks(members []member) string {
	const most = 3
	texts := make([]string, 0, most)
	for i, m := range members {
		if i == most {
			return fmt.Sprintf("%s and %d more", strings.Join(texts, ", "), len(members)-most)
		}
		texts = append(texts, fmt.Sprintf("rank %d on %s", m.rank, m.node))
	}
	return strings.Join(texts, ", ")
}

func nodesOf(members []member) []string {
	nodes := make([]string, 0, len(members))
	for _, m := range members {
		nodes = append(nodes, m.node)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// closing is a gang's document when its slots are closing.
func (s step) closing(g ledger.Gang, after ledger.GangState, result string, why *ledger.Reason) ledger.Gang {
	g.LastRun = s.summary(g, result, *why)
	if after == ledger.GangWaiting && s.ranLong(g) {
		g.Attempts, g.Failures = 1, 0
	}
	g.State, g.After, g.Since, g.Why = ledger.GangClosing, after, s.now, why
	return g
}

// move closes a gang that has done nothing wrong: it goes on elsewhere as soon as it can.
func (s step) move(g ledger.Gang, code, text string) ledger.Gang {
	closed := s.closing(g, ledger.GangWaiting, resultStopped, reason(code, text))
	closed.Attempts = max(closed.Attempts-1, 0)
	return closed
}

// closeAndWait closes a gang that failed; it waits again, longer each time. Nodes where it did not get to start are
// tried last.
func (s step) closeAndWait(g ledger.Gang, text, code string, avoid []string) ledger.Gang {
	result := resultFailed
	if code == WhyNotStarted {
		result = resultNotStarted
	}
	closed := s.closing(g, ledger.GangWaiting, result, reason(code, text))
	notBefore := s.now.Add(backoff(closed.Attempts))
	closed.NotBefore, closed.Avoid = &notBefore, avoid
	return closed
}

// backoff is how long a gang waits after so many attempts.
func backoff(attempts int) time.Duration {
	d := backoffLeast
	for range attempts - 1 {
		if d *= 2; d >= backoffMost {
			return backoffMost
		}
	}
	return d
}

// summary is how a reservation ended.
func (s step) summary(g ledger.Gang, result string, why ledger.Reason) *ledger.RunSummary {
	out := &ledger.RunSummary{Reservation: g.Reservation.ID, Ended: s.now, Result: result, Reason: why}
	run := s.Ledger.Runs[ledger.RunID{Gang: g.Name, Reservation: g.Reservation.ID}].Run.Doc
	out.Generation, out.Started = run.Generation, run.Started
	return out
}

// liveClosing: a closing gang's slots go when all nodes have acknowledged that nothing uses them.
func (s step) liveClosing(g ledger.Gang) (Action, bool) {
	if s.ajar(g) {
		return Action{Kind: Close, What: g.Why.Code, Gang: g}, true
	}
	g = s.doneAfterAll(g)
	release := ledger.Release{LeftBehind: s.leftBehind(g)}
	if _, clear := ledger.Cleared(s.Ledger, g, release); !clear {
		return Action{}, false
	}
	return s.release(g, release), true
}

// release takes a closing gang's slots out; what it is then is what it was closed for, unless its job is gone.
func (s step) release(g ledger.Gang, how ledger.Release) Action {
	after, gone := s.afterwards(g)
	how.Remove = gone
	what := string(after.State)
	if gone {
		what = "deleted"
	}
	return Action{Kind: Release, What: what, Gang: after, Release: how}
}

// afterwards is a gang's document once its reservation is gone; gone says that the document goes, too.
func (s step) afterwards(g ledger.Gang) (after ledger.Gang, gone bool) {
	w, how, _ := s.owner(g)
	next := g.After
	if how == stopped && next != ledger.GangFinished || how == left {
		next = ""
	}
	g.Reservation, g.After, g.FreedFor, g.Since = nil, "", "", s.now
	if next == ledger.GangWaiting {
		g.Delay = g.Delay.From(s.now)
	}
	if next == ledger.GangWaiting && how == owns {
		g = anew(g, w)
	}
	g.State = next
	return g, next == ""
}

// liveOver: a gang that is over keeps its document until its job is gone, wants to run again, or has left the name to
// another job.
func (s step) liveOver(g ledger.Gang) (Action, bool) {
	if s.Nomad.Stale != "" {
		return Action{}, false
	}
	w, how, why := s.owner(g)
	switch how {
	case unknown:
		return Action{}, false
	case left:
		return s.drop(why, g)
	case owns:
		again := w.job.Version > g.JobVersion || g.State == ledger.GangFailed && g.Why != nil && g.Why.Code == WhyDead
		if w.alive() && w.refused == nil && again {
			fresh := s.admitted(w)
			fresh.LastRun, fresh.Set = g.LastRun, g.Set
			return s.put(putAgain, withSpec(fresh, w))
		}
	case stopped:
	}
	if (how == stopped || w.job.Dead()) && s.claimedByOther(g) {
		return s.drop("another job asks for its name", g)
	}
	return Action{}, false
}

// claimedByOther says whether another job that is alive asks for the gang's name.
func (s step) claimedByOther(g ledger.Gang) bool {
	for id, w := range s.wants {
		if w.name == g.Name && id != jobOf(g) && w.alive() && w.refused == nil {
			return true
		}
	}
	return false
}
