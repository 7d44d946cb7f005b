// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package queue is the tree of queues as values: what each is owed, what it uses, what it may borrow, and which of
// two has the better claim to the next free GPU.
//
// A queue is owed its quota. What nobody uses may be borrowed by any queue up to its limit, so that no GPU is kept idle
// for an owner who does not ask; among borrowers, what each has above its quota goes by weight. A gang counts in its
// queue and in all around it. A gang of a queue that is not listed counts in the nearest listed one around it, else in a
// queue without quota or limit. The gangs that are of a queue with others inside are owed what that queue's quota leaves
// beside those of the queues inside.
//
// A tree with impossible figures (quotas of children above the parent's, negative numbers) is refused where queues are
// applied; here every number is taken as it stands, negative ones as nothing. Package policy and its siblings import it.
package queue

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/placer/model"
)

// root is the place of the whole cluster in Tree.queues; it owes nothing to anybody and has no limit.
const root = 0

// Tree is the queues and what they use. It is not safe for concurrent use.
type Tree struct {
	queues []entry        // parents before children
	leaves map[string]int // by name of a queue: where its own gangs count
	rest   int            // where the gangs of queues that are not listed count
}

// entry is a queue, or the own gangs of a queue that has others inside.
type entry struct {
	name    string
	parent  int
	inside  []int
	quota   int
	max     int
	weight  float64
	preempt bool
	used    int     // GPUs that are held by its gangs, those that are being given back included, or promised to them
	leaving int     // the part of used that is being given back
	mean    float64 // GPUs that it has used on average, the recent past counting most
}

// New makes the tree of a snapshot with what its running gangs use.
func New(s model.Snapshot) *Tree {
	t := &Tree{queues: []entry{{parent: -1, weight: 1}}, leaves: make(map[string]int, len(s.Queues))}
	queues := slices.Clone(s.Queues)
	slices.SortStableFunc(queues, func(a, b model.Queue) int { return cmp.Compare(a.Name, b.Name) })
	queues = slices.CompactFunc(queues, func(a, b model.Queue) bool { return a.Name == b.Name })
	halfLife := s.HalfLife
	if halfLife <= 0 {
		halfLife = model.DefaultHalfLife
	}
	for _, q := range queues { // a name sorts after the names of the queues around it
		t.leaves[q.Name] = t.add(entry{
			name: q.Name, parent: t.around(q.Name), quota: max(0, q.Quota), max: max(0, q.Max), weight: positive(q.Weight, 1), preempt: q.Preempt,
		})
	}
	t.separateOwn()
	t.rest = t.add(entry{parent: root, weight: 1})
	for _, q := range queues {
		// Steady use of u GPUs adds up to u x half-life / ln 2 GPU seconds.
		mean := positive(q.GPUSeconds, 0) * math.Ln2 / halfLife.Seconds()
		for i := t.leaves[q.Name]; i >= 0; i = t.queues[i].parent {
			t.queues[i].mean += mean
		}
	}
	for i := range s.Running {
		r := &s.Running[i]
		t.Take(r.Queue, r.GPUs())
		if r.Closing {
			t.Leave(r.Queue, r.GPUs())
		}
	}
	return t
}

func positive(f, otherwise float64) float64 {
	if f > 0 && !math.IsInf(f, 1) {
		return f
	}
	return otherwise
}

func (t *Tree) add(e entry) int {
	t.queues = append(t.queues, e)
	i := len(t.queues) - 1
	t.queues[e.parent].inside = append(t.queues[e.parent].inside, i)
	return i
}

// around returns the nearest listed queue around a name, or the root.
func (t *Tree) around(name string) int {
	for {
		dot := strings.LastIndexByte(name, '.')
		if dot < 0 {
			return root
		}
		name = name[:dot]
		if i, listed := t.leaves[name]; listed {
			return i
		}
	}
}

// separateOwn gives the own gangs of every queue that has others inside a place beside those.
func (t *Tree) separateOwn() {
	for i := 1; i < len(t.queues); i++ {
		e := t.queues[i]
		if len(e.inside) == 0 {
			continue
		}
		quota := e.quota
		for _, child := range e.inside {
			quota -= t.queues[child].quota
		}
		t.leaves[e.name] = t.add(entry{name: e.name, parent: i, quota: max(0, quota), weight: 1, preempt: e.preempt})
	}
}

// Clone returns a copy to try things out on.
func (t *Tree) Clone() *Tree {
	clone := *t
	clone.queues = slices.Clone(t.queues)
	return &clone
}

// leaf returns where the gangs of a queue count.
func (t *Tree) leaf(name string) int {
	if i, listed := t.leaves[name]; listed {
		return i
	}
	if i := t.around(name); i != root {
		return t.leaves[t.queues[i].name]
	}
	return t.rest
}

// Take counts GPUs as used by a queue and all around it; a negative number takes them back.
func (t *Tree) Take(queue string, gpus int) {
	for i := t.leaf(queue); i >= 0; i = t.queues[i].parent {
		t.queues[i].used += gpus
	}
}

// Leave marks GPUs that a queue uses as being given back: they count as used until they are free, but can't be
// claimed once more.
func (t *Tree) Leave(queue string, gpus int) {
	for i := t.leaf(queue); i >= 0; i = t.queues[i].parent {
		t.queues[i].leaving += gpus
	}
}

// Limit says which queue would have more than its limit if one took more GPUs, the innermost, and by how many.
func (t *Tree) Limit(queue string, gpus int) (Use, bool) {
	for i := t.leaf(queue); i >= 0; i = t.queues[i].parent {
		if e := &t.queues[i]; e.max > 0 && e.used+gpus > e.max {
			return e.use(), true
		}
	}
	return Use{}, false
}

