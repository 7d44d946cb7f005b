// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package queues

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
)

// Changes says in words what would be different if other queues were applied, one line for each thing: first the policy,
// then the queues that are new ("+") or changed ("~"), in the order of the file, then those that go ("-"). Nothing: they
// are the same.
func Changes(before, after ledger.Queues) []string {
	var lines []string
	if text := difference(policyFacts(before.Policy), policyFacts(after.Policy)); text != "" {
		lines = append(lines, "~ policy: "+text)
	}
	old := New(before)
	for _, q := range after.Queues {
		was, there := old.queues[q.Name]
		switch text := difference(facts(was), facts(q)); {
		case !there:
			lines = append(lines, "+ queue "+q.Name+": "+Describe(q))
		case text != "":
			lines = append(lines, "~ queue "+q.Name+": "+text)
		}
	}
	now := New(after)
	for _, q := range before.Queues {
		if _, still := now.queues[q.Name]; !still {
			lines = append(lines, "- queue "+q.Name)
		}
	}
	return lines
}

// fact is one thing that is said; an empty value is not said.
type fact struct{ name, value string }

// Describe is what a queue says, on one line.
func Describe(q ledger.Queue) string {
	var parts []string
	for _, f := range facts(q) {
		if f.value != "" {
			parts = append(parts, f.name+" "+f.value)
		}
	}
	return strings.Join(parts, ", ")
}

// facts are what a queue says, always the same names in the same order.
func facts(q ledger.Queue) []fact {
	out := []fact{
		{"quota", strconv.Itoa(q.Quota)}, {"max", positive(q.Max)}, {"weight", fraction(q.Weight)},
		{"namespaces", strings.Join(q.Namespaces, " ")}, {"priority", ""}, {"preempt", yes(q.Preempt)},
		{"nvlink", q.Defaults.NVLink}, {"locality", q.Defaults.Locality}, {"relax_after", q.Defaults.RelaxAfter},
	}
	if p := q.Priority; p != nil {
		at := slices.IndexFunc(out, func(f fact) bool { return f.name == "priority" })
		out[at].value = fmt.Sprintf("%d to %d", p.Min, p.Max)
	}
	return out
}

func policyFacts(p ledger.Policy) []fact {
	return []fact{
		{"half_life", duration(p.HalfLifeS)}, {"min_runtime", duration(p.MinRuntimeS)}, {"reclaim_above", fraction(p.ReclaimAbove)},
		{"evictions", positive(p.Evictions)}, {"age_bound", duration(p.AgeBoundS)}, {"defragment", yes(p.Defragment)},
	}
}

// difference names the facts that differ, with both values.
func difference(before, after []fact) string {
	var parts []string
	said := func(value string) string {
		if value == "" {
			return "unset"
		}
		return value
	}
	for i, f := range after {
		if was := before[i].value; was != f.value {
			parts = append(parts, fmt.Sprintf("%s %s (was %s)", f.name, said(f.value), said(was)))
		}
	}
	return strings.Join(parts, ", ")
}

func positive(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func fraction(f float64) string {
	if f == 0 {
		return ""
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

func yes(b bool) string {
	if b {
		return "true"
	}
	return ""
}

func duration(s int64) string {
	if s == 0 {
		return ""
	}
	return jobspecs.ShortDuration(seconds(s))
}
