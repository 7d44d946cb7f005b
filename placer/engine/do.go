// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// errImpossible says that an action can't even be written down: a document is in the way, or too large.
var errImpossible = errors.New("impossible")

// do does one action as one transaction, and puts its effect on slot tables into the current snapshot, so that the
// actions after it build on it.
func (l *leader) do(ctx context.Context, a Action, state nomad.State) error {
	if err := l.write(ctx, a); err != nil {
		return err
	}
	l.logAction(a)
	l.announce(a, state)
	return nil
}

func (l *leader) write(ctx context.Context, a Action) error {
	switch a.Kind {
	case Refuse:
		return l.Ledger.PutRefusal(ctx, l.lease, a.Refusal)
	case ClearRefusal:
		return l.Ledger.DeleteRefusal(ctx, l.lease, a.Refusal.Namespace, a.Refusal.Job)
	case Ask, Restore, Sweep:
		return l.writeTable(ctx, a)
	case DeleteRun:
		return l.Ledger.DeleteRun(ctx, l.lease, a.Run)
	case Signal:
		l.memory.Signalled[a.Slot] = Signalled{At: l.Now(), Kill: a.Signal == sigkill}
		l.Signal(ctx, a.Alloc, a.Task, a.Signal)
		return nil
	case WriteJob:
		l.memory.Written[a.Job.ID] = Written{At: l.Now(), Index: a.Job.JobModifyIndex}
		l.WriteJob(ctx, a.Job, a.Write)
		return nil
	case Account:
		_, err := l.Ledger.PutUsage(ctx, l.lease, a.Usage)
		return err
	case Answer:
		return l.Ledger.AnswerOrder(ctx, l.lease, *a.Order)
	case EndClaims:
		return l.Ledger.EndClaims(ctx, l.lease, l.snapshot.Gangs[a.Gang.Name], *a.Order, a.Claims)
	case DropOrder:
		return l.Ledger.DeleteOrder(ctx, l.lease, *a.Order)
	case Release, Close, Put, Delete, Adopt, Forget, Grant:
	}
	c, err := change(l.snapshot, a)
	if err != nil {
		return fmt.Errorf("%w: %w", errImpossible, err)
	}
	indexes, err := l.Ledger.Commit(ctx, l.lease, c)
	if err != nil {
		return err
	}
	if a.Kind == Put && (a.What == putReason || a.What == putOutlook) {
		l.memory.Outlined[a.Gang.Name] = l.Now()
	}
	if a.Kind == Put && a.What == putReason {
		l.memory.Explained[a.Gang.Name] = l.Now()
	}
	if a.Kind == Release {
		l.memory.Released[l.snapshot.Gangs[a.Gang.Name].Doc.Reservation.ID] = l.Now()
	}
	keys := l.Ledger.Keys()
	l.snapshot = applied(l.snapshot, c, func(node string) uint64 { return indexes[keys.Slots(node)] })
	return nil
}

// writeTable writes a node's table for an action that is about no gang.
func (l *leader) writeTable(ctx context.Context, a Action) error {
	var table ledger.Versioned[ledger.SlotTable]
	var due bool
	var err error
	switch a.Kind {
	case Ask:
		table, due = ledger.BuildAsk(l.snapshot, a.Node)
	case Restore:
		table, due = ledger.BuildRestore(l.snapshot, a.Node)
	default:
		table, due, err = ledger.BuildSweep(l.snapshot, a.Node, a.Vouched)
	}
	var claims []ledger.NodeSlot
	if a.Vouched != "" {
		claims = l.snapshot.ClaimsOn(a.Node, a.Vouched)
	}
	if err != nil || !due {
		return err
	}
	if table.Index, err = l.Ledger.CommitTable(ctx, l.lease, a.Node, table, claims...); err != nil {
		return err
	}
	l.snapshot.Tables = maps.Clone(l.snapshot.Tables)
	l.snapshot.Tables[a.Node] = table
	return nil
}

// logAction tells operators what was done.
func (l *leader) logAction(a Action) {
	g := a.Gang
	if a.Order != nil {
		l.logOrder(a)
	}
	switch a.Kind {
	case Grant:
		l.Logger.Info("granted", "gang", g.Name, "reservation", g.Reservation.ID, "members", g.Spec.Size(), "gpus", g.Spec.GPUs(), "nodes", nodeNames(g))
	case Close:
		log := l.Logger
		if g.FreedFor != "" {
			log = log.With("for", g.FreedFor)
		}
		log.Info("closing", "gang", g.Name, "reservation", g.Reservation.ID, "code", g.Why.Code, "reason", g.Why.Text)
	case Release:
		l.Logger.Info("released", "gang", g.Name, "then", a.What)
	case Put:
		l.logPut(a)
	case Delete:
		l.Logger.Info("forgotten", "gang", g.Name, "reason", a.What)
	case Refuse:
		if a.Refusal.Ended {
			return // the next step ends the job, and says so
		}
		l.Logger.Info("refused", "job", a.Refusal.Job, "namespace", a.Refusal.Namespace, "reason", a.Refusal.Why.Text)
	case ClearRefusal:
		l.Logger.Info("no longer refused", "job", a.Refusal.Job, "namespace", a.Refusal.Namespace)
	case Ask, Restore:
		l.logHearing(a)
	case Adopt:
		l.Logger.Info("the ledger has a gang's reservation again", "gang", g.Name, "reservation", g.Reservation.ID, "nodes", nodeNames(g))
	case Forget:
		l.Logger.Warn("the ledger was set back: a gang's reservation is gone", "gang", g.Name, "then", cmp.Or(string(g.State), "deleted"))
	case Sweep:
		l.Logger.Info("swept slots that no gang holds", "node", a.Node)
	case Signal:
		l.Logger.Info("signal", "gang", g.Name, "rank", a.Slot.Rank, "alloc", a.Alloc.ID, "task", a.Task, "signal", a.Signal)
	case WriteJob:
		l.logWrite(a)
	case Account:
		l.Logger.Debug("used GPU time written", "queues", len(a.Usage.Queues))
	case DeleteRun:
		l.Logger.Debug("run removed", "gang", a.Run.Gang, "reservation", a.Run.Reservation)
	case Answer, EndClaims, DropOrder: // logged as an order
	}
}