// Use is the figures of a queue, in GPUs.
type Use struct {
	Name       string
	Used       int // those that are being given back included
	Leaving    int
	Quota, Max int
}

func (e *entry) use() Use {
	return Use{Name: e.name, Used: e.used, Leaving: e.leaving, Quota: e.quota, Max: e.max}
}

// UseOf returns the figures of the queue that a gang's queue counts as.
func (t *Tree) UseOf(queue string) Use { return t.queues[t.leaf(queue)].use() }

// Holds says whether the gangs of queue inner count in the queue that is named outer.
func (t *Tree) Holds(outer, inner string) bool {
	for i := t.leaf(inner); i > root; i = t.queues[i].parent {
		if t.queues[i].name == outer {
			return true
		}
	}
	return false
}

// Same says whether gangs of two queues count in one and the same, and whether that lets priority evict.
func (t *Tree) Same(a, b string) (same, preempt bool) {
	i := t.leaf(a)
	return i == t.leaf(b), t.queues[i].preempt
}

// Owed says whether a queue has as many more GPUs left of its quota, and so have all around it that have one.
func (t *Tree) Owed(queue string, gpus int) bool {
	i := t.leaf(queue)
	return i != t.rest && t.owed(i, root, gpus)
}

// MayClaim says whether a queue could reclaim as many GPUs from any other: it has them left of its own quota.
func (t *Tree) MayClaim(queue string, gpus int) bool {
	e := &t.queues[t.leaf(queue)]
	return e.used+gpus <= e.quota
}

// owed looks at queue i and those around it, up to but not including the one at the top.
func (t *Tree) owed(i, top, gpus int) bool {
	for ; i != top; i = t.queues[i].parent {
		if t.queues[i].used+gpus > t.queues[i].quota {
			return false
		}
	}
	return true
}

// MayReclaim says whether one queue may have as many GPUs as a gang needs taken back from gangs of another: it has them
// left of its quota, and the other has more than its quota even without what is leaving already. Queues around both have
// no part in it. What the other has left may be less than its quota, since gangs end whole, but the gang that was
// evicted is never one that it could claim back: its queue was above its quota with it.
func (t *Tree) MayReclaim(claimant string, gpus int, victim string) bool {
	a, b := t.leaf(claimant), t.leaf(victim)
	top := t.meet(a, b)
	if a == b || !t.owed(a, top, gpus) {
		return false
	}
	for ; b != top; b = t.queues[b].parent {
		if e := &t.queues[b]; e.used-e.leaving <= e.quota {
			return false
		}
	}
	return true
}

// meet returns the innermost queue around both.
func (t *Tree) meet(a, b int) int {
	for x := a; x >= 0; x = t.queues[x].parent {
		for y := b; y >= 0; y = t.queues[y].parent {
			if x == y {
				return x
			}
		}
	}
	return root
}

// Lines returns how many queues there are: see Line.
func (t *Tree) Lines() int { return len(t.queues) }

// Line returns the number of the line that the gangs of a queue wait in.
func (t *Tree) Line(queue string) int { return t.leaf(queue) }

// First returns the line whose next gang is to be tried first; next says how many GPUs the next gang of a line asks
// for, or false if nobody waits there. From the outermost queue inward, it goes to the best of those that lie
// together: see compare.
func (t *Tree) First(next func(line int) (gpus int, some bool)) (line int, some bool) {
	line, _, some = t.first(root, next)
	return line, some
}

func (t *Tree) first(i int, next func(int) (int, bool)) (line, gpus int, some bool) {
	if len(t.queues[i].inside) == 0 {
		gpus, some = next(i)
		return i, gpus, some
	}
	best := -1
	for _, child := range t.queues[i].inside {
		l, n, found := t.first(child, next)
		if found && (!some || t.compare(child, n, best, gpus) < 0) {
			best, line, gpus, some = child, l, n, true
		}
	}
	return line, gpus, some
}

// Compare orders two queues by their claim to GPUs as they stand, the better one first.
func (t *Tree) Compare(a, b string) int {
	x, y := t.leaf(a), t.leaf(b)
	top := t.meet(x, y)
	if x == y {
		return 0
	}
	return t.compare(t.below(x, top), 0, t.below(y, top), 0)
}

// below returns the queue directly inside top that i is in.
func (t *Tree) below(i, top int) int {
	for t.queues[i].parent != top {
		i = t.queues[i].parent
	}
	return i
}

// compare orders two queues that lie together, given how many GPUs the next gang of each asks for. Those that stay
// within their quota come first, by how much of it they have; then the others, by what they have above it for
// each unit of weight. What a queue has is half what it uses now and half what it has used on average lately, so
// that one that has had much in the past gives way to one that has had little.
func (t *Tree) compare(a, gpusA, b, gpusB int) int {
	x, y := &t.queues[a], &t.queues[b]
	owedX, owedY := x.used+gpusA <= x.quota, y.used+gpusB <= y.quota
	if owedX != owedY {
		if owedX {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(x.level(owedX), y.level(owedY)), cmp.Compare(y.quota, x.quota), cmp.Compare(x.name, y.name), cmp.Compare(a, b))
}

func (e *entry) level(owed bool) float64 {
	has := (float64(e.used) + e.mean) / 2
	if owed {
		return has / float64(max(1, e.quota))
	}
	return (has - float64(e.quota)) / e.weight
}
