// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/backfill"
	"github.com/nomad-muster/muster/placer/policy/queue"
	"github.com/nomad-muster/muster/placer/policy/words"
)

// tell writes down why each of the gangs that were tried waits.
func (r *round) tell() {
	for i, w := range r.waits {
		wait := model.Wait{
			Gang: w.gang.Name, Position: i + 1, Reason: w.reason, Planned: w.planned, Earmarks: r.marks[w.gang.Name].gpus,
		}
		if wait.Reason.Code == "" {
			wait.Reason, wait.RelaxAt = r.cluster.Explain(*w.gang, r.now)
		}
		wait.Cause = r.cause(w.gang, wait.Reason.Code)
		r.decision.Waits = append(r.decision.Waits, wait)
	}
}

// cause puts the time that a gang waits now down to one cause, as the paper does (Jeon et al., USENIX ATC 2019, section
// 3.1): fragmentation if its queue has quota left and enough GPUs are free, but not where it can use them; fair share if
// its queue has used up what it is owed, or others hold the GPUs or go first; else it is its own affair.
func (r *round) cause(g *model.Gang, code string) model.Cause {
	switch code {
	case model.WaitCapacity, model.WaitQuota, model.WaitReserved, model.WaitFreeing:
		return model.CauseFairShare
	case model.WaitFragmented, model.WaitLocality, model.WaitNVLink, model.WaitResources:
		if len(r.s.Queues) == 0 || r.tree.Owed(g.Queue, g.GPUs()) {
			return model.CauseFragmentation
		}
		return model.CauseFairShare
	}
	return model.CauseOwn
}

// overLimit says that a queue may have no more.
func (r *round) overLimit(g *model.Gang, use queue.Use) model.Reason {
	if g.GPUs() > use.Max {
		return model.Reason{
			Code: model.WaitNever,
			Text: fmt.Sprintf("asks for %s; %s may have at most %d", words.Count(g.GPUs(), "GPU"), queueText(use.Name), use.Max),
		}
	}
	return model.Reason{
		Code: model.WaitQuota,
		Text: fmt.Sprintf("needs %s; %s has %d of the %d that it may have", words.Count(g.GPUs(), "GPU"), queueText(use.Name), use.Used, use.Max),
	}
}

// behindLimit says that a gang of the same queue is to get what the queue may have next.
func (r *round) behindLimit(g *model.Gang, ahead limited) model.Reason {
	return model.Reason{
		Code: model.WaitQuota,
		Text: fmt.Sprintf("needs %s; %s is at its limit, and %s, which is ahead, is to have the next ones%s",
			words.Count(g.GPUs(), "GPU"), queueText(ahead.queue), ahead.gang.Name, r.inAbout(ahead.at)),
	}
}

// behindReservation says that a gang would delay one that is ahead of it.
func (r *round) behindReservation(ahead *backfill.Reservation) model.Reason {
	return model.Reason{
		Code: model.WaitReserved,
		Text: fmt.Sprintf("fits, but could delay %s, which is ahead and is to start%s on %s",
			ahead.Gang.Name, r.inAbout(ahead.At), words.Few(ahead.Nodes)),
	}
}

func (r *round) inAbout(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return " in about " + words.Roughly(at.Sub(r.now))
}

// freeing says that others end so that the gang can start: those that are being evicted already and those named.
func (r *round) freeing(g *model.Gang, names []string) model.Reason {
	for _, victim := range r.closing[g.Name] {
		names = append(names, victim.Name)
	}
	slices.Sort(names)
	text := "its GPUs come free: "
	if len(names) > 0 {
		text = fmt.Sprintf("%s %s evicted for it: ", words.Count(len(names), "gang"), words.Verb(len(names), "is being", "are being"))
	}
	return model.Reason{Code: model.WaitFreeing, Text: text + words.Few(names)}
}