// logOrder says what became of an operator's order.
func (l *leader) logOrder(a Action) {
	o := a.Order.Doc
	log := l.Logger.With("gang", o.Gang, "order", o.Kind, "by", o.By)
	switch {
	case a.Kind == Answer:
		log.Info("order not carried out", "reason", o.Answer.Text)
	case a.Kind == EndClaims:
		log.Info("claims ended for an order", "reservation", o.Reservation, "claims", len(a.Claims))
	case a.Kind == DropOrder:
		log.Debug("order removed", "reason", a.What)
	case o.Kind == ledger.OrderSet:
		log.Info("order carried out", "knobs", knobText(o.Values))
	case o.Kind == ledger.OrderPreempt:
		log.Info("order carried out", "reason", o.Reason, "hold_s", o.HoldS)
	default:
		log.Info("order carried out", "reservation", o.Reservation)
	}
}

func (l *leader) logWrite(a Action) {
	if a.What == endTaker {
		l.Logger.Info("ending a job that would take the slots of any gang", "job", a.Job.ID)
		return
	}
	log := l.Logger.With("gang", a.Gang.Name, "job", a.Job.ID)
	switch a.What {
	case endFinished:
		log.Info("ending the job of a finished gang, which Nomad would run again")
	case endFailed:
		log.Info("ending the job of a gang that has failed for good")
	case endSecond:
		log.Info("ending a job whose gang name is another job's")
	case endReset:
		log.Info("resetting the gang", "change", a.Write)
	}
}

func (l *leader) logHearing(a Action) {
	switch a.What {
	case askNew:
		l.Logger.Info("node is new", "node", a.Node)
	case restoreOther:
		l.Logger.Warn("the ledger was lost or set back: it has the slots now that a node remembers", "node", a.Node)
	default:
		l.Logger.Debug("node heard", "node", a.Node, "kind", a.Kind)
	}
}

func (l *leader) logPut(a Action) {
	g := a.Gang
	log := l.Logger.With("gang", g.Name)
	if m := a.Proposed; m != nil {
		log.Info("could start if others moved", "gangs", m.Gangs, "more", m.MoreGangs,
			"lost_gpu_seconds", math.Round(m.LostGPUSeconds), "saved_gpu_seconds", math.Round(m.SavedGPUSeconds))
	}
	switch a.What {
	case putReason:
		log.Info("waiting", "code", g.Why.Code, "reason", g.Why.Text)
	case putOutlook: // for whoever asks
	case putAdmit:
		log.Info("admitted", "job", g.Job, "namespace", g.Namespace, "members", g.Spec.Size(), "gpus", g.Spec.GPUs())
	case putAgain:
		log.Info("wants to run again", "job", g.Job, "namespace", g.Namespace, "members", g.Spec.Size(), "gpus", g.Spec.GPUs())
	case putVersion:
		log.Info("follows a new version of its job", "version", g.JobVersion, "members", g.Spec.Size(), "gpus", g.Spec.GPUs())
	case putQueue:
		log.Info("follows the queues", "queue", g.Spec.Queue, "locality", g.Spec.Locality)
	case putRunning:
		log.Info("running", "reservation", g.Reservation.ID)
	case putFailed:
		log.Warn("given up", "reason", g.Why.Text)
	case putReset:
		log.Warn("its job is going to be stopped and registered again", "version", g.Reset.FromVersion, "reason", g.Reset.Why)
	case putDone:
		log.Info("its job is registered again", "version", g.JobVersion)
	}
}

// nodeNames are the nodes of a reservation, each once, in order.
func nodeNames(g ledger.Gang) []string {
	var names []string
	for _, p := range g.Reservation.Placements {
		names = append(names, p.Node)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// announce tells a job's users why it waits or is refused.
func (l *leader) announce(a Action, state nomad.State) {
	if l.Announce == nil {
		return
	}
	id, text := jobOf(a.Gang), ""
	switch {
	case a.Kind == Refuse && !a.Refusal.Ended:
		id, text = nomad.JobID{Namespace: a.Refusal.Namespace, ID: a.Refusal.Job}, "Muster refused the gang: "+a.Refusal.Why.Text
	case a.Kind == Put && a.What == putReason:
		text = "The gang waits: " + a.Gang.Why.Text
	case a.Kind == Put && a.What == putReset:
		text = "Muster resets the gang: " + a.Gang.Reset.Why + "; the job is stopped and registered again, and runs from its last checkpoint"
	case a.Kind == Close && a.Gang.After == ledger.GangFailed:
		text = "The gang has failed: " + a.Gang.Why.Text
	case a.Kind == WriteJob && a.What == endSecond:
		id, text = a.Job.ID, fmt.Sprintf("Muster stops the job: it would take the slots of gang %s, which belongs to job %s", a.Gang.Name, a.Gang.Job)
	case a.Kind == WriteJob && a.What == endTaker:
		id, text = a.Job.ID, "Muster stops the job: it names no gang, so it would take the slots of any"
	default:
		return
	}
	job := state.Jobs[id]
	if job == nil || len(job.API.TaskGroups) == 0 || job.API.TaskGroups[0].Name == nil {
		return
	}
	l.Announce(id, *job.API.TaskGroups[0].Name, text)
}
