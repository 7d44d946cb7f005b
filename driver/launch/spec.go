// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// version is of the files and the protocol. A supervisor lives as long as its task, so a plugin meets those of older
// builds; it speaks this version and the one before.
const version = 1

// ErrNewer says that a task's files were written by a newer version than this build knows. They are left alone.
var ErrNewer = errors.New("written by a newer version of Muster's task driver")

// The files of a task's directory.
const (
	specFile   = "spec.json"
	stateFile  = "state.json"
	exitFile   = "exit.json"
	lockFile   = "lock"
	socketFile = "socket"
	goneFile   = "gone"
	logFile    = "supervisor.log"
)

// Spec is what to run. It holds the task's environment, secrets included: only root reads the directory.
type Spec struct {
	Version int               `json:"version"`
	Name    string            `json:"name"` // of the cgroup, below Cgroup.Parent; unique on the machine
	Command string            `json:"command"`
	Args    []string          `json:"args"` // without the command
	Env     map[string]string `json:"env"`
	Dir     string            `json:"dir"`  // working directory
	User    string            `json:"user"` // name or numeric ID, "user:group" too; empty: the supervisor's own
	Stdout  string            `json:"stdout"`
	Stderr  string            `json:"stderr"`
	Limits  Limits            `json:"limits"`
}

// Limits is what the task's cgroup is set to. Whatever can't be set is left out with a note in the state.
type Limits struct {
	Parent            string   `json:"parent"`              // cgroup that holds those of all tasks, "muster"
	CPUShares         uint64   `json:"cpu_shares"`          // relative weight, 0: the kernel's default
	MemoryBytes       int64    `json:"memory_bytes"`        // hard limit, 0: none
	MemorySoftBytes   int64    `json:"memory_soft_bytes"`   // reclaimed down to this first, 0: none
	RestrictDevices   bool     `json:"restrict_devices"`    // else every device node is allowed
	DeviceNodes       []string `json:"device_nodes"`        // allowed beside the standard ones; paths
	DeviceNodeMatches []string `json:"device_node_matches"` // the same as patterns (filepath.Match)
}

// State says who runs a task.
type State struct {
	Version         int               `json:"version"`
	BootID          string            `json:"boot_id"` // PIDs mean something only on this boot
	Supervisor      int               `json:"supervisor"`
	SupervisorTicks uint64            `json:"supervisor_ticks"` // start time, with the PID the identity
	Main            int               `json:"main"`             // PID of the command, also of its session
	MainTicks       uint64            `json:"main_ticks"`
	Cgroups         map[string]string `json:"cgroups,omitempty"` // controller -> directory; "" for the unified hierarchy
	Notes           []string          `json:"notes,omitempty"`   // isolation that this machine does not give, in words
	Started         time.Time         `json:"started"`
}

// Exit is how a task's command ended.
type Exit struct {
	Version   int       `json:"version"`
	Code      int       `json:"code"`                 // exit status, if Signal is 0
	Signal    int       `json:"signal"`               // that ended it, 0: none
	OOMKilled bool      `json:"oom_killed,omitempty"` // some process of the task was, and the command failed
	At        time.Time `json:"at"`
}

// Success says whether the command ended by itself with status 0.
func (e Exit) Success() bool { return e.Code == 0 && e.Signal == 0 }

// String says in words how the command ended.
func (e Exit) String() string {
	switch {
	case e.OOMKilled:
		return "out of memory: the kernel killed a process of the task at the task's memory limit"
	case e.Signal != 0:
		return fmt.Sprintf("ended by signal %d (%s)", e.Signal, signalName(e.Signal))
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// writeJSON replaces a file as a whole, so that a reader after any crash finds the old content or the new.
func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", filepath.Base(path), err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(data)
	if err == nil {
		err = temporary.Sync()
	}
	if closeErr := temporary.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// readJSON reads what writeJSON wrote; os.ErrNotExist when it is not there, ErrNewer when it is of a newer version.
func readJSON[T any](path string) (T, error) {
	var value T
	data, err := os.ReadFile(path)
	if err != nil {
		return value, fmt.Errorf("reading %s: %w", path, err)
	}
	var header struct{ Version int }
	if err := json.Unmarshal(data, &header); err != nil {
		return value, fmt.Errorf("reading %s: %w", path, err)
	}
	if header.Version > version {
		return value, fmt.Errorf("%s has version %d, this build reads up to %d: %w", path, header.Version, version, ErrNewer)
	}
	if err := json.Unmarshal(data, &value); err != nil {
		return value, fmt.Errorf("reading %s: %w", path, err)
	}
	return value, nil
}

func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
