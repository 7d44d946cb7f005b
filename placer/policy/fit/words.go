// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
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

// list joins words as in "a, b and c".
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// count tells a number of things, "1 node" or "2 nodes".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// verb picks the form that goes with a number of things.
func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// roughly rounds a time to come up, so that the text changes rarely: to whole minutes above two minutes, to ten seconds
// below.
func roughly(d time.Duration) string {
	step := 10 * time.Second
	if d > 2*time.Minute {
		step = time.Minute
	}
	d = max(step, (d+step-1)/step*step)
	text := ""
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / unit.length; n > 0 {
			text += fmt.Sprintf("%d%s", n, unit.name)
		}
		d %= unit.length
	}
	return text
}
