// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MaxQueuesBytes is the most that the document of all queues may have.
const MaxQueuesBytes = 256 << 10

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
	ReclaimAbove float64 `json:"reclaim_above,omitempty"` // share of all usable GPUs in use above which lent quota is reclaimed; 1: never
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

// Usage is the GPU time that each queue has used, as the leader writes it now and then.
type Usage struct {
	Version   int                `json:"version"`
	At        time.Time          `json:"at"`          // the moment that the figures are of, by the leader's clock
	HalfLifeS int64              `json:"half_life_s"` // seconds; by which they are decayed
	Queues    map[string]float64 `json:"queues"`      // GPU-seconds that its own gangs have held, decayed to At
}

// GetQueues reads the queues that were applied; ErrNotFound: none ever were.
func (l *Ledger) GetQueues(ctx context.Context) (Versioned[Queues], error) {
	return read[Queues](ctx, l.store, l.keys.Queues())
}

// PutQueues applies queues in place of those that were read (Index 0: none), whole or not at all. ErrConflict: somebody
// else has applied others meanwhile; ErrTooLarge.
func (l *Ledger) PutQueues(ctx context.Context, q Versioned[Queues]) (Versioned[Queues], error) {
	q.Doc.Version = Version
	value := encode(q.Doc)
	if len(value) > MaxQueuesBytes {
		return q, &TooLargeError{What: fmt.Sprintf("the queues have %d bytes; the limit is %d", len(value), MaxQueuesBytes)}
	}
	for {
		changed, err := l.store.Txn(ctx, []Op{{Verb: CAS, Key: l.keys.Queues(), Value: value, Index: q.Index}})
		if err == nil {
			return Versioned[Queues]{Doc: q.Doc, Index: changed[0].Index}, nil
		}
		if !errors.Is(err, ErrUnknownOutcome) {
			return q, fmt.Errorf("writing the queues: %w", err)
		}
		there, readErr := l.GetQueues(ctx)
		switch {
		case readErr == nil && string(encode(there.Doc)) == string(value):
			return there, nil
		case readErr != nil && !errors.Is(readErr, ErrNotFound) || !pause(ctx, retryPause):
			return q, fmt.Errorf("writing the queues: %w", err)
		}
	}
}

// PutUsage writes what queues have used, as the leader.
func (l *Ledger) PutUsage(ctx context.Context, lease Lease, u Usage) (uint64, error) {
	u.Version = Version
	index, err := write(ctx, l.store, l.keys.Usage(), u, lease.guard())
	return index, leaseError(err, lease)
}
