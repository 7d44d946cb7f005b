// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package queues

import (
	"math"
	"time"
)

// Account is the GPU time that queues have used up to a moment. What was used longer ago counts less: half as much for
// each half-life that has passed since.
type Account struct {
	At         time.Time
	GPUSeconds map[string]float64 // by queue: what its own gangs have held
	HalfLife   time.Duration      // by which they are decayed; 0: not known, taken to be that of the next Advance
}

// forgotten is how little a queue must have used to be left out of the account, in GPU-seconds.
const forgotten = 0.01

// Advance is the account at a later moment, when each queue has held so many GPUs since: an interval of dt seconds turns
// the used u into u*d + gpus*h/ln(2)*(1-d), where h is the half-life in seconds and d = 2^(-dt/h), so that it makes no
// difference into how many intervals time is cut. Use that was decayed by another half-life is brought to this one first, so
// that it stands for as many GPUs on average as before: steady use of g of them comes to g*h/ln(2). The account itself isn't changed. A moment that is not later only takes
// its place.
func (a Account) Advance(to time.Time, held map[string]int, halfLife time.Duration) Account {
	out := Account{At: to, HalfLife: halfLife, GPUSeconds: make(map[string]float64, len(a.GPUSeconds)+len(held))}
	exponent := math.Ln2 * max(to.Sub(a.At).Seconds(), 0) / halfLife.Seconds()
	decay, gained := math.Exp(-exponent), -math.Expm1(-exponent)*halfLife.Seconds()/math.Ln2
	if a.HalfLife > 0 {
		decay *= halfLife.Seconds() / a.HalfLife.Seconds()
	}
	for queue, used := range a.GPUSeconds {
		out.GPUSeconds[queue] = used * decay
	}
	for queue, gpus := range held {
		out.GPUSeconds[queue] += float64(gpus) * gained
	}
	for queue, used := range out.GPUSeconds {
		if used < forgotten && held[queue] == 0 {
			delete(out.GPUSeconds, queue)
		}
	}
	return out
}
