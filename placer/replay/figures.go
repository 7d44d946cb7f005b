// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"cmp"
	"slices"
	"time"
)

// Result is what came of a replay. Times are in seconds, GPU time in hours.
type Result struct {
	Policy string `json:"policy"`
	// Jobs that were submitted in the window: all other figures but use and fragmentation are about them.
	JobsIn      int      `json:"jobs_in"`
	JobsOut     int      `json:"jobs_out"`
	Left        []string `json:"left,omitempty"` // those that could never start or did not finish, at most 20
	GPUHoursIn  float64  `json:"gpu_hours_in"`   // of work that was asked for
	GPUHoursOut float64  `json:"gpu_hours_out"`  // of work that was finished

	Held       GPUHours `json:"gpu_hours_held"`
	Wait       Sizes    `json:"wait_s"`       // in the queue, all attempts
	Completion Sizes    `json:"completion_s"` // from submission to the end
	Makespan   float64  `json:"makespan_s"`   // from the first submission to the last end

	Use           float64   `json:"use"`           // share of the GPUs, over the window
	Fragmentation float64   `json:"fragmentation"` // share of the free GPUs on nodes that are not wholly free
	UsePerHour    []float64 `json:"use_per_hour"`
	Began         time.Time `json:"began"` // of UsePerHour

	Causes    Causes            `json:"delay_causes"`
	BySize    map[string]Causes `json:"delay_causes_by_size"`
	Servers   map[int]Locality  `json:"locality_by_gpus"`
	Evictions int               `json:"evictions"`

	OutOfOrder int `json:"out_of_order_starts"`

	Decisions     int      `json:"decisions"`
	PartlyRunning int      `json:"instants_with_a_partly_running_gang"`
	Faults        int      `json:"audit_faults"`
	FaultTexts    []string `json:"audit_fault_texts,omitempty"`
}

// GPUHours is where the GPU time went that gangs held.
type GPUHours struct {
	All      float64 `json:"all"`
	Work     float64 `json:"work"`
	Slow     float64 `json:"slowdown"` // more than at the best placement
	Lost     float64 `json:"lost"`     // work since the last checkpoint before an eviction
	Overhead float64 `json:"overhead"` // closing and restarting
}

// Sizes are statistics of all gangs and of those of each class of size.
type Sizes struct {
	All     Stats            `json:"all"`
	Classes map[string]Stats `json:"by_gpus"`
}

// Stats describe a distribution.
type Stats struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	// Curve is the distribution for plotting: the value at each hundredth.
	Curve []float64 `json:"percentiles"`
}

// Causes are what queued time is put down to, in hours (not GPU-hours).
type Causes struct {
	Gangs         int     `json:"gangs_delayed"` // by 1 s or more
	FairShare     float64 `json:"fair_share_h"`
	Fragmentation float64 `json:"fragmentation_h"`
	Own           float64 `json:"own_h"`
	Round         float64 `json:"next_round_h"` // until the first decision
	All           float64 `json:"all_h"`        // the wait itself, counted apart
}

// Locality says on how many servers gangs of one number of GPUs ran.
type Locality struct {
	GPUHours  float64            `json:"gpu_hours"`
	ByServers map[int]float64    `json:"gpu_hours_by_servers"` // by the servers of the last run
	ByLevel   map[string]float64 `json:"gpu_hours_by_level"`
}

// Class names a gang's class of size, as the paper has them.
func Class(gpus int) string {
	switch {
	case gpus <= 1:
		return "1"
	case gpus <= 4:
		return "2-4"
	case gpus <= 8:
		return "5-8"
	}
	return ">8"
}

// Classes are the classes of size, smallest first.
func Classes() []string { return []string{"1", "2-4", "5-8", ">8"} }

func gpuHours(gpus int, d time.Duration) float64 { return float64(gpus) * d.Hours() }

// samples collects values of all gangs and by class.
type samples struct {
	all     []time.Duration
	byClass map[string][]time.Duration
}

func (s *samples) add(gpus int, d time.Duration) {
	if s.byClass == nil {
		s.byClass = make(map[string][]time.Duration)
	}
	s.all = append(s.all, d)
	s.byClass[Class(gpus)] = append(s.byClass[Class(gpus)], d)
}

func (s *samples) sizes() Sizes {
	sizes := Sizes{All: stats(s.all), Classes: make(map[string]Stats)}
	for class, values := range s.byClass {
		sizes.Classes[class] = stats(values)
	}
	return sizes
}

// stats sorts the values. A percentile is the smallest value that so many in a hundred do not exceed.
func stats(values []time.Duration) Stats {
	if len(values) == 0 {
		return Stats{}
	}
	slices.Sort(values)
	at := func(hundredths int) float64 {
		return values[max(0, (len(values)*hundredths+99)/100-1)].Seconds()
	}
	s := Stats{Count: len(values), P50: at(50), P95: at(95), P99: at(99), Max: at(100)}
	for _, v := range values {
		s.Mean += v.Seconds()
	}
	s.Mean /= float64(len(values))
	for p := range 101 {
		s.Curve = append(s.Curve, at(p))
	}
	return s
}

