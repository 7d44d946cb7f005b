// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
	"github.com/nomad-muster/muster/placer/queues"
)

// want is what a job asks for.
type want struct {
	job     *nomad.Job
	name    string // of the gang
	gang    *jobspecs.Gang
	spec    ledger.Spec
	options jobspecs.Options // by which knobs are read
	tree    queues.Tree
	refused *ledger.Reason // nil: it may be admitted
}

// alive says whether the job waits for GPUs or has them: only such jobs are admitted or refused. A parent never runs
// itself; its children are jobs of their own.
func (w want) alive() bool { return !w.job.Stopped && !w.job.Dead() && !w.job.Parent }

// wants reads every job that asks for a gang.
func (r Rules) wants(v View, tree queues.Tree) map[nomad.JobID]want {
	wants := make(map[nomad.JobID]want, len(v.Nomad.Jobs))
	for id, job := range v.Nomad.Jobs {
		gang, findings := r.Read(job)
		if gang == nil {
			continue
		}
		w := want{job: job, name: gang.Name, gang: gang, tree: tree, options: jobspecs.Options{Levels: append([]string{}, r.Levels...)}}
		w.spec = specOf(w.queued(gang))
		if refusal := findings.Refusal(); refusal != "" {
			w.refused = reason(WhySpec, refusal)
		} else if w.tooLarge() {
			w.refused = reason(WhyTooLarge, "the job has more groups and constraints than the ledger can hold for one gang; write fewer, or make two jobs of it")
		}
		wants[id] = w
	}
	return wants
}

// tooLarge says whether the ledger could not hold the gang's document with a reservation.
func (w want) tooLarge() bool {
	const surelySmall = 1024 // bytes of the texts that have no limit of their own; all else is short
	if len(w.spec.Shape)+len(w.job.ID.ID) <= surelySmall {
		return false
	}
	g := withSpec(newGang(w), w)
	g.Reservation = &ledger.Grant{Shape: w.spec.Shape}
	return ledger.CheckGangSize(g) != nil
}

// specOf turns what package jobspecs read into what the ledger keeps.
func specOf(g *jobspecs.Gang) ledger.Spec {
	spec := ledger.Spec{
		Shape: g.Shape(), Priority: g.Priority, Queue: g.Queue, NVLink: string(g.NVLink), Locality: g.Locality,
		RelaxAfterS: int64(g.RelaxAfter / time.Second), RelaxAuto: g.RelaxAuto, Comm: string(g.Comm), MaxRuntimeS: int64(g.MaxRuntime / time.Second),
	}
	if g.RelaxNever {
		spec.RelaxAfterS = -1
	}
	for _, group := range g.Groups {
		spec.Groups = append(spec.Groups, ledger.GroupSpec{
			Group: group.Name, Value: group.Value, Count: group.Count, GPUs: group.GPUs, Task: group.Task,
			Driver: group.Driver, Checkpoint: group.CheckpointSignal,
		})
	}
	return spec
}

// intake admits jobs that ask for a gang of which there is no document, and refuses those that can't have it. leaving
// are the gangs whose document goes in this step.
func (s step) intake(leaving map[string]bool) []Action {
	var admit []Action
	refusals := map[string]ledger.Refusal{}
	taken := map[string]bool{} // by an admission of this step
	for _, w := range s.byAge() {
		refusal := s.refusalOf(w, leaving)
		switch {
		case refusal != nil:
			refusals[w.job.ID.String()] = ledger.Refusal{
				Version: ledger.Version, Namespace: w.job.ID.Namespace, Job: w.job.ID.ID, CreateIndex: w.job.CreateIndex,
				JobVersion: w.job.Version, Gang: w.name, Why: *refusal, At: s.now,
			}
		case s.exists(w.name) || taken[w.name]:
		default:
			taken[w.name] = true
			admit = append(admit, Action{Kind: Put, What: putAdmit, Gang: s.admitted(w)})
		}
	}
	return append(s.refuse(refusals), admit...)
}

// byAge lists the jobs that are alive, those that were registered first before the others.
func (s step) byAge() []want {
	var out []want
	for _, w := range s.wants {
		if w.alive() {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b want) int {
		return cmp.Or(cmp.Compare(a.job.CreateIndex, b.job.CreateIndex), a.job.ID.Compare(b.job.ID))
	})
	return out
}

func (s step) exists(gang string) bool {
	_, found := s.Ledger.Gangs[gang]
	return found
}

