// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"github.com/opencontainers/runc/libcontainer/cgroups"
	"github.com/opencontainers/runc/libcontainer/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// group is a task's cgroup: one directory in the unified hierarchy, or one in each mounted controller of version 1.
type group struct {
	manager cgroups.Manager
	paths   map[string]string
	unified bool
}

// createGroup makes a task's cgroup and sets its limits. Limits that can't be set come back as notes in words; an error
// says that there is no cgroup at all.
func createGroup(name string, limits Limits) (*group, []string, error) {
	config := groupConfig(limits.Parent, name)
	m, err := manager.New(config)
	if err != nil {
		return nil, nil, fmt.Errorf("making cgroup %s: %w", config.Path, err)
	}
	g := &group{manager: m, paths: maps.Clone(m.GetPaths()), unified: cgroups.IsCgroup2UnifiedMode()}
	if err := m.Apply(-1); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("making cgroup %s: %w", config.Path, err), g.remove())
	}
	return g, g.limit(limits), nil
}

// openGroup opens a cgroup that exists, by the paths in a task's state.
func openGroup(paths map[string]string) (*group, error) {
	m, err := manager.NewWithPaths(groupConfig("", ""), maps.Clone(paths))
	if err != nil {
		return nil, fmt.Errorf("opening the task's cgroup: %w", err)
	}
	return &group{manager: m, paths: paths, unified: cgroups.IsCgroup2UnifiedMode()}, nil
}

func groupConfig(parent, name string) *configs.Cgroup {
	return &configs.Cgroup{Path: filepath.Join("/", parent, name), Resources: &configs.Resources{}}
}

// limit sets each kind of limit by itself, so that one that this machine lacks does not cost the others.
func (g *group) limit(limits Limits) []string {
	steps := []struct {
		what   string
		wanted bool
		set    configs.Resources
	}{
		{"CPU shares", limits.CPUShares > 0, configs.Resources{
			CpuShares: limits.CPUShares, CpuWeight: cgroups.ConvertCPUSharesToCgroupV2Value(limits.CPUShares),
		}},
		{"the memory limit", limits.MemoryBytes > 0, configs.Resources{
			Memory: limits.MemoryBytes, MemoryReservation: limits.MemorySoftBytes,
		}},
	}
	var notes []string
	for _, step := range steps {
		if !step.wanted {
			continue
		}
		step.set.SkipDevices = true
		if err := g.manager.Set(&step.set); err != nil {
			notes = append(notes, fmt.Sprintf("%s is not enforced: %v", step.what, err))
		}
	}
	if limits.RestrictDevices {
		if err := g.restrict(limits); err != nil {
			notes = append(notes, fmt.Sprintf("access to other GPUs' device nodes is not blocked: %v", err))
		}
	}
	return notes
}

// start runs a command inside the cgroup from its first instruction on, and returns its PID.
func (g *group) start(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	if g.unified {
		return g.startUnified(path, argv, attr)
	}
	type started struct {
		pid int
		err error
	}
	result := make(chan started)
	go func() {
		pid, err := g.startFromThread(path, argv, attr)
		result <- started{pid, err}
	}()
	s := <-result
	return s.pid, s.err
}

// startUnified lets the kernel put the new process into the cgroup (clone3).
func (g *group) startUnified(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	dir, err := os.Open(g.paths[""])
	if err != nil {
		return 0, fmt.Errorf("opening the task's cgroup: %w", err)
	}
	defer dir.Close()
	attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	return syscall.ForkExec(path, argv, attr)
}

// startFromThread moves one thread of ours into the cgroup (version 1 allows that) and forks from it. The thread is
// never given back: it ends with the goroutine, and with it our stay in the cgroup.
func (g *group) startFromThread(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread would stay behind in the cgroup: Go parks it instead of ending it. Keep it busy here while
		// another thread does the work.
		defer runtime.UnlockOSThread()
		return g.start(path, argv, attr)
	}
	thread := []byte(strconv.Itoa(unix.Gettid()))
	for _, controller := range slices.Sorted(maps.Keys(g.paths)) {
		if controller == "" {
			continue // the unified half of a hybrid machine takes whole processes only
		}
		err := os.WriteFile(filepath.Join(g.paths[controller], "tasks"), thread, 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("joining the task's cgroup: %w", err)
		}
	}
	return syscall.ForkExec(path, argv, attr)
}

// pids lists the processes in the cgroup and below it, without ours (a thread of ours stays for the moment of a start).
func (g *group) pids() ([]int, error) {
	all, err := g.manager.GetAllPids()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the task's processes: %w", err)
	}
	return slices.DeleteFunc(all, func(pid int) bool { return pid == os.Getpid() }), nil
}

// kill sends SIGKILL to everything in the cgroup once. Frozen meanwhile, nothing in it can fork out of the way.
func (g *group) kill() {
	if g.unified {
		if os.WriteFile(filepath.Join(g.paths[""], "cgroup.kill"), []byte("1"), 0) == nil {
			return
		}
	}
	frozen := g.manager.Freeze(configs.Frozen) == nil
	pids, _ := g.pids()
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if frozen {
		_ = g.manager.Freeze(configs.Thawed)
	}
}

// killedForMemory says whether the kernel has killed a process of the cgroup for its memory limit.
func (g *group) killedForMemory() bool {
	count, err := g.manager.OOMKillCount()
	return err == nil && count > 0
}

// remove deletes the cgroup with those that the task made below it; they must be empty.
func (g *group) remove() error {
	var errs []error
	for _, path := range g.paths {
		errs = append(errs, removeTree(path))
	}
	return errors.Join(errs...)
}

// removeTree removes directories only: the files of a cgroup go with it.
func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing the task's cgroup: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing cgroup %s: %w", path, err)
	}
	return nil
}
