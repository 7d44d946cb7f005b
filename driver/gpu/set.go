// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxGPUs is how many GPUs of one machine a Set can hold.
const MaxGPUs = 64

// Errors of looking up GPUs; they come wrapped with the GPU in question.
var (
	ErrUnknownGPU = errors.New("no such GPU on this machine")
	ErrNotASet    = errors.New("not a list of GPU indexes")
)

// SetOf returns the set of the given indexes. Indexes outside 0 to MaxGPUs-1 are ignored.
func SetOf(indexes ...int) Set {
	var s Set
	for _, i := range indexes {
		s = s.Add(i)
	}
	return s
}

// FirstN returns the set of the indexes 0 to n-1; n above MaxGPUs counts as MaxGPUs.
func FirstN(n int) Set {
	switch {
	case n <= 0:
		return 0
	case n >= MaxGPUs:
		return ^Set(0)
	}
	return Set(1)<<n - 1
}

// ParseSet reads what Set.String writes: indexes and ranges, for example "0-3,6". The empty string is the empty
// set. Errors match ErrNotASet.
func ParseSet(text string) (Set, error) {
	var s Set
	if text == "" {
		return 0, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := parseIndex(from)
		if err != nil {
			return 0, fmt.Errorf("%w: %q in %q: %w", ErrNotASet, part, text, err)
		}
		last, err := parseIndex(to)
		if err != nil {
			return 0, fmt.Errorf("%w: %q in %q: %w", ErrNotASet, part, text, err)
		}
		if last < first {
			return 0, fmt.Errorf("%w: %q in %q runs backwards", ErrNotASet, part, text)
		}
		s |= FirstN(last+1) &^ FirstN(first)
	}
	return s, nil
}

func parseIndex(text string) (int, error) {
	i, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, err
	}
	if i >= MaxGPUs {
		return 0, fmt.Errorf("an index is at most %d", MaxGPUs-1)
	}
	return int(i), nil
}

// Add returns the set with index i in it.
func (s Set) Add(i int) Set {
	if i < 0 || i >= MaxGPUs {
		return s
	}
	return s | 1<<i
}

// Remove returns the set without index i.
func (s Set) Remove(i int) Set { return s &^ SetOf(i) }

// Has says whether index i is in the set.
func (s Set) Has(i int) bool { return s&SetOf(i) != 0 }

// Contains says whether every index of other is in the set.
func (s Set) Contains(other Set) bool { return other&^s == 0 }

// Len returns how many indexes the set holds.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// All yields the indexes of the set, lowest first.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(s.first()) {
				return
			}
		}
	}
}

// Indexes returns the indexes of the set, lowest first.
func (s Set) Indexes() []int {
	indexes := make([]int, 0, s.Len())
	for i := range s.All() {
		indexes = append(indexes, i)
	}
	return indexes
}

// String writes the set as indexes and ranges, for example "0-3,6".
func (s Set) String() string {
	var b strings.Builder
	for s != 0 {
		first := s.first()
		last := first
		for s.Has(last + 1) {
			last++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
		s &^= FirstN(last + 1)
	}
	return b.String()
}

// first returns the lowest index of a set that is not empty.
func (s Set) first() int { return bits.TrailingZeros64(uint64(s)) }

// All returns the set of all GPUs of the machine.
func (m Machine) All() Set { return FirstN(len(m.GPUs)) }

// SetOf returns the set of the GPUs with the given UUIDs. Errors match ErrUnknownGPU and name the UUID.
func (m Machine) SetOf(uuids []string) (Set, error) {
	var s Set
	for _, uuid := range uuids {
		i, found := m.find(uuid)
		if !found {
			return 0, fmt.Errorf("%w: %s", ErrUnknownGPU, uuid)
		}
		s = s.Add(i)
	}
	return s, nil
}

// UUIDs returns the UUIDs of the GPUs in the set, in index order.
func (m Machine) UUIDs(s Set) []string {
	uuids := make([]string, 0, s.Len())
	for i := range (s & m.All()).All() {
		uuids = append(uuids, m.GPUs[i].UUID)
	}
	return uuids
}

// Free returns the GPUs that may be chosen: known to be healthy, not in MIG mode, neither unmanaged nor taken
// (both lists of UUIDs; one that is not on this machine is ignored). A GPU without an entry in health is not free,
// since nobody vouches for it.
func (m Machine) Free(health map[string]Health, unmanaged, taken []string) Set {
	var free Set
	for i, g := range m.GPUs {
		if health[g.UUID].State == Healthy && !g.MIG {
			free = free.Add(i)
		}
	}
	for _, list := range [][]string{unmanaged, taken} {
		for _, uuid := range list {
			if i, found := m.find(uuid); found {
				free = free.Remove(i)
			}
		}
	}
	return free
}

func (m Machine) find(uuid string) (index int, found bool) {
	for i := range m.GPUs {
		if m.GPUs[i].UUID == uuid {
			return i, true
		}
	}
	return 0, false
}
