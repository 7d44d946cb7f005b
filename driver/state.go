// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/placer/ledger"
)

// A task's directory holds, beside its process's (driver/launch):
//
//	task.json     what Nomad asked for, and the task's place in its gang; as long as it is there, a claim may be
//	member.json   what it last wanted the ledger to say about it; a process that is there is of its generation
//	earlier.json  the member.json of the task that had the seat before: Nomad has started it again
const (
	taskFile    = "task.json"
	memberFile  = "member.json"
	earlierFile = "earlier.json"
)

// taskState is what Nomad keeps for the driver from StartTask on, and gives back to RecoverTask.
type taskState struct {
	Version int
	Dir     string
}

// savedTask is the content of task.json. Nomad's own copy of a task's configuration lacks the driver's block and the
// devices' environment when it asks to recover the task.
type savedTask struct {
	Version int
	Seat    gang.Seat
	Started time.Time // by StartTask: the entry barrier's deadline runs from here
	Config  *drivers.TaskConfig
	Options TaskConfig
}

func taskDir(stateDir, taskID string) string {
	return filepath.Join(stateDir, "tasks", strings.ReplaceAll(url.PathEscape(taskID), "%2F", "."))
}

func processDir(dir string) string { return filepath.Join(dir, "process") }

// removeProcess makes room for the process of another generation. It leaves no directory behind that is half there.
func removeProcess(dir string) error {
	old := processDir(dir) + ".old"
	err := os.RemoveAll(old)
	if err == nil {
		err = os.Rename(processDir(dir), old)
	}
	if err == nil {
		err = os.RemoveAll(old)
	}
	if err != nil {
		return fmt.Errorf("removing the state of an earlier process: %w", err)
	}
	return nil
}

// memberIn is what a task's directory says about its member; nil if it says nothing.
func memberIn(dir, file string) *ledger.Member {
	doc, err := load[ledger.Member](filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	return &doc
}

// inherit lets a later task on a seat know how far an earlier one has got.
func inherit(from, to string) error {
	doc := memberIn(from, memberFile)
	if doc == nil {
		doc = memberIn(from, earlierFile)
	}
	if known := memberIn(to, earlierFile); doc == nil || known != nil && known.Generation >= doc.Generation {
		return nil
	}
	return save(filepath.Join(to, earlierFile), doc)
}

// identify finds a task's place from the environment that the device plugin gave for its slot, and from nothing that the
// job could have written.
func identify(cfg *drivers.TaskConfig) (gang.Seat, error) {
	seat := gang.Seat{Allocation: cfg.AllocID}
	var missing []string
	text := func(variable string) string {
		value := cfg.DeviceEnv[variable]
		if value == "" {
			missing = append(missing, variable)
		}
		return value
	}
	number := func(variable string) int {
		value := text(variable)
		n, err := strconv.Atoi(value)
		if value != "" && err != nil {
			missing = append(missing, variable)
		}
		return n
	}
	seat.Gang, seat.Reservation, seat.Node = text("MUSTER_GANG"), text("MUSTER_RESERVATION"), text("MUSTER_NODE")
	seat.Rank, seat.Size = number("MUSTER_RANK"), number("MUSTER_SIZE")
	if len(missing) > 0 {
		return seat, fmt.Errorf(`task %s has no slot of a gang (%s missing from its device's environment): `+
			`a task with driver = "muster" needs one device "muster/gang" whose gang attribute names its gang`,
			cfg.Name, strings.Join(missing, ", "))
	}
	return seat, nil
}

// ownerError says that a slot is somebody else's.
type ownerError struct{ text string }

func (e *ownerError) Error() string { return e.text }

// owns checks that a slot was granted to a task: the same namespace, job (or parent of a dispatched or periodic one),
// group and task.
func owns(cfg *drivers.TaskConfig, slot ledger.Slot) error {
	owner := slot.Owner
	if owner.Namespace == cfg.Namespace && jobIs(cfg.JobID, owner.Job) && owner.Group == cfg.TaskGroupName &&
		owner.Task == cfg.Name && slot.Driver == name {
		return nil
	}
	return &ownerError{text: fmt.Sprintf(
		"slot %s was granted to task %s of group %s of job %s in namespace %s (driver %s), not to task %s of group %s of job %s in namespace %s: two jobs name the same gang",
		slot.ID(), owner.Task, owner.Group, owner.Job, owner.Namespace, slot.Driver, cfg.Name, cfg.TaskGroupName, cfg.JobID, cfg.Namespace)}
}

// jobIs says whether a job is the owner or one of its children. Nomad does not hand a driver the parent's ID.
func jobIs(job, owner string) bool {
	return job == owner || strings.HasPrefix(job, owner+"/dispatch-") || strings.HasPrefix(job, owner+"/periodic-")
}

func saveTask(dir string, t savedTask) error {
	t.Version = handleVersion
	return save(filepath.Join(dir, taskFile), t)
}

func loadTask(dir string) (savedTask, error) {
	saved, err := load[savedTask](filepath.Join(dir, taskFile))
	if err == nil {
		err = readable(saved.Version)
	}
	if err == nil && saved.Config == nil {
		err = errors.New("the task's state has no configuration")
	}
	return saved, err
}

// readable refuses what a newer version of the driver has written.
func readable(version int) error {
	if version > handleVersion {
		return fmt.Errorf("the task's state has version %d, written by a newer version of this driver; this build reads up to %d", version, handleVersion)
	}
	return nil
}

// save replaces a file as a whole.
func save(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", filepath.Base(path), err)
	}
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return fmt.Errorf("writing the task's state: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("writing the task's state: %w", err)
	}
	return nil
}

func load[T any](path string) (T, error) {
	var value T
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err != nil {
		return value, fmt.Errorf("reading the task's state: %w", err)
	}
	return value, nil
}
