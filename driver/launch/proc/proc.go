// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package proc reads processes from /proc as plain values: who is whose parent, when each began, which signals each
// catches. It decides nothing and signals nobody. Packages below driver import it.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Process is one process at one moment.
type Process struct {
	PID        int
	PPID       int
	Session    int
	State      byte     // as in /proc/<pid>/stat: R, S, D, Z, ...
	StartTicks uint64   // when it began, in clock ticks since boot; with the PID it names a process until the next boot
	CPUTicks   uint64   // user and system time, in clock ticks
	RSSPages   uint64   // resident memory, in pages
	Caught     uint64   // bit n-1: signal n has a handler
	Args       []string // command line; empty for a zombie and a kernel thread
}

// Catches says whether the process has a handler for a signal.
func (p Process) Catches(signal syscall.Signal) bool {
	return signal > 0 && signal <= 64 && p.Caught&(1<<(signal-1)) != 0
}

// Dead says whether only its exit status is left of the process.
func (p Process) Dead() bool { return p.State == 'Z' || p.State == 'X' }

// Read reads one process; the error is os.ErrNotExist when it is gone.
func Read(pid int) (Process, error) {
	p, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return Process{}, gone(pid, err)
	}
	if p.Caught, err = parseCaught(status); err != nil {
		return Process{}, err
	}
	args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return Process{}, gone(pid, err)
	}
	p.Args = splitArgs(args)
	return p, nil
}

func readStat(pid int) (Process, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return Process{}, gone(pid, err)
	}
	return parseStat(stat)
}

// gone makes one error of the two that the kernel has for a process that ended (ENOENT, and ESRCH while reading).
func gone(pid int, err error) error {
	if errors.Is(err, syscall.ESRCH) {
		err = os.ErrNotExist
	}
	return fmt.Errorf("reading process %d: %w", pid, err)
}

// Alive says whether the process that began at startTicks under this PID still runs; a zombie does not.
func Alive(pid int, startTicks uint64) bool {
	p, err := Read(pid)
	return err == nil && p.StartTicks == startTicks && !p.Dead()
}

// All reads all processes, in no useful order and without Caught and Args. Those that end meanwhile are left out.
func All() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var all []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, err := readStat(pid); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// Some reads the listed processes in their order, leaving out those that are gone.
func Some(pids []int) []Process {
	var some []Process
	for _, pid := range pids {
		if p, err := Read(pid); err == nil {
			some = append(some, p)
		}
	}
	return some
}

// Below returns the processes that descend from root, not root itself.
func Below(all []Process, root int) []Process {
	children := map[int][]Process{}
	for _, p := range all {
		children[p.PPID] = append(children[p.PPID], p)
	}
	var below []Process
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, child := range children[queue[0]] {
			below = append(below, child)
			queue = append(queue, child.PID)
		}
	}
	return below
}

// The fields of /proc/<pid>/stat after the command's name, counted from the state as 0 (proc(5) counts it as 3).
const (
	statState   = 0
	statParent  = 1
	statSession = 3
	statUser    = 11
	statSystem  = 12
	statStart   = 19
	statRSS     = 21
)

// parseStat reads /proc/<pid>/stat, whose second field is a name in brackets that may hold anything, brackets too.
func parseStat(stat []byte) (Process, error) {
	open, closing := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || closing < open {
		return Process{}, fmt.Errorf("process status %q has no name", stat)
	}
	fields := strings.Fields(string(stat[closing+1:]))
	if len(fields) <= statRSS || len(fields[statState]) != 1 {
		return Process{}, fmt.Errorf("process status %q is too short", stat)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(stat[:open])))
	if err != nil {
		return Process{}, fmt.Errorf("process status %q: %w", stat, err)
	}
	var numbers [statRSS + 1]uint64
	for _, i := range []int{statParent, statSession, statUser, statSystem, statStart, statRSS} {
		if numbers[i], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
			return Process{}, fmt.Errorf("process status %q: %w", stat, err)
		}
	}
	return Process{
		PID:        pid,
		PPID:       int(numbers[statParent]),
		Session:    int(numbers[statSession]),
		State:      fields[statState][0],
		StartTicks: numbers[statStart],
		CPUTicks:   numbers[statUser] + numbers[statSystem],
		RSSPages:   numbers[statRSS],
	}, nil
}

// parseCaught finds the mask of caught signals in /proc/<pid>/status.
func parseCaught(status []byte) (uint64, error) {
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("mask of caught signals: %w", err)
			}
			return mask, nil
		}
	}
	return 0, errors.New("process status has no mask of caught signals")
}

func splitArgs(cmdline []byte) []string {
	text := strings.TrimRight(string(cmdline), "\x00")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\x00")
}
