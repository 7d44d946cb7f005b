// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// ExecTask implements drivers.DriverPlugin: script checks and the like.
func (p *Plugin) ExecTask(taskID string, cmd []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	var stdout, stderr buffer
	result, err := p.ExecTaskStreaming(ctx, taskID, &drivers.ExecOptions{
		Command: cmd, Stdin: io.NopCloser(new(bytes.Reader)), Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return nil, err
	}
	return &drivers.ExecTaskResult{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitResult: result}, nil
}

type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

// ExecTaskStreaming implements drivers.ExecTaskStreamingDriver: `nomad alloc exec`. The command runs beside the task's, by
// the task's supervisor; only its streams pass through here.
func (p *Plugin) ExecTaskStreaming(ctx context.Context, taskID string, opts *drivers.ExecOptions) (*drivers.ExitResult, error) {
	t, err := p.find(taskID)
	if err != nil {
		return nil, err
	}
	process, err := t.running()
	if err != nil {
		return nil, err
	}
	if len(opts.Command) == 0 {
		return nil, errors.New("no command to run")
	}
	s, err := openStreams(opts)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.copy(opts)
	exit, err := process.Exec(ctx, opts.Command, s.theirs, opts.Tty)
	if err != nil {
		return nil, fmt.Errorf("running %s in the task: %w", opts.Command[0], err)
	}
	s.drain(ctx)
	return &drivers.ExitResult{ExitCode: exit.Code, Signal: exit.Signal}, nil
}

// streams join a command's three streams to those of whoever asked for it.
type streams struct {
	theirs  [3]*os.File // the command's ends
	input   *os.File    // our ends
	outputs []*os.File
	copying sync.WaitGroup
}

func openStreams(opts *drivers.ExecOptions) (*streams, error) {
	if opts.Tty {
		return openTerminal()
	}
	s := &streams{outputs: make([]*os.File, 2)}
	var err error
	if s.theirs[0], s.input, err = os.Pipe(); err == nil {
		if s.outputs[0], s.theirs[1], err = os.Pipe(); err == nil {
			s.outputs[1], s.theirs[2], err = os.Pipe()
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("making pipes for the command: %w", err)
	}
	return s, nil
}

// openTerminal makes one terminal for all three streams.
func openTerminal() (*streams, error) {
	control, terminal, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("making a terminal for the command: %w", err)
	}
	s := &streams{theirs: [3]*os.File{terminal}, input: control, outputs: []*os.File{control}}
	for i := 1; i < len(s.theirs); i++ {
		fd, err := syscall.Dup(int(terminal.Fd()))
		if err != nil {
			s.close()
			return nil, fmt.Errorf("making a terminal for the command: %w", err)
		}
		syscall.CloseOnExec(fd)
		s.theirs[i] = os.NewFile(uintptr(fd), terminal.Name()) //nolint:gosec // a file descriptor
	}
	return s, nil
}

// copy passes the streams on until they end.
func (s *streams) copy(opts *drivers.ExecOptions) {
	go func() {
		_, _ = io.Copy(s.input, opts.Stdin)
		if !opts.Tty {
			_ = s.input.Close()
		}
	}()
	for i, to := range []io.Writer{opts.Stdout, opts.Stderr}[:len(s.outputs)] {
		s.copying.Go(func() { _, _ = io.Copy(to, s.outputs[i]) }) // a terminal ends with an error
	}
	if opts.Tty && opts.ResizeCh != nil {
		go func() {
			for size := range opts.ResizeCh {
				_ = pty.Setsize(s.input, &pty.Winsize{Rows: uint16(size.Height), Cols: uint16(size.Width)}) //nolint:gosec // a terminal's size
			}
		}()
	}
}

// drainPatience is how long the last output of a command may take; a child of it that lives on may hold a stream open.
const drainPatience = 2 * time.Second

func (s *streams) drain(ctx context.Context) {
	done := make(chan struct{})
	go func() { s.copying.Wait(); close(done) }()
	timer := time.NewTimer(drainPatience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *streams) close() {
	for _, file := range append(append(s.outputs, s.input), s.theirs[:]...) {
		if file != nil {
			_ = file.Close()
		}
	}
}
