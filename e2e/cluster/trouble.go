// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// DevicePlugin is the file name of the device plugin's binary.
const DevicePlugin = "nomad-device-muster"

// ConsulAgent is the program of the cluster's Consul, which can be ended and started again with what it has on disk; nil
// in a cluster of -dev agents.
func (c *Cluster) ConsulAgent() *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if p.Name == "consul" {
			return p
		}
	}
	return nil
}

// StartConsulAgain starts Consul after it was ended, and waits until it leads.
func (c *Cluster) StartConsulAgain(ctx context.Context) error {
	if err := c.ConsulAgent().Start(); err != nil {
		return err
	}
	return Poll(ctx, "Consul to lead again", readyWithin, func(context.Context) (bool, string) {
		leader, err := c.Consul.Status().Leader()
		return err == nil && leader != "", fmt.Sprintf("leader %q, %v", leader, err)
	})
}

// PluginPID is the process ID of a plugin that the node's agent runs; 0: it runs none by that name.
func (n *Client) PluginPID(plugin string) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !bytes.Contains(procFile(pid, "cmdline"), []byte(plugin)) {
			continue
		}
		stat := procFile(pid, "stat")
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[0]) != "Z" && string(fields[1]) == strconv.Itoa(n.PID()) {
			return pid
		}
	}
	return 0
}

// KillPlugin ends a plugin of the node at once, and returns the process that it was.
func (n *Client) KillPlugin(plugin string) (pid int, err error) {
	if pid = n.PluginPID(plugin); pid == 0 {
		return 0, fmt.Errorf("the agent of node %s runs no plugin %s", n.Node.Name, plugin)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return pid, fmt.Errorf("ending plugin %s of node %s: %w", plugin, n.Node.Name, err)
	}
	return pid, nil
}

// OpenGPU uses a GPU of the node without having been given it, as somebody's shell may.
func (n *Client) OpenGPU(minor int) (*os.File, error) {
	return os.OpenFile(filepath.Join(n.DevRoot, "nvidia"+strconv.Itoa(minor)), os.O_RDWR, 0)
}
