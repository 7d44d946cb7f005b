// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/policy/words"
)

// needs tells what ask k wants, or the whole gang if k is -1; free is "free " or empty.
func (e *explanation) needs(k int, free string) string {
	if k >= 0 {
		who := "needs"
		if len(e.full.asks) > 1 {
			who = "group " + e.full.asks[k].Name + " needs"
		}
		want := e.full.asks[k]
		gpus := count(want.GPUs, free+"GPU")
		if e.g.NVLinkRequired && want.GPUs > 1 {
			gpus += " joined by NVLink"
		}
		if e.byNode(k) {
			return fmt.Sprintf("%s %s with %s", who, count(want.Count, "node"), gpus)
		}
		return fmt.Sprintf("%s %s x %s", who, count(want.Count, "member"), gpus)
	}
	var groups []string
	for _, g := range e.g.Groups {
		groups = append(groups, fmt.Sprintf("%s %d x %d", g.Name, g.Count, g.GPUs))
	}
	return fmt.Sprintf("needs %s (%s)", count(e.g.GPUs(), free+"GPU"), strings.Join(groups, ", "))
}

// byNode says whether to speak of nodes rather than of members: no node holds two, or there is one only.
func (e *explanation) byNode(k int) bool {
	want := e.full.asks[k]
	return want.Count == 1 || 2*want.GPUs > e.c.largest
}

// mostOften tells texts by how often they occur, most often first, the third and later ones as a number.
func mostOften(texts []string) string {
	times := make(map[string]int)
	for _, text := range texts {
		times[text]++
	}
	different := slices.Compact(slices.Sorted(slices.Values(texts)))
	slices.SortStableFunc(different, func(a, b string) int { return cmp.Compare(times[b], times[a]) })
	var told []string
	for at, text := range different {
		if at == maxListed && len(different) > maxListed+1 {
			told = append(told, fmt.Sprintf("%d other reasons", len(different)-at))
			break
		}
		told = append(told, fmt.Sprintf("%s (%d of %d)", text, times[text], len(texts)))
	}
	return strings.Join(told, "; ")
}

// The plain words are those of package words.

func list(names []string) string { return words.List(names) }

func count(n int, thing string) string { return words.Count(n, thing) }

func verb(n int, one, many string) string { return words.Verb(n, one, many) }

func roughly(d time.Duration) string { return words.Roughly(d) }
