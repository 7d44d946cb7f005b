// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu

import "math"

// greedy grows one set from each free GPU, adding the GPU that makes the best set each time, and returns the best.
func (s *search) greedy(k int) Set {
	for start := range s.free.All() {
		set := SetOf(start)
		sc := s.score(set, math.MaxUint64, 0)
		for set.Len() < k {
			set, sc = s.grow(set, sc)
		}
		if order := sc.compare(s.better); s.best == 0 || order > 0 || order == 0 && lower(set, s.best) {
			s.best, s.better = set, sc
		}
	}
	return s.best
}

// grow adds the GPU with which the set scores best, the lowest index among equals.
func (s *search) grow(set Set, old score) (Set, score) {
	var best Set
	var better score
	for i := range (s.free &^ set).All() {
		weakest, total := old.weakest, old.total
		for j := range set.All() {
			v := s.t.at(i, j)
			weakest = min(weakest, v.strength())
			total += v
		}
		if sc := s.score(set.Add(i), weakest, total); best == 0 || sc.compare(better) > 0 {
			best, better = set.Add(i), sc
		}
	}
	return best, better
}

// lower says whether a's list of indexes, which is as long as b's, comes first.
func lower(a, b Set) bool {
	differ := a ^ b
	return differ != 0 && a.Has(differ.first())
}
