// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// jobAt is a job as Nomad gives it.
func jobAt(t *testing.T, version uint64, change func(*api.Job)) *Job {
	t.Helper()
	job := api.NewBatchJob("train", "train", "global", 50)
	create, index := uint64(7), uint64(30+version)
	job.Namespace, job.CreateIndex, job.JobModifyIndex, job.Version = new(string), &create, &index, &version
	*job.Namespace = "research"
	if change != nil {
		change(job)
	}
	text, err := json.Marshal(job)
	must.NoError(t, err)
	read, err := ReadJob(text)
	must.NoError(t, err)
	return read
}

// TestResetIsAStopAndTheSameSpecAgain: the stopped version tells what it is for, and nothing of that is left afterwards.
func TestResetIsAStopAndTheSameSpecAgain(t *testing.T) {
	job := jobAt(t, 4, func(j *api.Job) { j.Meta = map[string]string{"owner": "mel"} })
	stopped := job.Written(StopForReset)
	must.True(t, *stopped.Stop)
	must.Eq(t, map[string]string{"owner": "mel", "gang_reset": "4"}, stopped.Meta)
	must.Eq(t, map[string]string{"owner": "mel"}, job.API.Meta, must.Sprint("what was read is never changed"))

	after := jobAt(t, 5, func(j *api.Job) { j.Meta, j.Stop = stopped.Meta, stopped.Stop })
	must.True(t, after.StoppedForReset(4))
	again := after.Written(RegisterStopped)
	must.False(t, *again.Stop)
	must.Eq(t, job.API.Meta, again.Meta)

	later := jobAt(t, 6, func(j *api.Job) { j.Meta, j.Stop = stopped.Meta, stopped.Stop })
	must.False(t, later.StoppedForReset(4), must.Sprint("somebody has stopped it again"))
	must.False(t, after.StoppedForReset(3))
	must.Nil(t, jobAt(t, 1, nil).Written(RegisterStopped).Meta)
}

// TestWriter: every change is bound to the version that it was decided on, a child is stopped as Nomad wants it, and what
// Nomad says no to is kept in words until it says yes.
func TestWriter(t *testing.T) {
	answer := http.StatusOK
	var asked []string
	var registered api.JobRegisterRequest
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/job/train/submission":
			_ = json.NewEncoder(w).Encode(api.JobSubmission{Source: "job \"train\" {}", Format: "hcl2"})
			return
		case r.Method == http.MethodPut:
			must.NoError(t, json.NewDecoder(r.Body).Decode(&registered))
		}
		asked = append(asked, r.Method+" "+r.URL.Path+" in "+r.URL.Query().Get("namespace"))
		w.WriteHeader(answer)
		if answer != http.StatusOK {
			_, _ = w.Write([]byte("Permission denied"))
			return
		}
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	writer := NewWriter(client, slog.New(slog.DiscardHandler))
	write := func(job *Job, what JobWrite) {
		writer.Write(t.Context(), job, what)
		writer.Wait()
	}

	job := jobAt(t, 4, nil)
	write(job, StopJob)
	must.Eq(t, []string{"PUT /v1/jobs in research"}, asked)
	must.True(t, registered.EnforceIndex)
	must.Eq(t, job.JobModifyIndex, registered.JobModifyIndex)
	must.True(t, *registered.Job.Stop)
	must.Eq(t, "job \"train\" {}", registered.Submission.Source)
	must.MapEmpty(t, writer.Denied())

	answer = http.StatusForbidden
	write(job, StopJob)
	must.StrContains(t, writer.Denied()[job.ID], "Permission denied")
	answer, asked = http.StatusOK, nil
	write(job, StopJob)
	must.MapEmpty(t, writer.Denied())

	child := jobAt(t, 0, func(j *api.Job) { j.ParentID = new(string); *j.ParentID = "nightly" })
	asked = nil
	write(child, StopJob)
	must.Eq(t, []string{"DELETE /v1/job/train in research"}, asked)
	write(child, StopForReset)
	must.Len(t, 1, asked)
	must.StrContains(t, writer.Denied()[child.ID], "child")

	writer.now = func() time.Time { return time.Now().Add(deniedFor + time.Minute) }
	must.MapEmpty(t, writer.Denied())
}
