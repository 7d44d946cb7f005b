// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/queues"
)

// accountEvery is how often the GPU time that queues have used is written. A leader that is lost takes with it what was
// used since.
const accountEvery = time.Minute

// holding are the GPUs that each queue's own gangs hold, those that they are giving back included.
func (v View) holding() map[string]int {
	held := map[string]int{}
	for _, g := range v.Ledger.Gangs {
		if g.Doc.Reservation == nil {
			continue
		}
		for _, p := range g.Doc.Reservation.Placements {
			held[g.Doc.Spec.Queue] += p.Members * p.GPUs
		}
	}
	return held
}

// used is the account of queues now, with what they have held since a leader has last looked. What nobody has looked at,
// since none led, counts as held by those that hold GPUs now.
func (v View) used(before Memory, holding map[string]int, now time.Time) queues.Account {
	account, held := before.Used, before.Holding
	if account.At.IsZero() {
		written := v.Ledger.Usage
		if written.Index == 0 {
			return queues.Account{At: now}
		}
		account, held = queues.Account{
			At: written.Doc.At, GPUSeconds: written.Doc.Queues, HalfLife: time.Duration(written.Doc.HalfLifeS) * time.Second,
		}, holding
	}
	return account.Advance(now, held, queues.New(v.Ledger.Queues.Doc).HalfLife())
}

// accounts writes what queues have used, now and then. Without queues there is nobody to compare.
func (s step) accounts() []Action {
	written := s.Ledger.Usage
	fresh := written.Index > 0 && s.now.Sub(written.Doc.At).Abs() < accountEvery
	if fresh || len(s.tree.Listed()) == 0 || slices.Contains(s.Ledger.Newer, s.rules.Keys.Usage()) {
		return nil
	}
	usage := ledger.Usage{
		Version: ledger.Version, At: s.now, HalfLifeS: int64(s.tree.HalfLife() / time.Second), Queues: map[string]float64{},
	}
	const places = 1000 // a thousandth of a GPU-second is enough
	for queue, used := range s.Memory.Used.GPUSeconds {
		usage.Queues[queue] = math.Round(used*places) / places
	}
	return []Action{{Kind: Account, Usage: usage}}
}

// queued is a gang in the queue that its job names, or that its namespace belongs to, with what the queue says where the
// job says nothing. A default that this cluster does not take has no effect.
func (w want) queued(gang *jobspecs.Gang) *jobspecs.Gang {
	if !gang.States("queue") {
		if home := w.tree.Home(gang.Namespace); home != gang.Queue {
			moved := *gang
			moved.Queue, gang = home, &moved
		}
	}
	defaults := w.tree.Defaults(gang.Queue)
	for _, knob := range slices.Sorted(maps.Keys(defaults)) {
		if changed, err := gang.WithDefaults(map[string]string{knob: defaults[knob]}, w.options); err == nil {
			gang = changed
		}
	}
	return gang
}

// unwelcome says why a job may not be in its queue; nil: it may.
func (s step) unwelcome(namespace string, spec ledger.Spec) *ledger.Reason {
	if slices.Contains(s.Ledger.Newer, s.rules.Keys.Queues()) {
		return reason(WhyLedger, "the queues were written by a newer version of Muster; upgrade this placer")
	}
	if why := s.tree.Refusal(spec.Queue, namespace, spec.Priority); why != "" {
		return reason(WhyQueue, why)
	}
	return nil
}

// strandedIn says why a gang that was admitted may not start in its queue any more; nil: it may.
func (s step) strandedIn(g ledger.Gang) *ledger.Reason {
	why := s.unwelcome(g.Namespace, g.Spec)
	if why != nil && why.Code == WhyQueue {
		why.Text += fmt.Sprintf("; 'muster set %s queue=<name>' moves it without touching its job", g.Name)
	}
	return why
}

// requeued is a gang as the queues say now, if that is something else than when its document was written. What it holds
// stays as it is.
func requeued(g ledger.Gang, w want) (ledger.Gang, bool) {
	if g.JobVersion != w.job.Version {
		return g, false
	}
	have, now := g.Spec, w.specWith(g.Set)
	if have.Queue == now.Queue && have.NVLink == now.NVLink && have.Locality == now.Locality &&
		have.RelaxAfterS == now.RelaxAfterS && have.RelaxAuto == now.RelaxAuto && have.Comm == now.Comm {
		return g, false
	}
	g.Spec.Queue, g.Spec.NVLink, g.Spec.Locality = now.Queue, now.NVLink, now.Locality
	g.Spec.RelaxAfterS, g.Spec.RelaxAuto, g.Spec.Comm = now.RelaxAfterS, now.RelaxAuto, now.Comm
	return g, true
}
