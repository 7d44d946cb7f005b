// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
)

// ParseFile reads a job file as `nomad job run` does, with Nomad's own parser, and the gang that it asks for by the
// rules of FromJob. vars are "name=value" texts and varFiles paths of files of them, as of -var and -var-file. A file
// that can't be read or parsed gives a nil job and errors; a job that asks for no gang gives a nil gang. At most one
// Options is read.
func ParseFile(path string, vars, varFiles []string, options ...Options) (*api.Job, *Gang, Diagnostics) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, Diagnostics{{Severity: SeverityError, Path: path, Summary: err.Error(), Detail: "name a job file"}}
	}
	config := &jobspec2.ParseConfig{
		Path: path, Body: body, ArgVars: vars, VarFiles: varFiles, AllowFS: true, Strict: true,
	}
	if len(options) > 0 {
		config.Envs = options[0].Env
	}
	return parse(config, options)
}

// parse reads a job from HCL and finds the line of each finding.
func parse(config *jobspec2.ParseConfig, options []Options) (*api.Job, *Gang, Diagnostics) {
	job, err := parseJob(config)
	if err != nil {
		return nil, nil, parserFindings(config.Path, err)
	}
	gang, findings := FromJob(job, options...)
	locate(config.Path, config.Body, findings)
	findings.sortByLine()
	return job, gang, slices.CompactFunc(findings, sameLine)
}

// sameLine says whether two findings print alike: a block of the job is checked once for each group that it holds for.
func sameLine(a, b Diagnostic) bool { return a.String() == b.String() }

// parseJob turns a panic into an error: Nomad's parser has some, for example on `kill_timeout = var.x` with a null x.
func parseJob(config *jobspec2.ParseConfig) (job *api.Job, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			job, err = nil, fmt.Errorf("Nomad's parser broke down on this file: %v", cause) //nolint:staticcheck // Nomad is a name
		}
	}()
	return jobspec2.ParseWithConfig(config)
}

// parserFindings turns an error of Nomad's parser into findings, with their lines where it gives them: as values, or
// in its text as "file:line,column-column: summary; detail".
func parserFindings(path string, err error) Diagnostics {
	var diags hcl.Diagnostics
	if errors.As(err, &diags) {
		var list Diagnostics
		for _, d := range diags {
			finding := Diagnostic{Severity: SeverityError, Path: path, Summary: d.Summary, Detail: d.Detail}
			if d.Subject != nil {
				finding.Range = &Range{File: d.Subject.Filename, Line: d.Subject.Start.Line, Column: d.Subject.Start.Column}
			}
			list = append(list, finding)
		}
		return list
	}
	located := regexp.MustCompile(`(?s)^(.+?):(\d+),(\d+)(?:-[\d,]+)?: (.*)$`)
	var list Diagnostics
	for line := range strings.SplitSeq(err.Error(), "\n") {
		match := located.FindStringSubmatch(line)
		switch {
		case match != nil:
			lineNumber, _ := strconv.Atoi(match[2])
			column, _ := strconv.Atoi(match[3])
			summary, detail, _ := strings.Cut(match[4], "; ")
			list = append(list, Diagnostic{Severity: SeverityError, Path: path, Summary: summary, Detail: detail,
				Range: &Range{File: match[1], Line: lineNumber, Column: column}})
		case len(list) > 0 && line != "": // the rest of a detail
			list[len(list)-1].Detail += " " + strings.TrimSpace(line)
		case line != "":
			list = append(list, Diagnostic{Severity: SeverityError, Path: path, Summary: line})
		}
	}
	return list
}
