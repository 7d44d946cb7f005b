// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Freeze stops the node's Nomad client and its plugins without ending them, as a machine that hangs or is cut off. Tasks go
// on, since they are processes of their own.
func (n *Client) Freeze() error { return n.signalAll(syscall.SIGSTOP) }

// Thaw lets them go on.
func (n *Client) Thaw() error { return n.signalAll(syscall.SIGCONT) }

func (n *Client) signalAll(signal syscall.Signal) error {
	for _, pid := range append([]int{n.PID()}, childrenOf(n.PID())...) {
		if err := syscall.Kill(pid, signal); err != nil {
			return fmt.Errorf("%s to process %d of node %s: %w", signal, pid, n.Node.Name, err)
		}
	}
	return nil
}

// childrenOf are the processes that a process has started: of an agent its plugins.
func childrenOf(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var children []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat := string(procFile(pid, "stat"))
		fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			children = append(children, pid)
		}
	}
	return children
}

// WipeData makes the Nomad client, which must have been ended, forget everything, its node ID too.
func (n *Client) WipeData() error {
	dir := filepath.Join(n.Dir, "data")
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("data of node %s: %w", n.Node.Name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("data of node %s: %w", n.Node.Name, err)
	}
	return nil
}

// Reboot is what a start of the machine does beside ending the agent, which must have been ended: the processes of all
// tasks are gone, and the boot ID is another.
func (c *Cluster) Reboot(ctx context.Context, n *Client) error {
	for _, path := range c.Mark.Cgroups() {
		if !strings.Contains(path, string(c.Mark)+"-"+n.Node.Name+tasksSuffix) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			continue // it has gone
		}
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
	}
	err := Poll(ctx, "the cgroups of node "+n.Node.Name+" to be gone", readyWithin, func(context.Context) (bool, string) {
		left := ""
		for _, path := range c.Mark.Cgroups() {
			if strings.Contains(path, string(c.Mark)+"-"+n.Node.Name+tasksSuffix) {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					left = err.Error()
				}
			}
		}
		return left == "", left
	})
	return errors.Join(err, n.NewBoot(false))
}
