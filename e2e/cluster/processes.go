// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/e2e/leftover"
)

// clockTick is the unit of process start times in /proc (USER_HZ, the same on every Linux machine that Nomad runs on).
const clockTick = 10 * time.Millisecond

// TaskProcess is a live process of a gang's member: the muster driver started it or one that it descends from, or it
// holds made-up GPUs open.
type TaskProcess struct {
	PID     int
	Started time.Duration // since the machine was started
	Node    string        // what follows is as its environment says
	Gang    string
	Run     string // "<reservation>/<generation>"
	Rank    int
	Minors  []int // of the GPUs that it really holds open, whatever its environment says
}

// Reservation is the reservation that the process stands on.
func (h TaskProcess) Reservation() string {
	reservation, _, _ := strings.Cut(h.Run, "/")
	return reservation
}

// Generation is the generation that the process is of; 0: it is of none, since its task driver knows none.
func (h TaskProcess) Generation() int {
	_, text, _ := strings.Cut(h.Run, "/")
	generation, _ := strconv.Atoi(text) // empty for other drivers
	return generation
}

// processes finds the live processes of the members of one cluster's gangs.
type processes struct {
	mark    leftover.Mark
	foreign map[string]bool // processes seen before that are none of the cluster's, by ID and start time
}

func newProcesses(mark leftover.Mark) *processes {
	return &processes{mark: mark, foreign: map[string]bool{}}
}

// Processes lists the live processes of all gangs' members.
func (c *Cluster) Processes() []TaskProcess { return newProcesses(c.Mark).list() }

func (p *processes) list() []TaskProcess {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []TaskProcess
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			if process, ok := p.look(pid); ok {
				found = append(found, process)
			}
		}
	}
	return found
}

func (p *processes) look(pid int) (TaskProcess, bool) {
	started, ok := startTime(pid)
	key := strconv.Itoa(pid) + "@" + started.String()
	if !ok || p.foreign[key] {
		return TaskProcess{}, false
	}
	environ := procFile(pid, "environ")
	ours := bytes.Contains(environ, []byte(p.mark)) || bytes.Contains(procFile(pid, "cgroup"), []byte(p.mark))
	if !ours {
		p.foreign[key] = true
		return TaskProcess{}, false
	}
	if len(environ) == 0 { // it is just ending
		return TaskProcess{}, false
	}
	env, minors := parseEnviron(environ), openGPUs(pid)
	if env["MUSTER_GENERATION"] == "" && len(minors) == 0 {
		return TaskProcess{}, false
	}
	rank, err := strconv.Atoi(env["MUSTER_RANK"])
	if err != nil {
		if len(procFile(pid, "environ")) == 0 { // it began to end in the middle of the first reading, which was cut off
			return TaskProcess{}, false
		}
		rank = -1
	}
	return TaskProcess{
		PID: pid, Started: started, Minors: minors, Node: env["MUSTER_NODE"], Gang: env["MUSTER_GANG"], Rank: rank,
		Run: env["MUSTER_RESERVATION"] + "/" + env["MUSTER_GENERATION"],
	}, true
}

// openGPUs lists the made-up GPUs that a process holds open, by the N of nvidiaN. A GPU opened twice counts once.
func openGPUs(pid int) []int {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var minors []int
	seen := map[int]bool{}
	for _, file := range files {
		target, err := os.Readlink(filepath.Join(dir, file.Name()))
		if err != nil {
			continue
		}
		if minor, ok := gpuMinor(target); ok && !seen[minor] {
			seen[minor] = true
			minors = append(minors, minor)
		}
	}
	return minors
}

func gpuMinor(path string) (int, bool) {
	digits, isGPU := strings.CutPrefix(filepath.Base(path), "nvidia")
	if !isGPU {
		return 0, false
	}
	minor, err := strconv.ParseUint(digits, 10, 16)
	return int(minor), err == nil
}

func parseEnviron(environ []byte) map[string]string {
	env := map[string]string{}
	for _, pair := range strings.Split(string(environ), "\x00") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			env[name] = value
		}
	}
	return env
}

// startTime is when a process was started, after the machine was; field 22 of its stat.
func startTime(pid int) (time.Duration, bool) {
	stat := procFile(pid, "stat")
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, false
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	return time.Duration(ticks) * clockTick, err == nil
}

// CPUTime is how long the program has used a core until now; fields 14 and 15 of its stat.
func (p *Process) CPUTime() time.Duration {
	stat := procFile(p.PID(), "stat")
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64) // the kernel writes numbers
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick
}

// ResidentMiB is the memory that the program has in use; field 2 of its statm.
func (p *Process) ResidentMiB() int64 {
	fields := strings.Fields(string(procFile(p.PID(), "statm")))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64) // the kernel writes a number
	return pages * int64(os.Getpagesize()) >> 20
}

// uptime is how long the machine has run, the clock of process start times.
func uptime() time.Duration {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, _ := strconv.ParseFloat(first, 64) // the kernel writes a number
	return time.Duration(seconds * float64(time.Second))
}

func procFile(pid int, name string) []byte {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	if err != nil {
		return nil // it has ended
	}
	return text
}

// BootTime is when the machine was started, which process start times count from.
func BootTime() time.Time { return time.Now().Add(-uptime()) }