// result adds up what came of the jobs that are scored, in the order of the trace.
func (w *world) result() *Result {
	r := &Result{BySize: make(map[string]Causes), Servers: make(map[int]Locality), Decisions: w.decisions}
	var waits, completions samples
	var first, last time.Time
	for _, l := range w.jobs {
		if !l.scored {
			continue
		}
		r.JobsIn++
		r.GPUHoursIn += gpuHours(l.job.GPUs, l.job.Duration)
		if l.phase != finished {
			if len(r.Left) < maxFaults {
				r.Left = append(r.Left, l.job.Name)
			}
			continue
		}
		if first.IsZero() {
			first = l.job.Submitted
		}
		if l.finish.After(last) {
			last = l.finish
		}
		r.JobsOut++
		r.GPUHoursOut += gpuHours(l.job.GPUs, l.done)
		r.Evictions += l.evicted
		wait := l.finish.Sub(l.job.Submitted) - l.held
		waits.add(l.job.GPUs, wait)
		completions.add(l.job.GPUs, l.finish.Sub(l.job.Submitted))
		r.addHeld(l)
		r.addCauses(l, wait)
		r.addLocality(l)
		w.conserved(l, wait)
	}
	r.Wait, r.Completion = waits.sizes(), completions.sizes()
	r.Makespan = last.Sub(first).Seconds()
	w.overTime(r)
	w.booksAgree()
	r.PartlyRunning, r.Faults, r.FaultTexts = w.audit.partly, w.audit.count, w.audit.faults
	return r
}

func (r *Result) addHeld(l *life) {
	r.Held.All += gpuHours(l.job.GPUs, l.held)
	r.Held.Work += gpuHours(l.job.GPUs, l.done)
	r.Held.Slow += gpuHours(l.job.GPUs, l.slow)
	r.Held.Lost += gpuHours(l.job.GPUs, l.lost)
	r.Held.Overhead += gpuHours(l.job.GPUs, l.overhead)
}

func (r *Result) addCauses(l *life, wait time.Duration) {
	part := Causes{
		FairShare: l.waited[causeFairShare].Hours(), Fragmentation: l.waited[causeFragmentation].Hours(),
		Own: l.waited[causeOwn].Hours(), Round: l.waited[causeRound].Hours(), All: wait.Hours(),
	}
	if wait >= time.Second {
		part.Gangs = 1
	}
	r.Causes = r.Causes.plus(part)
	r.BySize[Class(l.job.GPUs)] = r.BySize[Class(l.job.GPUs)].plus(part)
}

func (c Causes) plus(d Causes) Causes {
	return Causes{
		Gangs: c.Gangs + d.Gangs, FairShare: c.FairShare + d.FairShare, Fragmentation: c.Fragmentation + d.Fragmentation,
		Own: c.Own + d.Own, Round: c.Round + d.Round, All: c.All + d.All,
	}
}

func (r *Result) addLocality(l *life) {
	key := l.job.GPUs
	loc := r.Servers[key]
	if loc.ByServers == nil {
		loc.ByServers, loc.ByLevel = make(map[int]float64), make(map[string]float64)
	}
	hours := gpuHours(l.job.GPUs, l.held)
	loc.GPUHours += hours
	loc.ByServers[l.servers] += hours
	loc.ByLevel[l.level] += hours
	r.Servers[key] = loc
}

// conserved checks that the parts of a job's time make up the whole.
func (w *world) conserved(l *life, wait time.Duration) {
	if parts := l.done + l.slow + l.lost + l.overhead; parts != l.held || l.done != l.job.Duration || l.slow < 0 {
		w.audit.fault(l.finish, "gang %s held its GPUs for %s, of which %s are accounted for", l.job.Name, l.held, parts)
	}
	if labels := l.waitedInAll(); labels != wait {
		w.audit.fault(l.finish, "gang %s waited for %s, of which %s have a label", l.job.Name, wait, labels)
	}
}

// booksAgree checks that three books of GPU time agree: of the nodes, of the audit, and of the gangs.
func (w *world) booksAgree() {
	gangs := int64(0)
	for _, l := range w.jobs {
		held := l.held
		if l.phase == running || l.phase == closing {
			held += w.now.Sub(l.started)
		}
		gangs += held.Microseconds() * int64(l.job.GPUs)
	}
	audited := w.audit.micros
	for name, h := range w.audit.holds {
		audited += w.now.Sub(h.since).Microseconds() * int64(w.audit.jobs[name].GPUs)
	}
	if gangs != w.tally.held || gangs != audited {
		w.audit.fault(w.now, "GPU time is %d us by gangs, %d by grants and %d by nodes", gangs, audited, w.tally.held)
	}
}

func (w *world) overTime(r *Result) {
	t := w.tally
	r.Began, r.OutOfOrder = t.began, t.overtakes
	if whole := t.busy + t.idle; whole > 0 {
		r.Use = float64(t.busy) / float64(whole)
	}
	if t.idle > 0 {
		r.Fragmentation = float64(t.fragments) / float64(t.idle)
	}
	step := SeriesStep.Microseconds() * int64(t.gpus)
	for i, busy := range t.series {
		whole := step
		if i == len(t.series)-1 {
			whole = cmp.Or(t.ended.Sub(t.began).Microseconds()-int64(i)*SeriesStep.Microseconds(), 1) * int64(t.gpus)
		}
		r.UsePerHour = append(r.UsePerHour, float64(busy)/float64(whole))
	}
}

// On is the share of the GPU-hours that was spent on so many servers.
func (l Locality) On(servers int) float64 {
	if l.GPUHours == 0 {
		return 0
	}
	return l.ByServers[servers] / l.GPUHours
}
