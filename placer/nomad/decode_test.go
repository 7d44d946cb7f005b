// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/mock"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
)

// TestReadJobKeepsWhatTheSchedulerNeeds reads jobs with all their parts the way that Nomad's API writes them.
func TestReadJobKeepsWhatTheSchedulerNeeds(t *testing.T) {
	for name, job := range map[string]*structs.Job{
		"service":    mock.Job(),
		"batch":      mock.BatchJob(),
		"lifecycle":  mock.LifecycleJob(),
		"connect":    mock.ConnectJob(),
		"multi":      mock.MultiregionJob(),
		"periodic":   mock.PeriodicJob(),
		"max client": mock.MaxParallelJob(),
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(job)
			must.NoError(t, err)
			got, err := ReadJob(text)
			must.NoError(t, err)
			must.Eq(t, "", got.Problem)
			must.Eq(t, JobID{Namespace: job.Namespace, ID: job.ID}, got.ID)
			must.Eq(t, job.Constraints, got.Spec.Constraints)
			must.Eq(t, job.Datacenters, got.Spec.Datacenters)
			for i, group := range job.TaskGroups {
				must.Eq(t, group.Networks, got.Spec.TaskGroups[i].Networks)
				for j, task := range group.Tasks {
					must.Eq(t, task.Resources, got.Spec.TaskGroups[i].Tasks[j].Resources)
				}
			}
			must.Eq(t, job.Periodic != nil, got.Parent)
		})
	}
}

// TestUnsubmittedFillsInWhatNomadsServerDoes reads a job that says as little as a job can.
func TestUnsubmittedFillsInWhatNomadsServerDoes(t *testing.T) {
	id := "a"
	job, err := Unsubmitted(&api.Job{ID: &id}, State{Index: 7})
	must.NoError(t, err)
	must.Eq(t, JobID{Namespace: "default", ID: "a"}, job.ID)
	must.EqOp(t, 8, job.CreateIndex)
	must.Eq(t, []string{"*"}, job.Spec.Datacenters)
}

func TestReadJobRefusesWhatIsNoJob(t *testing.T) {
	_, err := ReadJob([]byte(`{"ID":"a","Priority":[]}`))
	must.ErrorContains(t, err, "reading a job from Nomad")
	_, err = ReadJob([]byte(`{"ID":"a"}`))
	must.ErrorContains(t, err, "no ID, namespace, version or indexes")
}

func TestParentsNeverRunThemselves(t *testing.T) {
	for name, tc := range map[string]struct {
		job    api.Job
		parent bool
	}{
		"an ordinary job":     {api.Job{}, false},
		"a periodic job":      {api.Job{Periodic: &api.PeriodicConfig{}}, true},
		"a parameterized job": {api.Job{ParameterizedJob: &api.ParameterizedJobConfig{}}, true},
		"a dispatched child":  {api.Job{ParameterizedJob: &api.ParameterizedJobConfig{}, Dispatched: true}, false},
	} {
		t.Run(name, func(t *testing.T) { must.Eq(t, tc.parent, isParent(&tc.job)) })
	}
}

func TestTasksTellHowTheyEnded(t *testing.T) {
	zero, two, interrupted := 0, 2, 130
	exit := func(code int) *structs.TaskEvent {
		return structs.NewTaskEvent(structs.TaskTerminated).SetExitCode(code)
	}
	started, killing := structs.NewTaskEvent(structs.TaskStarted), structs.NewTaskEvent(structs.TaskKilling)
	setup := structs.NewTaskEvent(structs.TaskSetupFailure)
	setup.DisplayMessage = "no such image"
	for name, tc := range map[string]struct {
		state     structs.TaskState
		want      Task
		succeeded bool
	}{
		"by its own exit 0": {
			structs.TaskState{State: "dead", Events: []*structs.TaskEvent{started, exit(0)}},
			Task{Dead: true, Exit: &zero}, true,
		},
		"by its own exit 2": {
			structs.TaskState{State: "dead", Failed: true, Events: []*structs.TaskEvent{started, exit(2)}},
			Task{Dead: true, Failed: true, Exit: &two}, false,
		},
		"killed, though it said 0": {
			structs.TaskState{State: "dead", Events: []*structs.TaskEvent{started, killing, exit(0)}},
			Task{Dead: true, Killed: true, Exit: &zero}, false,
		},
		"before it began": {
			structs.TaskState{State: "dead", Failed: true, Events: []*structs.TaskEvent{setup}},
			Task{Dead: true, Failed: true, Message: "no such image"}, false,
		},
		"not, but it is being restarted in place": {
			structs.TaskState{State: "pending", Restarts: 1, Events: []*structs.TaskEvent{started, exit(130)}},
			Task{Exit: &interrupted}, false,
		},
		"not, and it was restarted in place": {
			structs.TaskState{State: "running", Restarts: 1, Events: []*structs.TaskEvent{started, exit(130), started}},
			Task{Restarts: 1}, false,
		},
		"not yet": {
			structs.TaskState{State: "running", Events: []*structs.TaskEvent{started}},
			Task{}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := readTask(&tc.state)
			must.Eq(t, tc.want, got)
			must.Eq(t, tc.succeeded, got.Succeeded())
		})
	}
}

func TestHintsOfEvents(t *testing.T) {
	evaluation := func(trigger string) api.Event {
		return api.Event{Topic: api.TopicEvaluation, Payload: map[string]any{"Evaluation": map[string]any{"TriggeredBy": trigger}}}
	}
	for name, tc := range map[string]struct {
		events []api.Event
		want   kind
	}{
		"a heartbeat":           {nil, 0},
		"a job":                 {[]api.Event{{Topic: api.TopicJob}}, jobs},
		"a node and an alloc":   {[]api.Event{{Topic: api.TopicNode}, {Topic: api.TopicAllocation}}, nodes | allocs},
		"a purge":               {[]api.Event{evaluation(structs.EvalTriggerJobDeregister)}, jobs | allocs},
		"any other evaluation":  {[]api.Event{evaluation(structs.EvalTriggerNodeUpdate)}, 0},
		"what we don't know of": {[]api.Event{{Topic: "Service"}}, 0},
	} {
		t.Run(name, func(t *testing.T) { must.Eq(t, tc.want, hintOf(tc.events)) })
	}
}
