// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-muster/muster/placer/ledger"
)

// The device that a member asks for.
const (
	SlotVendor = "muster"
	SlotType   = "gang"
)

// ReadJob reads a job as Nomad's API writes it, into the API's own type and into the scheduler's. The latter may fail
// with a Nomad much newer than the scheduler package; the job is then kept with the problem in words.
func ReadJob(text []byte) (*Job, error) {
	var fromAPI api.Job
	if err := json.Unmarshal(text, &fromAPI); err != nil {
		return nil, fmt.Errorf("reading a job from Nomad: %w", err)
	}
	if fromAPI.ID == nil || fromAPI.Namespace == nil || fromAPI.CreateIndex == nil || fromAPI.Version == nil ||
		fromAPI.JobModifyIndex == nil {
		return nil, fmt.Errorf("reading a job from Nomad: it has no ID, namespace, version or indexes")
	}
	job := &Job{
		ID:             JobID{Namespace: *fromAPI.Namespace, ID: *fromAPI.ID},
		API:            &fromAPI,
		Stopped:        fromAPI.Stop != nil && *fromAPI.Stop,
		Parent:         isParent(&fromAPI),
		CreateIndex:    *fromAPI.CreateIndex,
		Version:        *fromAPI.Version,
		JobModifyIndex: *fromAPI.JobModifyIndex,
	}
	if fromAPI.Status != nil {
		job.Status = *fromAPI.Status
	}
	if fromAPI.SubmitTime != nil {
		job.SubmittedAt = time.Unix(0, *fromAPI.SubmitTime).UTC()
	}
	spec := &structs.Job{}
	if err := json.Unmarshal(text, spec); err != nil {
		job.Problem = fmt.Sprintf("this Nomad's job can't be read by Nomad 1.6.3's scheduler: %s", err)
		return job, nil
	}
	job.Spec = spec
	return job, nil
}

// Unsubmitted is a job that Nomad does not have, as it would have it: the next version of the job by that name in before, or
// else a new one, with what Nomad's server fills in (all datacenters, if the job names none).
func Unsubmitted(job *api.Job, before State) (*Job, error) {
	next := *job
	next.Canonicalize()
	id := JobID{Namespace: *next.Namespace, ID: *next.ID}
	create, version, index, stop, status := before.Index+1, uint64(0), before.Index+1, false, "pending"
	if old := before.Jobs[id]; old != nil {
		create, version = old.CreateIndex, old.Version+1
	}
	next.CreateIndex, next.Version, next.JobModifyIndex, next.Stop, next.Status, next.SubmitTime = &create, &version, &index, &stop, &status, nil
	text, err := json.Marshal(&next)
	if err != nil {
		return nil, fmt.Errorf("writing job %s: %w", id, err)
	}
	read, err := ReadJob(text)
	if err == nil {
		read.Spec.Canonicalize() // a spec that could not be read is nil, which it takes
	}
	return read, err
}

// isParent says whether a job only makes other jobs. Their children are no longer parents: a periodic child has no
// periodic block, a dispatched one says so.
func isParent(job *api.Job) bool {
	return job.Periodic != nil || job.ParameterizedJob != nil && !job.Dispatched
}

// readAlloc turns Nomad's list entry into ours.
func readAlloc(stub *structs.AllocListStub) *Alloc {
	a := &Alloc{
		ID:         stub.ID,
		Job:        JobID{Namespace: stub.Namespace, ID: stub.JobID},
		JobVersion: stub.JobVersion,
		Group:      stub.TaskGroup,
		NodeID:     stub.NodeID,
		Client:     stub.ClientStatus,
		Desired:    stub.DesiredStatus,
		Message:    firstText(stub.ClientDescription, stub.DesiredDescription),
		Created:    stub.CreateIndex,
		Resources:  stub.AllocatedResources,
		Slots:      slotsOf(stub.AllocatedResources),
	}
	if len(stub.TaskStates) > 0 {
		a.Tasks = make(map[string]Task, len(stub.TaskStates))
	}
	for name, state := range stub.TaskStates {
		a.Tasks[name] = readTask(state)
	}
	return a
}

// readTask reads how a task ended from its events: the last exit counts, and any event that asked for its end.
func readTask(state *structs.TaskState) Task {
	if state == nil {
		return Task{}
	}
	t := Task{Dead: state.State == structs.TaskStateDead, Failed: state.Failed, Restarts: restarts(state)}
	for _, event := range state.Events {
		switch event.Type {
		case structs.TaskStarted:
			t.Exit, t.Killed = nil, false
		case structs.TaskKilling, structs.TaskKilled, structs.TaskSiblingFailed, structs.TaskLeaderDead:
			t.Killed = true
		case structs.TaskTerminated:
			code := event.ExitCode
			if text, found := event.Details["exit_code"]; found {
				if n, err := strconv.Atoi(text); err == nil {
					code = n
				}
			}
			t.Exit = &code
		}
		if tells(event.Type) {
			t.Message = firstText(event.DisplayMessage, t.Message)
		}
	}
	return t
}

// restarts counts those that are over: a task on its way to its next start can't even be signalled.
func restarts(state *structs.TaskState) int {
	n := int(min(state.Restarts, math.MaxInt32))
	if state.State == structs.TaskStatePending {
		n--
	}
	return max(n, 0)
}

// tells says whether an event explains an end better than Nomad's closing "exceeded allowed attempts".
func tells(eventType string) bool {
	switch eventType {
	case structs.TaskSetupFailure, structs.TaskDriverFailure, structs.TaskFailedValidation,
		structs.TaskArtifactDownloadFailed, structs.TaskTerminated, structs.TaskHookFailed, structs.TaskKilling:
		return true
	}
	return false
}

// slotsOf lists the slots that an allocation's devices are of: the reservation is in the instance IDs, the rank in the
// group's name, "<gang>.<rank>".
func slotsOf(resources *structs.AllocatedResources) []ledger.SlotID {
	if resources == nil {
		return nil
	}
	var slots []ledger.SlotID
	for _, task := range resources.Tasks {
		for _, device := range task.Devices {
			if slot, ok := slotOf(device); ok {
				slots = append(slots, slot)
			}
		}
	}
	return slots
}

func slotOf(device *structs.AllocatedDeviceResource) (ledger.SlotID, bool) {
	if device.Vendor != SlotVendor || device.Type != SlotType || len(device.DeviceIDs) == 0 {
		return ledger.SlotID{}, false
	}
	_, reservation, ok := ledger.ParseInstanceID(device.DeviceIDs[0])
	dot := strings.LastIndexByte(device.Name, '.')
	rank, err := strconv.Atoi(device.Name[dot+1:])
	return ledger.SlotID{Reservation: reservation, Rank: rank}, ok && dot > 0 && err == nil
}

func firstText(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
