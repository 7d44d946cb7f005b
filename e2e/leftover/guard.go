// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package leftover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// sweepWithin bounds one sweep.
const sweepWithin = 2 * time.Minute

// done is what the cluster tells its guard when it has cleaned up itself.
const done = "done"

// Guard is a process of its own that sweeps a cluster when the process that started it ends without having done so,
// whatever ended it: a test's time limit, an interrupt, SIGKILL.
type Guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// StartGuard starts the guard's program (cmd/leftover-guard) for a mark.
func StartGuard(program string, mark Mark) (*Guard, error) {
	cmd := exec.Command(program, string(mark))
	cmd.Env = []string{}                                 // it must not carry the mark itself
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt at the terminal must not end it
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	return &Guard{cmd: cmd, pipe: pipe}, nil
}

// Release tells the guard that nothing is left, and waits for it.
func (g *Guard) Release() error {
	_, err := io.WriteString(g.pipe, done)
	return errors.Join(err, g.pipe.Close(), g.cmd.Wait())
}

// Watch is the guard's work: it waits until input ends, and sweeps unless it was told that nothing is left.
func Watch(input io.Reader, mark Mark) error {
	text, err := io.ReadAll(input)
	if err == nil && string(text) == done {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepWithin)
	defer cancel()
	return mark.Sweep(ctx)
}
