// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import "time"

// Queues is the whole tree of queues and what was decided about the policy, as an operator has applied them. A ledger
// without it has one queue without quota or limit.
type Queues struct {
	Version int       `json:"version"`
	Policy  Policy    `json:"policy"`
	Queues  []Queue   `json:"queues"` // a queue comes before those inside it
	By      string    `json:"by"`     // who applied it, for people
	At      time.Time `json:"at"`     // when, for people
}

// Policy is what an operator has decided about the policy; the zero value of each field is its default.
type Policy struct {
	HalfLifeS    int64   `json:"half_life_s,omitempty"`   // seconds; of the GPU time that fair share looks back on
	MinRuntimeS  int64   `json:"min_runtime_s,omitempty"` // seconds; a gang is not evicted sooner after its start
	ReclaimAbove float64 `json:"reclaim_above,omitempty"` // share of all usable GPUs in use from which lent quota is reclaimed
	Evictions    int     `json:"evictions,omitempty"`     // of one gang within a day, at most
	AgeBoundS    int64   `json:"age_bound_s,omitempty"`   // seconds; who has waited for so long goes before all younger ones of its queue
	Defragment   bool    `json:"defragment,omitempty"`    // moves are carried out, not only proposed
}

// Queue is a share of the cluster. The name of a queue inside another starts with the other's and a dot.
type Queue struct {
	Name       string         `json:"name"`
	Quota      int            `json:"quota,omitempty"`      // GPUs that it is owed, a part of its parent's
	Max        int            `json:"max,omitempty"`        // GPUs that it and all inside it may hold; 0: no limit
	Weight     float64        `json:"weight,omitempty"`     // its part of what nobody is owed or uses, beside its siblings; 0: 1
	Namespaces []string       `json:"namespaces,omitempty"` // that may use it, and whose jobs go here if they name no queue; none: those of its parent
	Priority   *PriorityRange `json:"priority,omitempty"`   // of its gangs; nil: its parent's
	Preempt    bool           `json:"preempt,omitempty"`    // gangs of higher priority may evict those of lower priority of this queue
	Defaults   QueueDefaults  `json:"defaults,omitzero"`
}

// PriorityRange is the job priorities that a queue takes, both ends included.
type PriorityRange struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// QueueDefaults is what holds for jobs of a queue that do not say it themselves, in the form of the job's meta; empty:
// what holds in the queue's parent.
type QueueDefaults struct {
	NVLink     string `json:"nvlink,omitempty"`
	Locality   string `json:"locality,omitempty"`
	RelaxAfter string `json:"relax_after,omitempty"`
}
