// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package trace reads what a replay replays: traces of jobs and lists of machines, each in several formats that are told
// apart by their header lines. It reads from a reader that it is given and opens no files. Package replay and the CLI
// import it.
package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// Job is one job of a trace: a gang, when it came and how long it runs at its best placement.
type Job struct {
	Name       string // unique within the trace
	Queue      string
	User       string // empty: not known
	Submitted  time.Time
	GPUs       int           // of all members
	MemberGPUs int           // of each member; divides GPUs
	Duration   time.Duration // of its work at full speed
	MaxRuntime time.Duration // as its user states it; 0: not stated
	Priority   int
	Comm       model.Comm
}

// ErrFormat means that the header of a file is of no known format.
var ErrFormat = errors.New("unknown format")

// ownColumns are those that Muster's own format is known by.
func ownColumns() []string { return []string{"job", "queue", "submitted", "gpus", "duration_s"} }

// Read reads a trace, plain or compressed by gzip, and returns its jobs sorted by submission, then name. The formats:
//
//   - Philly, as joined from the public trace: job, vc, submit_unix, num_gpus, duration_s. A queue is called vc- and the
//     name of the virtual cluster. Up to 8 GPUs are one member, more are members of one GPU, which may be split over nodes
//     in any way.
//   - Muri (SIGCOMM 2022): job_id, num_gpu, submit_time, duration, the times in milliseconds. One queue; members as above.
//   - Muster's own: job, queue, submitted (RFC 3339), gpus, duration_s, and any of member_gpus, user, comm (none, low or
//     high), priority and max_runtime_s. Parts of a millisecond do not count.
//
// Columns may come in any order and unknown ones are ignored. An error names the line.
func Read(r io.Reader) ([]Job, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	var read func(row) (Job, error)
	switch {
	case t.has("job", "vc", "submit_unix", "num_gpus", "duration_s"):
		read = phillyJob
	case t.has("job_id", "num_gpu", "submit_time", "duration"):
		read = muriJob
	case t.has(ownColumns()...):
		read = ownJob
	default:
		return nil, fmt.Errorf("trace: %w: columns %s; Muster's own format has %s", ErrFormat, strings.Join(t.header, ", "), strings.Join(ownColumns(), ", "))
	}
	jobs := make([]Job, 0, len(t.rows))
	seen := make(map[string]bool, len(t.rows))
	for _, row := range t.rows {
		job, err := read(row)
		if err = errors.Join(err, *row.err, check(job, seen)); err != nil {
			return nil, fmt.Errorf("trace: line %d: %w", row.line, err)
		}
		jobs = append(jobs, job)
	}
	slices.SortFunc(jobs, func(a, b Job) int {
		return cmp.Or(a.Submitted.Compare(b.Submitted), cmp.Compare(a.Name, b.Name))
	})
	return jobs, nil
}

func check(j Job, seen map[string]bool) error {
	if seen[j.Name] {
		return fmt.Errorf("job %q is there twice", j.Name)
	}
	seen[j.Name] = true
	switch {
	case j.Name == "":
		return errors.New("a job has no name")
	case j.GPUs < 1:
		return fmt.Errorf("job %q asks for %d GPUs", j.Name, j.GPUs)
	case j.MemberGPUs < 1 || j.GPUs%j.MemberGPUs != 0:
		return fmt.Errorf("job %q asks for %d GPUs by members of %d", j.Name, j.GPUs, j.MemberGPUs)
	case j.Duration < 0 || j.MaxRuntime < 0:
		return fmt.Errorf("job %q has a negative duration", j.Name)
	}
	return nil
}

func phillyJob(r row) (Job, error) {
	job := Job{
		Name: r.text("job"), Queue: "vc-" + r.text("vc"), GPUs: int(r.number("num_gpus")), Comm: model.CommUnknown,
		Submitted: time.Unix(r.number("submit_unix"), 0).UTC(), Duration: time.Duration(r.number("duration_s")) * time.Second,
	}
	job.MemberGPUs = anySplit(job.GPUs)
	return job, nil
}

func muriJob(r row) (Job, error) {
	job := Job{
		Name: r.text("job_id"), Queue: "default", GPUs: int(r.number("num_gpu")),
		Submitted: time.UnixMilli(r.number("submit_time")).UTC(), Duration: time.Duration(r.number("duration")) * time.Millisecond,
	}
	job.MemberGPUs = anySplit(job.GPUs)
	return job, nil
}

func ownJob(r row) (Job, error) {
	submitted, err := time.Parse(time.RFC3339, r.text("submitted"))
	job := Job{
		Name: r.text("job"), Queue: r.text("queue"), User: r.text("user"), GPUs: int(r.number("gpus")),
		Submitted: submitted.UTC().Truncate(time.Millisecond), Duration: time.Duration(r.number("duration_s")) * time.Second,
		Comm: model.Comm(r.text("comm")), Priority: int(r.number("priority")),
		MaxRuntime: time.Duration(r.number("max_runtime_s")) * time.Second, MemberGPUs: int(r.number("member_gpus")),
	}
	if job.MemberGPUs == 0 {
		job.MemberGPUs = anySplit(job.GPUs)
	}
	if job.Queue == "" {
		job.Queue = "default"
	}
	if !slices.Contains([]model.Comm{model.CommUnknown, model.CommNone, model.CommLow, model.CommHigh}, job.Comm) {
		err = errors.Join(err, fmt.Errorf("comm is %q, not none, low or high", job.Comm))
	}
	return job, err
}

// anySplit returns the GPUs of a member where a trace only says how many there are in all: up to 8 are of one
// machine, more are members of one GPU.
func anySplit(gpus int) int {
	if gpus <= 8 {
		return gpus
	}
	return 1
}
