// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Output goes from the task into a pipe of ours and from there into Nomad's log pipe, so that a log collector that dies
// with its agent neither kills the task (SIGPIPE) nor stops it for long (a full pipe).
const (
	// readerPatience is how long the task's output may stand still once the log pipe is full, before it is dropped.
	readerPatience = 10 * time.Second
	// pipeBytes is asked for as the log pipe's size; the kernel may give less.
	pipeBytes = 1 << 20
)

// relay copies one output stream of the task to one of Nomad's log pipes.
type relay struct {
	from     *os.File // our end of the task's pipe
	to       *os.File // Nomad's pipe; nil: there is none, everything is dropped
	patience time.Duration
	done     chan struct{} // closed when the task's side has ended and everything was passed on or dropped
	dropped  atomic.Int64  // bytes since the last notice
}

// openRelay makes the task's pipe and returns its writing end for the task. A log pipe that can't be opened is reported
// in the error beside a relay that works without it.
func openRelay(path string) (*relay, *os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("making a pipe for the task's output: %w", err)
	}
	to, err := openLog(path)
	r := &relay{from: read, to: to, patience: readerPatience, done: make(chan struct{})}
	return r, write, err
}

// openLog opens a log pipe for reading too: the pipe then always has a reader, and what was written stays in it while
// the agent is away. Tasks may write to its directory, so that a link in its place is not followed.
func openLog(path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("opening log pipe %s: %w", path, err)
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes)
	return os.NewFile(uintptr(fd), path), nil
}

// Hold keeps a task's log pipes open until release is called. A log collector takes a pipe that nobody has open for the end
// of all output, and a task may have another process later. A pipe that can't be opened is not held.
func Hold(paths ...string) (release func()) {
	var held []*os.File
	for _, path := range paths {
		if file, err := openLog(path); err == nil && file != nil {
			held = append(held, file)
		}
	}
	return func() { closeAll(held) }
}

// run copies until every process has closed the task's side.
func (r *relay) run() {
	defer close(r.done)
	defer r.from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := r.from.Read(buffer)
		if n > 0 {
			r.pass(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

// pass writes one piece, or drops what nobody takes. After a drop it waits for nobody until a piece has gone through.
func (r *relay) pass(piece []byte) {
	if r.to == nil {
		return
	}
	if dropped := r.dropped.Load(); dropped > 0 {
		notice := fmt.Appendf(nil, "\n[muster: %d bytes of output were dropped here: nobody was reading the log]\n", dropped)
		if _, err := r.write(notice, 0); err != nil {
			r.dropped.Add(int64(len(piece)))
			return
		}
		r.dropped.Store(0)
	}
	if n, err := r.write(piece, r.patience); err != nil {
		r.dropped.Add(int64(len(piece) - n))
	}
}

func (r *relay) write(piece []byte, patience time.Duration) (int, error) {
	// A file without deadlines (a plain file, /dev/null) never blocks for lack of a reader.
	err := r.to.SetWriteDeadline(time.Now().Add(max(patience, time.Millisecond)))
	if err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return 0, err
	}
	return r.to.Write(piece)
}

// unread is the number of bytes that the log collector has not taken yet.
func (r *relay) unread() int {
	if r.to == nil {
		return 0
	}
	raw, err := r.to.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n
}

// close ends the log for its collector. What it has not read by then is lost.
func (r *relay) close() {
	if r.to != nil {
		_ = r.to.Close()
	}
}
