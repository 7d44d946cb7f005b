// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package queues is what an operator can say about queues: it reads the queue file, says which queue a job belongs to
// and whether it may use it, hands queues and settings to the policy, and keeps account of the GPU time of each queue.
// Everything in it is computed from values; the ledger keeps what was applied, and the engine acts on it.
package queues

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
)

// Tree answers questions about queues that were applied. The zero value is a cluster without any: one queue without
// quota or limit, that everybody may use.
type Tree struct {
	doc        ledger.Queues
	queues     map[string]ledger.Queue
	namespaces map[string]string // the queue that lists each
}

// New makes a tree of the ledger's document; the zero document gives the zero Tree.
func New(doc ledger.Queues) Tree {
	t := Tree{doc: doc, queues: make(map[string]ledger.Queue, len(doc.Queues)), namespaces: map[string]string{}}
	for _, q := range doc.Queues {
		t.queues[q.Name] = q
		for _, namespace := range q.Namespaces {
			t.namespaces[namespace] = q.Name
		}
	}
	return t
}

// Home is the queue of a job that names none: the one that lists its namespace, else "default".
func (t Tree) Home(namespace string) string {
	return cmp.Or(t.namespaces[namespace], jobspecs.DefaultQueue)
}

// Has says whether a job may name a queue. The queue "default" is always there; where the file does not list it, it has
// no quota and no limit.
func (t Tree) Has(queue string) bool {
	_, listed := t.queues[queue]
	return listed || len(t.queues) == 0 || queue == jobspecs.DefaultQueue
}

// Refusal says in words why a job of a namespace, with a priority, may not be in a queue, with the mend; empty: it may.
func (t Tree) Refusal(queue, namespace string, priority int) string {
	if !t.Has(queue) {
		return fmt.Sprintf("there is no queue %s; 'muster queue list' shows those there are", queue)
	}
	if allowed := t.OpenTo(queue); len(allowed) > 0 && !slices.Contains(allowed, namespace) {
		return fmt.Sprintf("queue %s takes only jobs of namespace %s, and this one is of namespace %s; %s",
			queue, strings.Join(allowed, " or "), namespace, t.elsewhere(queue, namespace))
	}
	if r := t.priorities(queue); r != nil && (priority < r.Min || priority > r.Max) {
		return fmt.Sprintf("queue %s takes priorities from %d to %d and the job has %d; change the job's priority", queue, r.Min, r.Max, priority)
	}
	return ""
}

// elsewhere is the mend for a job that may not use a queue.
func (t Tree) elsewhere(queue, namespace string) string {
	const ask = "ask an operator to add the namespace to the queue"
	home := t.Home(namespace)
	if allowed := t.OpenTo(home); home == queue || len(allowed) > 0 && !slices.Contains(allowed, namespace) {
		return ask
	}
	return fmt.Sprintf("use queue %s, or %s", home, ask)
}

// OpenTo are the namespaces that may use a queue, as it or the nearest around it lists them. None: everybody may.
func (t Tree) OpenTo(queue string) []string {
	for name := range upwards(queue) {
		if list := t.queues[name].Namespaces; len(list) > 0 {
			return list
		}
	}
	return nil
}

// Priorities is the range of job priorities that a queue takes: its own, or that of the nearest queue around it, else all.
func (t Tree) Priorities(queue string) ledger.PriorityRange {
	if r := t.priorities(queue); r != nil {
		return *r
	}
	return ledger.PriorityRange{Min: 1, Max: jobspecs.MaxPriority}
}

func (t Tree) priorities(queue string) *ledger.PriorityRange {
	for name := range upwards(queue) {
		if r := t.queues[name].Priority; r != nil {
			return r
		}
	}
	return nil
}

// Defaults are the knobs that hold for jobs of a queue which do not say them, each from the nearest queue that has it.
func (t Tree) Defaults(queue string) map[string]string {
	out := map[string]string{}
	for name := range upwards(queue) {
		for knob, value := range Knobs(t.queues[name].Defaults) {
			if _, nearer := out[knob]; !nearer {
				out[knob] = value
			}
		}
	}
	return out
}

// Knobs are defaults as package jobspecs takes them; those that are not set are left out.
func Knobs(d ledger.QueueDefaults) map[string]string {
	out := map[string]string{}
	for knob, value := range map[string]string{"nvlink": d.NVLink, "locality": d.Locality, "relax_after": d.RelaxAfter} {
		if value != "" {
			out[knob] = value
		}
	}
	return out
}

// upwards are a queue and those around it, the nearest first.
func upwards(queue string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := queue; ; {
			if !yield(name) {
				return
			}
			if name = Parent(name); name == "" {
				return
			}
		}
	}
}

// Parent is the name of the queue around another; empty: it is at the top.
func Parent(queue string) string { return queue[:max(strings.LastIndexByte(queue, '.'), 0)] }

// Listed are the queues of the file, in its order.
func (t Tree) Listed() []ledger.Queue { return t.doc.Queues }

// Queues are the queues as the policy knows them, in the order of the file, with the GPU time that each has used. The
// queue "default" is among them where there are any.
func (t Tree) Queues(used Account) []model.Queue {
	if len(t.doc.Queues) == 0 {
		return nil
	}
	out := make([]model.Queue, 0, len(t.doc.Queues)+1)
	for _, q := range t.doc.Queues {
		out = append(out, model.Queue{
			Name: q.Name, Quota: q.Quota, Max: q.Max, Weight: q.Weight, Preempt: q.Preempt, GPUSeconds: used.GPUSeconds[q.Name],
		})
	}
	if _, listed := t.queues[jobspecs.DefaultQueue]; !listed {
		out = append(out, model.Queue{Name: jobspecs.DefaultQueue, GPUSeconds: used.GPUSeconds[jobspecs.DefaultQueue]})
	}
	return out
}

// Settings are what the file says about the policy.
func (t Tree) Settings() model.Settings {
	p := t.doc.Policy
	return model.Settings{
		HalfLife: seconds(p.HalfLifeS), MinRuntime: seconds(p.MinRuntimeS), ReclaimAbove: p.ReclaimAbove,
		Evictions: p.Evictions, AgeBound: seconds(p.AgeBoundS), Defragment: p.Defragment,
	}
}

// HalfLife is that of the GPU time that queues have used.
func (t Tree) HalfLife() time.Duration {
	return cmp.Or(seconds(t.doc.Policy.HalfLifeS), model.DefaultHalfLife)
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }
