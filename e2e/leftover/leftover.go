// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package leftover removes what a test cluster leaves on the machine: processes, mounts, cgroups and folders. It finds
// them by the cluster's own mark (a random name that is in the environment of everything the cluster starts, in the
// path of its state and in the names of its cgroups) and never by a program's name. It starts nothing; only e2e
// imports it.
package leftover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Prefix starts every mark, so that nothing but a test cluster can ever be swept.
const Prefix = "muster-e2e-"

// EnvVar carries the mark in the environment of everything that a cluster starts.
const EnvVar = "MUSTER_E2E"

const (
	cgroupRoot = "/sys/fs/cgroup"
	pollEvery  = 50 * time.Millisecond
)

// Mark names one cluster: Prefix and some random digits.
type Mark string

// Valid says whether the mark is one that may be swept.
func (m Mark) Valid() bool {
	return strings.HasPrefix(string(m), Prefix) && len(m) >= len(Prefix)+8 && !strings.ContainsAny(string(m), "/. ")
}

// Dir is where the cluster keeps its state.
func (m Mark) Dir() string { return filepath.Join(os.TempDir(), string(m)) }

// Processes lists the cluster's processes, this one and those that it descends from left out.
func (m Mark) Processes() []int {
	own := ancestors(os.Getpid())
	var found []int
	for _, pid := range allProcesses() {
		if !own[pid] && m.marks(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// marks says whether a process carries the mark in its environment or its cgroup. A process that ends meanwhile does not.
func (m Mark) marks(pid int) bool {
	for _, file := range []string{"environ", "cgroup"} {
		text, err := os.ReadFile(procPath(pid, file))
		if err == nil && bytes.Contains(text, []byte(m)) {
			return true
		}
	}
	return false
}

// Sweep kills the cluster's processes and removes its mounts, cgroups and state. It returns what it could not remove
// before the context ended.
func (m Mark) Sweep(ctx context.Context) error {
	if !m.Valid() {
		return fmt.Errorf("%q is not the mark of a test cluster", string(m))
	}
	err := m.kill(ctx)
	return errors.Join(err, m.unmount(), m.removeCgroups(ctx), m.removeDir(ctx))
}

func (m Mark) kill(ctx context.Context) error {
	return until(ctx, func() error {
		left := m.Processes()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // gone meanwhile: all the better
		}
		if len(left) > 0 {
			return fmt.Errorf("processes %v do not end", left)
		}
		return nil
	})
}

func (m Mark) unmount() error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list of mounts: %w", err)
	}
	var points []string
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], m.Dir()+"/") {
			points = append(points, fields[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points))) // what is mounted inside another goes first
	var failed []error
	for _, point := range points {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			failed = append(failed, fmt.Errorf("unmounting %s: %w", point, err))
		}
	}
	return errors.Join(failed...)
}

// Cgroups lists the cluster's cgroups, the innermost first.
func (m Mark) Cgroups() []string {
	var found []string
	_ = filepath.WalkDir(cgroupRoot, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(path, string(m)) {
			found = append(found, path)
		}
		return nil // a cgroup that vanishes while we look is none of ours any more
	})
	sort.Sort(sort.Reverse(sort.StringSlice(found)))
	return found
}

func (m Mark) removeCgroups(ctx context.Context) error {
	return until(ctx, func() error {
		var failed []error
		for _, path := range m.Cgroups() {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, err)
			}
		}
		return errors.Join(failed...)
	})
}

func (m Mark) removeDir(ctx context.Context) error {
	return until(ctx, func() error { return os.RemoveAll(m.Dir()) })
}

// until repeats an attempt until it succeeds or the context ends; then its last error is returned.
func until(ctx context.Context, attempt func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func allProcesses() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func ancestors(pid int) map[int]bool {
	own := map[int]bool{}
	for pid > 1 && !own[pid] {
		own[pid] = true
		pid = parent(pid)
	}
	return own
}

// parent reads the parent's ID, the second field after the command's closing bracket; 0 when the process is gone.
func parent(pid int) int {
	text, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	id, _ := strconv.Atoi(fields[1]) // the kernel writes a number
	return id
}

func procPath(pid int, file string) string { return filepath.Join("/proc", strconv.Itoa(pid), file) }
