// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package order says in which order waiting gangs are tried. It looks at the gangs alone, never at the cluster or a
// clock. Package policy imports it.
package order

import (
	"cmp"
	"slices"

	"github.com/nomad-muster/muster/placer/model"
)

// FirstInFirstOut returns the gangs in the order in which they are tried: higher priority first, then the one that was
// submitted earlier, then by name. Names are unique, so there are no ties. The argument is left as it is.
func FirstInFirstOut(gangs []model.Gang) []model.Gang {
	sorted := slices.Clone(gangs)
	slices.SortFunc(sorted, compare)
	return sorted
}

func compare(a, b model.Gang) int {
	return cmp.Or(
		cmp.Compare(b.Priority, a.Priority),
		a.Submitted.Compare(b.Submitted),
		cmp.Compare(a.Name, b.Name),
	)
}
