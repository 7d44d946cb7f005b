// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"fmt"
	"sort"
	"strings"
)

// Severity says whether a finding keeps a job from being admitted.
type Severity string

// The two severities.
const (
	SeverityError   Severity = "error"   // the job is refused
	SeverityWarning Severity = "warning" // it runs, but may lose work or surprise
)

// Diagnostic is one finding about a job: what is wrong, and the mend.
type Diagnostic struct {
	Severity Severity `json:"severity"`
	Summary  string   `json:"summary"`         // what is wrong and why it matters, no full stop
	Detail   string   `json:"detail"`          // what to do about it, no full stop
	Path     string   `json:"path"`            // job, job/group or job/group/task
	Range    *Range   `json:"range,omitempty"` // nil: the job did not come from an HCL file

	at place // where the locator looks for Range
}

// Range is a place in a job file.
type Range struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // from 1
	Column int    `json:"column"` // from 1
}

// String gives the finding on one line: "train.nomad.hcl:7: error: what is wrong; what to do". Without a file, the
// path stands in its place.
func (d Diagnostic) String() string {
	where := d.Path
	if d.Range != nil {
		where = fmt.Sprintf("%s:%d", d.Range.File, d.Range.Line)
	}
	return fmt.Sprintf("%s: %s: %s", where, d.Severity, d.text())
}

// text is what is wrong and the mend, without the place.
func (d Diagnostic) text() string {
	if d.Detail == "" {
		return d.Summary
	}
	return d.Summary + "; " + d.Detail
}

// Diagnostics are the findings about one job, in the order of the file.
type Diagnostics []Diagnostic

// HasErrors says whether the job is refused.
func (ds Diagnostics) HasErrors() bool {
	for _, d := range ds {
		if d.Severity == SeverityError {
			return true
		}
	}
	return false
}

// String gives one line per finding, each ended by a newline.
func (ds Diagnostics) String() string {
	var b strings.Builder
	for _, d := range ds {
		b.WriteString(d.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Refusal is why the job is refused in one sentence: the first error, and how many more there are. It is empty if
// nothing refuses the job.
func (ds Diagnostics) Refusal() string {
	first, more := "", 0
	for _, d := range ds {
		switch {
		case d.Severity != SeverityError:
		case first == "":
			first = d.Path + ": " + d.text()
		default:
			more++
		}
	}
	if more > 0 {
		first += fmt.Sprintf(" (and %d more)", more)
	}
	return first
}

// sortByLine puts findings into the order of the file; those without a line come first.
func (ds Diagnostics) sortByLine() {
	line := func(d Diagnostic) int {
		if d.Range == nil {
			return 0
		}
		return d.Range.Line
	}
	sort.SliceStable(ds, func(i, j int) bool { return line(ds[i]) < line(ds[j]) })
}

// place is where in a job something stands: nested blocks, and an attribute of the innermost.
type place struct {
	steps []step
	attr  string
}

// step goes into one block: the index-th of its kind, counted from 0 among those with its label, if it has one.
type step struct {
	block string
	label string
	index int
}

// in goes one block deeper.
func (p place) in(block string) place { return p.nth(block, 0) }

// named goes into the block with a label.
func (p place) named(block, label string) place { return p.with(step{block: block, label: label}) }

// nth goes into the index-th block of a kind, from 0.
func (p place) nth(block string, index int) place { return p.with(step{block: block, index: index}) }

// attribute names an attribute of the innermost block.
func (p place) attribute(name string) place { return place{steps: p.steps, attr: name} }

// with never shares its array with another place: findings keep theirs.
func (p place) with(s step) place {
	return place{steps: append(p.steps[:len(p.steps):len(p.steps)], s)}
}

// path is the names of job, group and task on the way.
func (p place) path() string {
	var names []string
	for _, s := range p.steps {
		switch s.block {
		case "job", "group", "task":
			names = append(names, s.label)
		}
	}
	return strings.Join(names, "/")
}

// findings collects diagnostics.
type findings struct{ list Diagnostics }

// refuse adds an error; mend says what to do.
func (f *findings) refuse(at place, mend, format string, args ...any) {
	f.add(SeverityError, at, mend, format, args...)
}

// warn adds a warning; mend says what to do.
func (f *findings) warn(at place, mend, format string, args ...any) {
	f.add(SeverityWarning, at, mend, format, args...)
}

func (f *findings) add(severity Severity, at place, mend, format string, args ...any) {
	f.list = append(f.list, Diagnostic{
		Severity: severity, Summary: fmt.Sprintf(format, args...), Detail: mend, Path: at.path(), at: at,
	})
}
