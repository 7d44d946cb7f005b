// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import "container/heap"

// endings is a heap: the earliest first, at one instant in the order of the trace.
type endings []*ending

// Len is for package heap.
func (e endings) Len() int { return len(e) }

// Less is for package heap.
func (e endings) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].gang.order < e[j].gang.order
}

// Swap is for package heap.
func (e endings) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].spot, e[j].spot = i, j
}

// Push is for package heap.
func (e *endings) Push(x any) {
	next := x.(*ending)
	next.spot = len(*e)
	*e = append(*e, next)
}

// Pop is for package heap.
func (e *endings) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return last
}

// pop removes the first and returns its gang and instant.
func (e *endings) pop() *ending { return heap.Pop(e).(*ending) }
