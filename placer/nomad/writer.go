// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// JobWrite is what the placer does to a job. It changes nothing else in any.
type JobWrite string

// The writes. Each is done only to the very version of the job that it was decided on, unless it is a child's stop.
const (
	StopJob         JobWrite = "stop"
	StopForReset    JobWrite = "stop for a reset" // a stop that tells by itself what it is for, see Job.StoppedForReset
	RegisterStopped JobWrite = "register again"   // the spec of a job that was stopped for a reset
)

// resetMark is the key in the meta of a job that was stopped for a reset; its value is the version before.
const resetMark = "gang_reset"

// writeTimeout bounds one write.
const writeTimeout = 10 * time.Second

// deniedFor is how long a write's failure is remembered at most.
const deniedFor = 10 * time.Minute

// maxDenialBytes is how much is remembered of a failure's text.
const maxDenialBytes = 300

// ErrChild says that Nomad can't register a dispatched or periodic job again: it would no longer be its parent's.
var ErrChild = errors.New("Nomad can't register the child of another job again") //nolint:staticcheck // ST1005: a name

// Writer stops jobs and registers them again.
type Writer struct {
	client *api.Client
	logger *slog.Logger
	now    func() time.Time
	under  sync.WaitGroup

	mu     sync.Mutex // protects denied
	denied map[JobID]denial
}

// denial is why the last write to a job failed.
type denial struct {
	text string
	at   time.Time
}

// NewWriter makes a writer on a Nomad.
func NewWriter(c *api.Client, logger *slog.Logger) *Writer {
	return &Writer{client: c, logger: logger, now: time.Now, denied: map[JobID]denial{}}
}

// Write writes in the background. A failure is logged once for each job as long as it is the same; who wants the write
// asks again.
func (w *Writer) Write(ctx context.Context, job *Job, write JobWrite) {
	w.under.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		err := w.write(ctx, job, write)
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			w.note(job.ID, write, err)
		}
	})
}

// Wait waits for what is under way.
func (w *Writer) Wait() { w.under.Wait() }

// Denied is why the last write to each job failed, in words.
func (w *Writer) Denied() map[JobID]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	maps.DeleteFunc(w.denied, func(_ JobID, d denial) bool { return now.Sub(d.at) > deniedFor })
	out := make(map[JobID]string, len(w.denied))
	for id, d := range w.denied {
		out[id] = d.text
	}
	return out
}

func (w *Writer) note(job JobID, write JobWrite, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.denied, job)
		return
	}
	text := err.Error()
	if strings.Contains(text, api.RegisterEnforceIndexErrPrefix) {
		return // somebody has changed the job meanwhile: what follows is decided anew
	}
	text = text[:min(len(text), maxDenialBytes)]
	if w.denied[job].text != text {
		w.logger.Warn("a job could not be changed in Nomad; it will be tried again", "job", job.ID, "namespace", job.Namespace, "change", write,
			"error", fmt.Errorf("this needs the right submit-job: %w", err))
	}
	w.denied[job] = denial{text: text, at: w.now()}
}

func (w *Writer) write(ctx context.Context, job *Job, write JobWrite) error {
	options := (&api.WriteOptions{Namespace: job.ID.Namespace}).WithContext(ctx)
	if job.Child() {
		if write != StopJob {
			return ErrChild
		}
		// A child is never edited, so that nothing newer can be hit.
		_, _, err := w.client.Jobs().DeregisterOpts(job.ID.ID, &api.DeregisterOptions{}, options)
		return err
	}
	_, _, err := w.client.Jobs().RegisterOpts(job.Written(write), &api.RegisterOptions{
		EnforceIndex: true, ModifyIndex: job.JobModifyIndex, Submission: w.submission(ctx, job),
	}, options)
	return err
}

// submission is the text that a job's version was submitted as, so that Nomad goes on showing it; nil: not known.
func (w *Writer) submission(ctx context.Context, job *Job) *api.JobSubmission {
	query := (&api.QueryOptions{Namespace: job.ID.Namespace}).WithContext(ctx)
	submission, _, err := w.client.Jobs().Submission(job.ID.ID, int(job.Version), query) //nolint:gosec // G115: versions are small
	if err != nil || submission.Source == "" {
		return nil // an older Nomad, or nothing was kept: the job itself counts
	}
	return submission
}

// Written is the spec that a write registers.
func (j *Job) Written(write JobWrite) *api.Job {
	spec, stop := *j.API, write != RegisterStopped
	spec.Stop, spec.Meta = &stop, maps.Clone(j.API.Meta)
	delete(spec.Meta, resetMark)
	if write == StopForReset {
		if spec.Meta == nil {
			spec.Meta = map[string]string{}
		}
		spec.Meta[resetMark] = strconv.FormatUint(j.Version, 10)
	}
	if len(spec.Meta) == 0 {
		spec.Meta = nil
	}
	return &spec
}

// StoppedForReset says whether the job is the one that a StopForReset of a version has left: stopped, and by nobody since.
func (j *Job) StoppedForReset(version uint64) bool {
	return j.Stopped && j.Version == version+1 && j.API.Meta[resetMark] == strconv.FormatUint(version, 10)
}

// Child says whether the job was made by a periodic or parameterized one.
func (j *Job) Child() bool { return j.API.ParentID != nil && *j.API.ParentID != "" }
