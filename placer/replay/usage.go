// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"math"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

// usage is the GPU time that each queue has used, decayed with a half-life.
type usage struct {
	halfLife time.Duration
	queues   map[string]*used
}

// used is one queue's GPU-seconds as of a moment, and how many GPUs it has had since.
type used struct {
	seconds float64
	at      time.Time
	gpus    int
}

func newUsage(queues []model.Queue, s model.Settings) *usage {
	u := &usage{halfLife: s.HalfLife, queues: make(map[string]*used, len(queues))}
	if u.halfLife == 0 {
		u.halfLife = model.DefaultHalfLife
	}
	for _, q := range queues {
		u.queues[q.Name] = &used{}
	}
	return u
}

// change notes that a queue holds more GPUs from now on, or fewer.
func (u *usage) change(queue string, gpus int, now time.Time) {
	if q := u.queues[queue]; q != nil {
		u.settle(q, now)
		q.gpus += gpus
	}
}

// settle brings a queue's account to the moment: what was there decays, and what was used since decays from when it was
// used, which is the integral of gpus * 2^(-t/halfLife).
func (u *usage) settle(q *used, now time.Time) {
	if q.at.IsZero() {
		q.at = now
	}
	left := math.Exp2(-float64(now.Sub(q.at)) / float64(u.halfLife))
	q.seconds = q.seconds*left + float64(q.gpus)*u.halfLife.Seconds()/math.Ln2*(1-left)
	q.at = now
}

// bill writes the accounts into the snapshot.
func (w *world) bill(now time.Time) {
	for i := range w.snapshot.Queues {
		if q := w.usage.queues[w.snapshot.Queues[i].Name]; q != nil {
			w.usage.settle(q, now)
			w.snapshot.Queues[i].GPUSeconds = q.seconds
		}
	}
}

// kind is what gangs have in common whose run times are taken to be alike. The traces have no job names.
type kind struct {
	queue, user string
	gpus        int
}

// estimates are how long gangs of each kind have run, learned as the placer learns them.
type estimates map[kind]ledger.RunTime

func kindOf(j *trace.Job) kind { return kind{queue: j.Queue, user: j.User, gpus: j.GPUs} }

func (e estimates) of(j *trace.Job) time.Duration { return e[kindOf(j)].Typical() }

func (e estimates) add(j *trace.Job, ran time.Duration, now time.Time) {
	e[kindOf(j)] = e[kindOf(j)].With(ran, now)
}
