// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/nomad"
)

// Reader reads gangs from jobs (Rules.Read) and remembers what it has read for as long as a job is the same value. One
// goroutine uses it.
type Reader struct {
	options       jobspecs.Options
	known, before map[*api.Job]reading
}

type reading struct {
	gang     *jobspecs.Gang
	findings jobspecs.Diagnostics
}

// NewReader makes a reader that applies the contract with these options.
func NewReader(options jobspecs.Options) *Reader {
	return &Reader{options: options, known: map[*api.Job]reading{}, before: map[*api.Job]reading{}}
}

// Turn forgets the jobs that nobody asked for since the last Turn but one.
func (r *Reader) Turn() { r.before, r.known = r.known, map[*api.Job]reading{} }

// Read reads the gang that a job asks for; nil without one.
func (r *Reader) Read(job *nomad.Job) (*jobspecs.Gang, jobspecs.Diagnostics) {
	found, known := r.known[job.API]
	if !known {
		found, known = r.before[job.API]
	}
	if !known {
		found.gang, found.findings = jobspecs.FromJob(job.API, r.options)
	}
	r.known[job.API] = found
	return found.gang, found.findings
}
