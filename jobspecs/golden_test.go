// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
	"github.com/shoenig/test/must"
)

// TestGolden runs the scripts in testdata: each case edits a good job file and shows what validate says of it. A line
// "- text" removes the first line with that text that is not above an earlier edit, lines "+ text" are put in its
// place. With `go test -rewrite` the expected output is written anew.
//
// On the way each case checks that the API's form of the job gives the same answer as the file.
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata/rules", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			base := "gang"
			d.MaybeScanArgs(t, "base", &base)
			source := edit(t, "testdata/"+base+".nomad.hcl", d.Input)
			options := scanOptions(t, d)
			config := &jobspec2.ParseConfig{Path: "train.nomad.hcl", Body: []byte(source), Strict: true}
			job, gang, findings := parse(config, []Options{options})
			if job != nil {
				checkAPIForm(t, job, options, findings)
			}
			out := findings.String()
			switch {
			case findings.HasErrors():
			case gang == nil:
				out += "no gang\n"
			default:
				out += Describe(gang) + "\n"
			}
			if d.Cmd == "shape" {
				out += gang.Shape() + "\n"
			}
			return out
		})
	})
}

func scanOptions(t *testing.T, d *datadriven.TestData) Options {
	var options Options
	var fence, levels string
	d.MaybeScanArgs(t, "fence", &fence)
	if fence != "" {
		duration, err := time.ParseDuration(fence)
		must.NoError(t, err)
		options.FenceTime = duration
	}
	d.MaybeScanArgs(t, "levels", &levels)
	if levels != "" {
		options.Levels = strings.Split(levels, "/")
	}
	return options
}

// edit applies "- text" and "+ text" lines to a file.
func edit(t *testing.T, path, edits string) string {
	source, err := os.ReadFile(path)
	must.NoError(t, err)
	lines := strings.Split(string(source), "\n")
	at := 0
	for line := range strings.SplitSeq(edits, "\n") {
		text := strings.TrimPrefix(line[min(1, len(line)):], " ")
		switch {
		case strings.HasPrefix(line, "-"):
			matches := func(l string) bool { return strings.TrimSpace(l) == strings.TrimSpace(text) }
			found := slices.IndexFunc(lines[at:], matches)
			must.True(t, found >= 0, must.Sprintf("%s has no line %q", path, text))
			at += found
			lines = slices.Delete(lines, at, at+1)
		case strings.HasPrefix(line, "+"):
			lines = slices.Insert(lines, at, text)
			at++
		}
	}
	return strings.Join(lines, "\n")
}

// checkAPIForm checks that a job as Nomad's API returns it, with every default filled in and through JSON, gives the
// findings of the file, but for the places: Nomad copies the job's blocks into the groups, and the groups' into the
// tasks.
func checkAPIForm(t *testing.T, job *api.Job, options Options, want Diagnostics) {
	data, err := json.Marshal(job)
	must.NoError(t, err)
	var fromAPI api.Job
	must.NoError(t, json.Unmarshal(data, &fromAPI))
	fromAPI.Canonicalize()
	_, got := FromJob(&fromAPI, options)
	must.Eq(t, bare(want), bare(got))
}

// bare is the set of findings without their places.
func bare(findings Diagnostics) []string {
	texts := make([]string, 0, len(findings))
	for _, d := range findings {
		d.Range, d.Path = nil, ""
		texts = append(texts, d.String())
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}
