// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/ends"
	"github.com/nomad-muster/muster/placer/policy/locality"
)

// A gang with `muster_relax_after = "auto"` may start anywhere, but trades distance against waiting: it starts in the best
// place that is free unless it would be done sooner if it waited for a better one. When a better one is free follows from
// the expected ends of the gangs that run, how much faster it runs there from package locality. It waits no longer in all
// than it could gain, so that estimates that prove wrong cost it no more than that.

// maxStretch is the most nodes that a better place may have, in multiples of those that the gang needs at least.
const maxStretch = 4

// place is somewhere that a gang could run.
type place struct {
	rung    int // of the ladder
	servers int
	speed   float64
	free    time.Duration // from now until it is expected to be free
}

// trade is a gang's choice between a place that is free and a better one.
type trade struct {
	declines     bool
	here, better place
	gain         time.Duration // less run time in the better place
	until        time.Time     // when it waits no longer
}

// Declines says whether a gang that Fit did not place could start now, but waits for a better place of its own accord.
func (c *Cluster) Declines(g model.Gang, now time.Time) bool {
	t, found := c.trade(&g, now)
	return found && t.declines
}

// trade returns the choice of a gang that has one: it is relaxed by what waiting is worth, and there is a place for it.
func (c *Cluster) trade(g *model.Gang, now time.Time) (trade, bool) {
	if !g.RelaxAuto || g.Size() == 0 || c.rungOf(g.Locality) < 0 || c.memo.fails(c.shapeOf(g, len(c.rungs)-1, false)) {
		return trade{}, false
	}
	a := c.newAttempt(g, rules{nvlink: g.NVLinkRequired})
	p, found := a.fastest(g)
	if !found {
		return trade{}, false
	}
	return a.weigh(g, p, now), true
}

// fastest looks for the place where the gang runs fastest; of several for the innermost.
func (a *attempt) fastest(g *model.Gang) (best plan, found bool) {
	last := len(a.c.rungs) - 1
	if a.members == 0 || !a.possible(a.c.all()) {
		return nil, false
	}
	if p, found := a.onOneNode(); found {
		return p, true
	}
	needed := locality.Needed(*g, a.c.largest)
	most := 0.0
	for r := 1; r <= last; r++ {
		p, found := a.onRung(r)
		if !found {
			continue
		}
		if speed := a.here(g, p).speed; speed > most {
			best, most = p, speed
		}
		if len(p) <= needed {
			break // farther out it is no faster
		}
	}
	return best, best != nil
}

func (a *attempt) here(g *model.Gang, p plan) place {
	nodes := make([]int, 0, len(p))
	for i := range p {
		nodes = append(nodes, i)
	}
	slices.Sort(nodes)
	here := place{servers: len(nodes), rung: a.c.rungOf(a.c.levelOf(nodes))}
	here.speed = a.c.speed(g, here)
	return here
}

func (c *Cluster) speed(g *model.Gang, at place) float64 {
	return locality.Speed(g.Comm, locality.Spread{
		Servers: at.servers, Needed: locality.Needed(*g, c.largest), Apart: locality.Apart(c.levels, c.rungs[at.rung].name),
	})
}

// weigh compares a place that is free with those that will be.
func (a *attempt) weigh(g *model.Gang, p plan, now time.Time) trade {
	t := trade{here: a.here(g, p)}
	if t.here.speed >= 1 || g.Locality == model.LocalityAny {
		return t
	}
	length := float64(lengthOf(g))
	done := length / t.here.speed // from now
	for _, other := range a.c.better(g, t.here) {
		if other.free = a.c.freeIn(a, other, now); other.free == math.MaxInt64 {
			continue
		}
		if sooner := float64(other.free) + length/other.speed; sooner < done {
			done, t.better, t.declines = sooner, other, true
		}
	}
	if t.declines {
		t.gain = time.Duration(length/t.here.speed - length/t.better.speed)
		t.until = g.WaitingSince.Add(t.gain)
		t.declines = now.Before(t.until)
	}
	return t
}

// lengthOf is how long a gang is taken to run in the best place.
func lengthOf(g *model.Gang) time.Duration {
	switch {
	case g.Expected > 0 && g.MaxRuntime > 0:
		return min(g.Expected, g.MaxRuntime)
	case g.Expected > 0:
		return g.Expected
	case g.MaxRuntime > 0:
		return g.MaxRuntime
	}
	return ends.DefaultLength
}

// better lists the places, whether free or not, where the gang would run faster, those closer together first.
func (c *Cluster) better(g *model.Gang, here place) []place {
	var places []place
	needed := locality.Needed(*g, c.largest)
	for r := 0; r <= here.rung; r++ {
		for stretch := 1; stretch <= maxStretch; stretch *= 2 {
			other := place{rung: r, servers: needed * stretch}
			if r == 0 && other.servers > 1 || other.servers > g.Size() {
				break
			}
			if other.speed = c.speed(g, other); other.speed > here.speed {
				places = append(places, other)
			}
		}
	}
	return places
}

