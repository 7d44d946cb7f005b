// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/nomad-muster/muster/driver/launch/proc"
)

// children are the processes that we are the parent of: those that we started, and the task's orphans.
type children struct {
	mu    sync.Mutex // protects byPID; held over a start, so that no end is seen before its start is known
	byPID map[int]*child
}

// child is one process that we started. status is set when done is closed.
type child struct {
	pid    int
	ticks  uint64
	status syscall.WaitStatus
	done   chan struct{}
}

// init begins to collect children that end.
func (c *children) init() {
	c.byPID = map[int]*child{}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGCHLD)
	go func() {
		for range ends {
			c.collect()
		}
	}()
}

func (c *children) start(fork func() (int, error)) (*child, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return nil, err
	}
	started := &child{pid: pid, done: make(chan struct{})}
	if p, err := proc.Read(pid); err == nil {
		started.ticks = p.StartTicks
	}
	c.byPID[pid] = started
	return started, nil
}

func (c *children) collect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended := c.byPID[pid]; ended != nil {
			delete(c.byPID, pid)
			ended.status = status
			close(ended.done)
		}
	}
}
