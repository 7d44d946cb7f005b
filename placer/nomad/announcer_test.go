// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestAnnouncerSpeaksSeldomAndNeverTwice(t *testing.T) {
	var said []string
	a := newAnnouncer(slog.New(slog.DiscardHandler), func(_ context.Context, job JobID, group, message string) error {
		said = append(said, fmt.Sprintf("%s %s: %s", job, group, message))
		return nil
	})
	train, start := JobID{"default", "train"}, time.Now()
	a.Note(train, "worker", "one")
	a.Note(train, "worker", "two")
	a.flush(t.Context(), start)
	must.Eq(t, []string{"default/train worker: two"}, said)

	a.Note(train, "worker", "two")
	a.flush(t.Context(), start.Add(time.Hour))
	must.Len(t, 1, said)

	a.Note(train, "worker", "three")
	a.flush(t.Context(), start.Add(29*time.Second))
	must.Len(t, 1, said)
	a.flush(t.Context(), start.Add(30*time.Second))
	must.Eq(t, "default/train worker: three", said[1])
}

func TestAnnouncerLeavesAJobAloneWhereItFails(t *testing.T) {
	var log bytes.Buffer
	tries := 0
	a := newAnnouncer(slog.New(slog.NewTextHandler(&log, nil)), func(context.Context, JobID, string, string) error {
		tries++
		return errors.New("permission denied")
	})
	train := JobID{"default", "train"}
	for i := range 3 {
		a.Note(train, "worker", fmt.Sprint(i))
		a.flush(t.Context(), time.Now().Add(time.Duration(i)*time.Hour))
	}
	must.Eq(t, 1, tries)
	must.Eq(t, 1, strings.Count(log.String(), "permission denied"))

	a.flush(t.Context(), time.Now().Add(48*time.Hour))
	must.MapEmpty(t, a.notes, must.Sprint("what is old is forgotten"))
}

func TestSignallerLogsWhatFails(t *testing.T) {
	var log bytes.Buffer
	s := &Signaller{logger: slog.New(slog.NewTextHandler(&log, nil)), send: func(_ context.Context, a *Alloc, task, signal string) error {
		return fmt.Errorf("%s %s %s", a.ID, task, signal)
	}}
	s.Send(t.Context(), &Alloc{ID: "x"}, "main", "SIGKILL")
	s.Wait()
	must.StrContains(t, log.String(), "x main SIGKILL")
}