// freeIn returns how long it takes until as many nodes as a place has are expected to have room for their part of the gang
// in one domain; math.MaxInt64 if that can't be told. CPU, memory and disk are left aside.
func (c *Cluster) freeIn(a *attempt, at place, now time.Time) time.Duration {
	waits := c.waits(a.part(at.servers), now)
	soonest := time.Duration(math.MaxInt64)
	kth := func(lo, hi int) {
		var in []time.Duration
		for i := lo; i < hi; i++ {
			if waits[i] < soonest && a.accepts(0, i) {
				in = append(in, waits[i])
			}
		}
		if len(in) >= at.servers {
			slices.Sort(in)
			soonest = in[at.servers-1]
		}
	}
	if at.rung == 0 {
		kth(0, len(c.nodes))
		return soonest
	}
	for _, d := range c.rungs[at.rung].domains {
		kth(d.lo, d.hi)
	}
	return soonest
}

// part is how many GPUs each of some servers gives to a gang that is spread evenly over them.
func (a *attempt) part(servers int) int {
	if len(a.asks) == 1 {
		return (a.asks[0].Count + servers - 1) / servers * a.asks[0].GPUs
	}
	return max(a.asks[0].GPUs, (a.gpus+servers-1)/servers)
}

// forecast is when the GPUs of nodes are expected to come free.
type forecast struct {
	*holdings
	now     time.Time
	changes int
	waits   map[int][]time.Duration // by GPUs: for each node how long it takes until so many are free
}

// holdings are what running gangs hold. Clones share them.
type holdings struct {
	running []model.Running
	byNode  [][]holding // nil: not looked at yet
}

type holding struct {
	by   *model.Running
	gpus gpu.Set
}

// release is GPUs that are expected to come free.
type release struct {
	in   time.Duration
	gpus gpu.Set
}

func newForecast(running []model.Running) forecast {
	return forecast{holdings: &holdings{running: running}}
}

// waits returns for each node how long it takes until it is expected to have so many GPUs free; math.MaxInt64 if never.
func (c *Cluster) waits(gpus int, now time.Time) []time.Duration {
	f := &c.forecast
	if f.changes != c.memo.changes || f.waits == nil || !f.now.Equal(now) {
		f.now, f.changes, f.waits = now, c.memo.changes, make(map[int][]time.Duration)
	}
	if known, found := f.waits[gpus]; found {
		return known
	}
	waits := make([]time.Duration, len(c.nodes))
	for i := range c.nodes {
		switch n := &c.nodes[i]; {
		case n.free.Len() >= gpus:
		case n.usable < gpus:
			waits[i] = math.MaxInt64
		default:
			waits[i] = c.waitOn(i, gpus, now)
		}
	}
	f.waits[gpus] = waits
	return waits
}

// waitOn returns how long it takes until node i is expected to have so many GPUs free, which it has not now.
func (c *Cluster) waitOn(i, gpus int, now time.Time) time.Duration {
	if c.forecast.byNode == nil {
		c.forecast.byNode = c.holdings()
	}
	var releases []release
	for _, h := range c.forecast.byNode[i] {
		releases = append(releases, release{in: ends.Guess(h.by, now).Sub(now), gpus: h.gpus})
	}
	slices.SortStableFunc(releases, func(a, b release) int { return cmp.Compare(a.in, b.in) })
	free := c.nodes[i].free
	for _, r := range releases {
		if free |= r.gpus & c.nodes[i].Usable; free.Len() >= gpus {
			return r.in
		}
	}
	return math.MaxInt64
}

// holdings sorts what running gangs hold by node. What is given back for another gang is left out.
func (c *Cluster) holdings() [][]holding {
	byNode := make([][]holding, len(c.nodes))
	for at := range c.forecast.running {
		r := &c.forecast.running[at]
		if r.Closing && r.FreedFor != "" {
			continue
		}
		for _, m := range r.Members {
			if i, known := c.byName[m.Node]; known {
				byNode[i] = append(byNode[i], holding{by: r, gpus: m.GPUs})
			}
		}
	}
	return byNode
}

// text says why a gang waits that could start.
func (t *trade) text(c *Cluster, now time.Time) string {
	what := fmt.Sprintf("%s in one %s, which are", count(t.better.servers, "node"), c.rungs[t.better.rung].name)
	switch {
	case t.better.rung == 0 || t.better.servers == 1:
		what = "one node, which is"
	case t.better.rung == len(c.rungs)-1:
		what = count(t.better.servers, "node") + ", which are"
	}
	across := ""
	if t.here.rung > t.better.rung && t.here.rung > 1 {
		across = " across several " + c.rungs[1].name + "s"
	}
	return fmt.Sprintf("could start now on %s%s, but would run %.0f%% slower there than on %s expected to be free in %s; waits for that at most %s more",
		count(t.here.servers, "node"), across, 100*(1-t.here.speed/t.better.speed), what, roughly(t.better.free), roughly(t.until.Sub(now)))
}