// refusalOf says why a job is not admitted; nil: it is, or will be as soon as what is in its way has gone.
func (s step) refusalOf(w want, leaving map[string]bool) *ledger.Reason {
	doc, exists := s.Ledger.Gangs[w.name]
	if exists && jobOf(doc.Doc) == w.job.ID && doc.Doc.CreateIndex == w.job.CreateIndex && doc.Doc.JobVersion == w.job.Version {
		return nil // was admitted; a rule that has changed since does not end it
	}
	if w.refused != nil {
		return w.refused
	}
	switch {
	case !exists && slices.Contains(s.Ledger.Newer, s.rules.Keys.Gang(w.name)):
		return reason(WhyLedger, fmt.Sprintf("the document of gang %s was written by a newer version of Muster; upgrade this placer", w.name))
	case !exists:
		return s.unwelcome(w.job.ID.Namespace, w.spec)
	case jobOf(doc.Doc) == w.job.ID || leaving[w.name]:
		return nil
	}
	mend := "choose another name"
	if parent := w.job.API.ParentID; parent != nil && *parent != "" {
		mend = "this child of job " + *parent + " gets its turn when that one has ended"
	}
	return reason(WhyNameTaken, fmt.Sprintf("the gang name %s belongs to job %s in namespace %s, which asked first; %s",
		w.name, doc.Doc.Job, doc.Doc.Namespace, mend))
}

// refuse brings the refusals in the ledger in line with those wanted.
func (s step) refuse(wanted map[string]ledger.Refusal) []Action {
	var actions []Action
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		next := wanted[key]
		have, found := s.Ledger.Refusals[key]
		next.At, next.Ended = have.Doc.At, have.Doc.Ended
		if found && have.Doc == next {
			continue
		}
		next.At, next.Ended = s.now, false
		actions = append(actions, Action{Kind: Refuse, Refusal: next})
	}
	for _, key := range slices.Sorted(maps.Keys(s.Ledger.Refusals)) {
		if _, still := wanted[key]; still {
			continue
		}
		have := s.Ledger.Refusals[key].Doc
		if s.known(nomad.JobID{Namespace: have.Namespace, ID: have.Job}) && !s.endedFor(have) {
			actions = append(actions, Action{Kind: ClearRefusal, Refusal: have})
		}
	}
	return actions
}

// endedFor says whether a job stands stopped as it was for its refusal, which is still to be read then.
func (s step) endedFor(r ledger.Refusal) bool {
	job := s.Nomad.Jobs[nomad.JobID{Namespace: r.Namespace, ID: r.Job}]
	return r.Ended && job != nil && job.Stopped && job.CreateIndex == r.CreateIndex && job.Version <= r.JobVersion+1
}

// known says whether Nomad has said what became of a job.
func (s step) known(id nomad.JobID) bool {
	_, gone := s.Nomad.Gone[id]
	return gone || s.Nomad.Jobs[id] != nil
}

// admitted is the first document of a gang. Its place in the queue is when Nomad got the job, so that it does not depend
// on when a placer first saw it.
func (s step) admitted(w want) ledger.Gang {
	g := newGang(w)
	g.Since, g.Submitted = s.now, s.now
	if at := w.job.SubmittedAt; !at.IsZero() && at.Before(s.now) {
		g.Submitted = at
	}
	g.Delay = g.Delay.From(g.Submitted)
	return withSpec(g, w)
}

func newGang(w want) ledger.Gang {
	return ledger.Gang{
		Version: ledger.Version, Name: w.name, Namespace: w.job.ID.Namespace, Job: w.job.ID.ID,
		CreateIndex: w.job.CreateIndex, State: ledger.GangWaiting,
	}
}

// anew is the document of a gang that waits, for a version of its job. What went wrong with another version is not held
// against it.
func anew(g ledger.Gang, w want) ledger.Gang {
	if g.JobVersion != w.job.Version {
		g.Attempts, g.NotBefore, g.Avoid = 0, nil, nil
	}
	return withSpec(g, w)
}

// withSpec is a gang's document for another version of its job.
func withSpec(g ledger.Gang, w want) ledger.Gang {
	if g.JobVersion != w.job.Version {
		g.Failures = 0
	}
	g.Spec, g.JobVersion = w.specWith(g.Set), w.job.Version
	return g
}

// specWith is what the job asks for with an operator's knobs laid over it. One that this cluster does not take any more
// has no effect.
func (w want) specWith(set map[string]string) ledger.Spec {
	gang := w.gang
	for _, knob := range slices.Sorted(maps.Keys(set)) {
		if changed, err := gang.With(map[string]string{knob: set[knob]}, w.options); err == nil {
			gang = changed
		}
	}
	if gang == w.gang {
		return w.spec
	}
	return specOf(w.queued(gang))
}
