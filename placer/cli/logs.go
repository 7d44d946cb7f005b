// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/placer/ledger"
	placernomad "github.com/nomad-muster/muster/placer/nomad"
)

const (
	allocsWait = 10 * time.Second       // one blocking read of the allocations at most
	logPause   = 500 * time.Millisecond // before a log that is not there yet is tried again
	lastTries  = 3                      // to read the end of a log
)

// logs prints what the tasks of a gang print, reservation after reservation.
type logs struct {
	meta  Meta
	nomad *nomad.Client
	job   jobRef
	all   bool // all ranks; else rank 0

	mu      sync.Mutex    // one line at a time
	told    sync.Map      // topics of trouble that the user knows of
	current string        // reservation
	over    chan struct{} // closed when nothing more will be printed than what is there
	streams sync.WaitGroup
}

func newLogs(f *follower) *logs {
	return &logs{meta: f.Meta, nomad: f.nomad, job: f.job, all: f.all, over: make(chan struct{})}
}

// follow prints the logs of a reservation until the context ends; those of an earlier one are printed to their end.
func (l *logs) follow(ctx context.Context, reservation string) {
	if l.current == reservation {
		return
	}
	l.current = reservation
	l.streams.Go(func() { l.watch(ctx, reservation) })
}

// finish waits until all that the tasks have printed is out, for at most a while.
func (l *logs) finish(ctx context.Context, limit time.Duration) {
	close(l.over)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.streams.Wait()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// watch finds the allocations of a reservation's members and follows their logs, until they all have ended or all is
// over.
func (l *logs) watch(ctx context.Context, reservation string) {
	ended := map[string]chan struct{}{}
	for index, tries := uint64(0), lastTries; ctx.Err() == nil && tries > 0; {
		members, next, err := l.members(ctx, reservation, index)
		if err != nil {
			if !closed(l.over) || index == 0 { // else it is our own end of a long wait
				l.once(ctx, "allocations", err)
				pause(ctx, troublePause)
			}
			if closed(l.over) {
				tries--
			}
			continue
		}
		index = next
		alive := false
		for _, m := range members {
			end, known := ended[m.alloc.ID]
			if !known {
				end = make(chan struct{})
				ended[m.alloc.ID] = end
				for _, stream := range []string{"stdout", "stderr"} {
					l.streams.Go(func() { l.stream(ctx, m, stream, end) })
				}
			}
			if !m.terminal {
				alive = true
			} else if !closed(end) {
				close(end)
			}
		}
		if !closed(l.over) {
			continue
		}
		if !alive {
			break
		}
		pause(ctx, logPause)
	}
	for _, end := range ended {
		if !closed(end) {
			close(end)
		}
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// logged is a member whose log is printed.
type logged struct {
	rank     int
	task     string
	alloc    *nomad.Allocation
	terminal bool
}

// members lists the members of a reservation that Nomad has placed, when something has changed after an index.
func (l *logs) members(ctx context.Context, reservation string, after uint64) ([]logged, uint64, error) {
	if closed(l.over) {
		after = 0 // what is there is all that counts
	}
	q := &nomad.QueryOptions{
		Namespace: l.job.namespace, WaitIndex: after, WaitTime: allocsWait, Filter: fmt.Sprintf("JobID == %q", l.job.id),
		Params: map[string]string{"resources": "true"},
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the end of all must not wait for the end of a blocking read
		select {
		case <-l.over:
			if after > 0 {
				cancel()
			}
		case <-ctx.Done():
		}
	}()
	stubs, meta, err := l.nomad.Allocations().List(q.WithContext(ctx))
	if err != nil {
		return nil, 0, err
	}
	var members []logged
	for _, stub := range stubs {
		task, id, ok := slotOf(stub)
		if !ok || id.Reservation != reservation || id.Rank != 0 && !l.all {
			continue
		}
		terminal := stub.ClientStatus != nomad.AllocClientStatusPending && stub.ClientStatus != nomad.AllocClientStatusRunning &&
			stub.ClientStatus != nomad.AllocClientStatusUnknown
		members = append(members, logged{
			rank: id.Rank, task: task, terminal: terminal,
			alloc: &nomad.Allocation{ID: stub.ID, NodeID: stub.NodeID, Namespace: stub.Namespace},
		})
	}
	return members, meta.LastIndex, nil
}

// slotOf finds the slot that an allocation was placed on, and the task that has it.
func slotOf(stub *nomad.AllocationListStub) (task string, id ledger.SlotID, ok bool) {
	if stub.AllocatedResources == nil {
		return "", id, false
	}
	for name, resources := range stub.AllocatedResources.Tasks {
		for _, device := range resources.Devices {
			if device.Vendor != placernomad.SlotVendor || device.Type != placernomad.SlotType || len(device.DeviceIDs) == 0 {
				continue
			}
			_, reservation, isSlot := ledger.ParseInstanceID(device.DeviceIDs[0])
			rank, err := strconv.Atoi(device.Name[strings.LastIndexByte(device.Name, '.')+1:])
			if isSlot && err == nil {
				return name, ledger.SlotID{Reservation: reservation, Rank: rank}, true
			}
		}
	}
	return "", id, false
}

// once tells the user, the first time, why nothing of a kind is to be seen.
func (l *logs) once(ctx context.Context, topic string, err error) {
	if ctx.Err() != nil {
		return
	}
	if _, told := l.told.LoadOrStore(topic, true); !told {
		l.meta.say("what the tasks print can't be read yet: %v; trying on", err)
	}
}

// stream prints one output of one member: as it comes, and to its end when the member has ended.
func (l *logs) stream(ctx context.Context, m logged, kind string, end chan struct{}) {
	out := &lineWriter{to: l.meta.Stdout, mu: &l.mu}
	if kind == "stderr" {
		out.to = l.meta.Stderr
	}
	if l.all {
		out.prefix = fmt.Sprintf("[%d] ", m.rank)
	}
	defer out.flush()
	printed := int64(0)
	for tries := lastTries; ctx.Err() == nil && tries > 0; {
		last := closed(end)
		n, err := l.read(ctx, m, kind, printed, !last, end, out)
		printed += n
		switch {
		case last && (err == nil || isNotFound(err)): // all is out, or it never started
			return
		case last:
			tries--
		case err != nil && !isNotFound(err) && !closed(end):
			l.once(ctx, "log", err)
		}
		if !closed(end) || last {
			pause(ctx, logPause)
		}
	}
}

// read prints a log from an offset on until it ends, breaks off, or the member has ended.
func (l *logs) read(ctx context.Context, m logged, kind string, offset int64, follow bool, end chan struct{}, out io.Writer) (printed int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := (&nomad.QueryOptions{Namespace: l.job.namespace}).WithContext(ctx)
	frames, errs := l.nomad.AllocFS().Logs(m.alloc, follow, m.task, kind, "start", offset, ctx.Done(), q)
	stop := end
	if !follow {
		stop = nil
	}
	for {
		select {
		case frame, more := <-frames:
			if !more {
				return printed, nil
			}
			_, _ = out.Write(frame.Data) // a reader that has gone is no reason to leave the gang
			printed += int64(len(frame.Data))
		case err := <-errs:
			return printed, err
		case <-stop:
			return printed, nil
		case <-ctx.Done():
			return printed, ctx.Err()
		}
	}
}

// lineWriter writes what comes as it is or, with a prefix, line by line.
type lineWriter struct {
	to     io.Writer
	mu     *sync.Mutex
	prefix string
	part   []byte // of a line that has not ended
}

// Write implements io.Writer.
func (w *lineWriter) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.prefix == "" {
		return w.to.Write(data)
	}
	w.part = append(w.part, data...)
	for {
		end := bytes.IndexByte(w.part, '\n')
		if end < 0 {
			return len(data), nil
		}
		if _, err := fmt.Fprintf(w.to, "%s%s\n", w.prefix, w.part[:end]); err != nil {
			return 0, err
		}
		w.part = w.part[end+1:]
	}
}

// flush writes a last line that has no end.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.part) > 0 {
		fmt.Fprintf(w.to, "%s%s\n", w.prefix, w.part)
	}
}
