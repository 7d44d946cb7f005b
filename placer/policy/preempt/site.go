// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package preempt

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/queue"
)

// site is the cluster with the victims on each node.
type site struct {
	*Request
	groups []*model.Group    // most GPUs first
	held   map[int][]*Victim // by node: those that hold GPUs there, in the order of Request.Victims
	// How the loss of a victim that holds GPUs on several nodes counts when room is looked for on one of them: by its part
	// there, which finds the victims that make room on several of the nodes that are needed, or whole, which spares those that
	// do not. Neither is always better, so both are tried where there are such victims.
	counts []bool
}

func newSite(r *Request, victims []*Victim) *site {
	s := &site{Request: r, held: make(map[int][]*Victim), counts: []bool{false}}
	for i := range r.Gang.Groups {
		if r.Gang.Groups[i].Count > 0 {
			s.groups = append(s.groups, &r.Gang.Groups[i])
		}
	}
	slices.SortStableFunc(s.groups, func(a, b *model.Group) int { return cmp.Compare(b.GPUs, a.GPUs) })
	for _, v := range victims {
		v.on = nil
		for _, m := range v.Members {
			if i, known := r.Cluster.Number(m.Node); known {
				v.add(i, (m.GPUs & r.Cluster.Usable(i)).Len())
			}
		}
		for _, p := range v.on {
			s.held[p.node] = append(s.held[p.node], v)
		}
		if len(v.on) > 1 && len(s.counts) == 1 {
			s.counts = append(s.counts, true)
		}
	}
	return s
}

// add counts GPUs that the victim holds on a node.
func (v *Victim) add(node, gpus int) {
	for at := range v.on {
		if v.on[at].node == node {
			v.on[at].gpus += gpus
			return
		}
	}
	v.on = append(v.on, part{node: node, gpus: gpus})
}

// gpusOn returns how many GPUs the victim holds on a node.
func (v *Victim) gpusOn(node int) int {
	for _, p := range v.on {
		if p.node == node {
			return p.gpus
		}
	}
	return 0
}

// cheapest returns the victims for each of the few domains where they lose least.
func (s *site) cheapest(domains [][]int) [][]*Victim {
	type scored struct {
		victims []*Victim
		lost    float64
	}
	var best []scored
	for _, nodes := range domains {
		usable := 0
		for _, i := range nodes {
			usable += s.Cluster.Usable(i).Len()
		}
		if usable < s.Gang.GPUs() {
			continue
		}
		for _, whole := range s.counts {
			c := &chooser{site: s, nodes: nodes, whole: whole, tree: s.Tree.Clone(), chosen: make(map[*Victim]bool), freed: make(map[int]int)}
			if victims, found := c.choose(); found {
				best = append(best, scored{victims: victims, lost: Plan{Victims: victims}.Lost()})
			}
		}
		slices.SortStableFunc(best, func(a, b scored) int { return cmp.Compare(a.lost, b.lost) })
		best = best[:min(len(best), maxDomains)]
	}
	var all [][]*Victim
	for _, b := range best {
		all = append(all, b.victims)
	}
	return all
}

// chooser chooses the victims in one domain.
type chooser struct {
	*site
	nodes  []int
	whole  bool        // see site.counts
	tree   *queue.Tree // in which those that are chosen leave
	order  []*Victim   // chosen, in that order
	chosen map[*Victim]bool
	freed  map[int]int  // by node: GPUs of those chosen, less what the gang's members take
	opens  map[int]bool // nodes that accept the group that is being placed
	rooms  rooms
}

// choose finds room for one member after another where it costs least, or says that there is none.
func (c *chooser) choose() ([]*Victim, bool) {
	for _, group := range c.groups {
		c.rooms, c.opens = c.rooms[:0], make(map[int]bool, len(c.nodes))
		for _, i := range c.nodes {
			if c.Cluster.Accepts(group, i) {
				c.opens[i] = true
				c.offer(i, group)
			}
		}
		for range group.Count {
			if !c.place(group) {
				return nil, false
			}
		}
	}
	return c.order, true
}

// offer notes what room for one more member of the group on node i costs, if there can be any.
func (c *chooser) offer(i int, group *model.Group) {
	if victims, cost, found := c.cost(i, group.GPUs); found {
		heap.Push(&c.rooms, room{node: i, cost: cost, victims: len(victims)})
	}
}

// place takes the cheapest room. What was noted may have become dearer, when victims there may not be evicted any more, or
// cheaper, when one was chosen for another node; then it is noted anew.
func (c *chooser) place(group *model.Group) bool {
	for len(c.rooms) > 0 {
		cheapest := heap.Pop(&c.rooms).(room)
		i := cheapest.node
		victims, cost, found := c.cost(i, group.GPUs)
		if !found {
			continue
		}
		if now := (room{node: i, cost: cost, victims: len(victims)}); len(c.rooms) > 0 && c.rooms[0].before(now) {
			heap.Push(&c.rooms, now)
			continue
		}
		for _, v := range victims {
			c.evict(v)
		}
		c.freed[i] -= group.GPUs
		c.offer(i, group)
		for _, v := range victims {
			for _, p := range v.on {
				if p.node != i && c.opens[p.node] {
					c.offer(p.node, group)
				}
			}
		}
		return true
	}
	return false
}

func (c *chooser) evict(v *Victim) {
	c.chosen[v] = true
	c.order = append(c.order, v)
	c.tree.Leave(v.Queue, v.GPUs())
	for _, p := range v.on {
		c.freed[p.node] += p.gpus
	}
}

// cost returns whom to evict on node i so that as many GPUs more are free there, and what that costs: see
// site.counts.
func (c *chooser) cost(i, gpus int) (victims []*Victim, cost float64, found bool) {
	lack := gpus - c.Cluster.Free(i).Len() - c.freed[i]
	if lack <= 0 {
		return nil, 0, true
	}
	tree := c.tree
	for _, v := range c.held[i] {
		if c.chosen[v] || !c.May(tree, v) {
			continue
		}
		if len(victims) == 0 {
			tree = tree.Clone() // not before somebody is chosen
		}
		victims = append(victims, v)
		tree.Leave(v.Queue, v.GPUs())
		if lack -= v.gpusOn(i); lack <= 0 {
			break
		}
	}
	if lack > 0 {
		return nil, 0, false
	}
	victims = slices.DeleteFunc(victims, func(v *Victim) bool { // the last may have made the first superfluous
		if n := v.gpusOn(i); lack+n <= 0 {
			lack += n
			return true
		}
		return false
	})
	for _, v := range victims {
		if c.whole {
			cost += v.Lost
		} else {
			cost += v.share(v.gpusOn(i))
		}
	}
	return victims, cost, true
}

// room is room for one member on a node.
type room struct {
	node    int
	cost    float64
	victims int
}

func (r room) before(other room) bool {
	return cmp.Or(cmp.Compare(r.cost, other.cost), cmp.Compare(r.victims, other.victims), cmp.Compare(r.node, other.node)) < 0
}

// rooms is a heap, the cheapest first.
type rooms []room

func (r rooms) Len() int           { return len(r) }
func (r rooms) Less(i, j int) bool { return r[i].before(r[j]) }
func (r rooms) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *rooms) Push(x any)        { *r = append(*r, x.(room)) }
func (r *rooms) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}
