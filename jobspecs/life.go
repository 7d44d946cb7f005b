// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"fmt"
	"time"
)

// nomadKillTimeout is what Nomad grants a task that does not say.
const nomadKillTimeout = 5 * time.Second

// checkJob applies the conditions that concern the whole job.
func (r *reader) checkJob(gang *Gang) {
	switch gang.JobType {
	case "batch", "service":
	default:
		r.refuse(r.at.attribute("type"), `write type = "batch"`,
			"a %s job can't run a gang: Nomad decides by itself where and how often it runs", gang.JobType)
	}
	if gang.Parameterized && gang.Size() > 1 {
		r.refuse(r.at.in("parameterized"), "submit a job of its own for each run, with the gang's name as an HCL variable",
			"a parameterized job can only be a gang of one: the members of its children would mix")
	}
	if gang.Periodic && gang.Size() > 1 {
		r.refuse(r.at.in("periodic"), "submit a job of its own for each run, with the gang's name as an HCL variable",
			"a periodic job can only be a gang of one: the members of its children would mix")
	}
	if p := r.job.Periodic; p != nil && !or(false, p.ProhibitOverlap) {
		r.refuse(r.at.in("periodic").attribute("prohibit_overlap"), "write prohibit_overlap = true",
			"a periodic job whose runs overlap would ask for one slot twice")
	}
}

// checkLife applies the conditions on how Nomad treats a group's members over their life: whatever Nomad would do to
// one member alone breaks a gang.
func (r *reader) checkLife(t target, size int) {
	r.checkRestart(t)
	r.checkReschedule(t)
	r.checkDisconnect(t)
	r.checkUpdate(t, size)
	if hook := t.task.Lifecycle; hook != nil && hook.Hook != "" {
		r.refuse(t.at.in("lifecycle"), "ask for the GPUs in the group's main task",
			"the GPU task is a %s task: the gang would end when it does, not when the work is done", hook.Hook)
	}
}

func (r *reader) checkRestart(t target) {
	at := t.groupAt.in("restart")
	attempts, mode := 3, "fail" // Nomad's defaults
	if or("service", r.job.Type) == "service" {
		attempts = 2
	}
	if p := t.group.RestartPolicy; p != nil {
		attempts, mode = or(attempts, p.Attempts), or(mode, p.Mode)
	}
	if p := t.task.RestartPolicy; p != nil {
		if attempts == 0 && mode == "fail" { // then it is the task's own block that is wrong, if any is
			at = t.at.in("restart")
		}
		attempts, mode = or(attempts, p.Attempts), or(mode, p.Mode)
	}
	const mend = `write restart { attempts = 0  mode = "fail" } in the group`
	switch {
	case attempts != 0:
		r.refuse(at.attribute("attempts"), mend,
			"restart attempts = %d: Nomad would restart a member in place, alone, on GPUs that may belong to another gang by then", attempts)
	case mode != "fail":
		r.refuse(at.attribute("mode"), mend,
			"restart mode = %q: a member would never end as failed, so its slot would never be free", mode)
	}
}

func (r *reader) checkReschedule(t target) {
	at := t.groupAt.in("reschedule")
	unlimited, function := false, "constant" // Nomad's defaults
	if or("service", r.job.Type) == "service" {
		unlimited, function = true, "exponential"
	}
	if p := r.job.Reschedule; p != nil {
		unlimited, function = or(unlimited, p.Unlimited), or(function, p.DelayFunction)
		if t.group.ReschedulePolicy == nil {
			at = r.at.in("reschedule")
		}
	}
	if p := t.group.ReschedulePolicy; p != nil {
		unlimited, function = or(unlimited, p.Unlimited), or(function, p.DelayFunction)
	}
	const mend = `write reschedule { attempts = 0  unlimited = true  delay = "5s"  delay_function = "constant" }`
	switch {
	case !unlimited:
		r.refuse(at.attribute("unlimited"), mend,
			"reschedule is limited: after its last attempt a member that was preempted or failed would never come back")
	case function != "constant":
		r.refuse(at.attribute("delay_function"), mend,
			"reschedule delay_function = %q: members would come back minutes or hours apart", function)
	}
}

func (r *reader) checkDisconnect(t target) {
	fence := r.options.FenceTime
	enough := ShortDuration(max(fence, 15*time.Minute))
	mend := fmt.Sprintf("write max_client_disconnect = %q (from Nomad 1.8 on: disconnect { lost_after = %q }), at least %q",
		enough, enough, ShortDuration(fence))
	at, key, lostAfter := t.groupAt.attribute("max_client_disconnect"), "max_client_disconnect", t.group.MaxClientDisconnect //nolint:staticcheck // Nomad before 1.8 knows no other
	if d := t.group.Disconnect; d != nil && d.LostAfter != nil {
		at, key, lostAfter = t.groupAt.in("disconnect").attribute("lost_after"), "disconnect lost_after", d.LostAfter
	}
	switch {
	case lostAfter == nil:
		r.refuse(at, mend, "no max_client_disconnect: a node that is silent for a moment would lose its member, and Nomad would then stop a healthy one")
	case *lostAfter < fence:
		r.refuse(at, mend, "%s = %q is shorter than the fence time of %s: Nomad would replace a member that the placer still counts on",
			key, ShortDuration(*lostAfter), ShortDuration(fence))
	}
}

func (r *reader) checkUpdate(t target, size int) {
	if or("service", r.job.Type) != "service" {
		return
	}
	at := t.groupAt.in("update")
	parallel, canaries := 1, 0 // Nomad's defaults
	if p := r.job.Update; p != nil {
		parallel, canaries = or(parallel, p.MaxParallel), or(canaries, p.Canary)
		if t.group.Update == nil {
			at = r.at.in("update")
		}
	}
	if p := t.group.Update; p != nil {
		parallel, canaries = or(parallel, p.MaxParallel), or(canaries, p.Canary)
	}
	if canaries != 0 {
		r.refuse(at.attribute("canary"), "remove canary", "update canary = %d: a canary would need a slot beside the gang's", canaries)
	}
	if size > 1 && parallel != 0 {
		r.refuse(at.attribute("max_parallel"), `write type = "batch", or update { max_parallel = 0 }`,
			"a service of %d members is updated %d at a time, which breaks the gang", size, parallel)
	}
}
