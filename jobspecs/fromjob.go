// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// DefaultFenceTime is how long a silent node keeps its gang unless the placer's configuration says otherwise.
const DefaultFenceTime = 2 * time.Minute

// Options are what the rules need to know about the cluster, and the environment of the person who validates. The
// zero value suits a cluster of which nothing is known.
type Options struct {
	// FenceTime is the placer's fence_time; 0 means DefaultFenceTime.
	FenceTime time.Duration

	// Levels are the placer's topology levels, outermost first. Nil means unknown: any name is accepted.
	Levels []string

	// Env is searched for NOMAD_VAR_<name> when a file is parsed, in the form of os.Environ.
	Env []string
}

// FromJob reads the gang that a job asks for. The job may be as a user wrote it or as Nomad's API returns it, with all
// defaults filled in: the answer is the same. A job that asks for no gang gives nil and no findings. If the findings
// have errors the gang must not be admitted: it holds what could be read, for messages only. The job isn't changed;
// the gang shares its device constraints. At most one Options is read.
func FromJob(job *api.Job, options ...Options) (*Gang, Diagnostics) {
	if job == nil {
		return nil, nil
	}
	r := newReader(job, options)
	targets := r.targets()
	if len(targets) == 0 {
		return nil, nil
	}
	gang := r.newGang()
	for i := range targets {
		targets[i].meta = r.groupMeta(targets[i])
		gang.Groups = append(gang.Groups, r.readGroup(targets[i], gang))
	}
	r.nameGang(gang, targets)
	r.readMeta(gang, r.agreedMeta(targets))
	r.checkJob(gang)
	for i, t := range targets {
		r.checkLife(t, gang.Size())
		r.checkTask(t, gang.Groups[i], gang.Size())
	}
	return gang, r.list
}

// reader reads one job and collects what it finds.
type reader struct {
	findings
	job     *api.Job
	at      place
	options Options
}

// target is a group that asks for GPUs of a gang: its one GPU task and that task's one device ask.
type target struct {
	group    *api.TaskGroup
	groupAt  place
	task     *api.Task
	at       place // of the task
	device   *api.RequestedDevice
	deviceAt place
	meta     map[string]metaValue
}

func newReader(job *api.Job, options []Options) *reader {
	r := &reader{job: job, at: place{}.named("job", name(job.ID))}
	if len(options) > 0 {
		r.options = options[0]
	}
	if r.options.FenceTime == 0 {
		r.options.FenceTime = DefaultFenceTime
	}
	return r
}

func (r *reader) newGang() *Gang {
	return &Gang{
		Namespace:     or("default", r.job.Namespace),
		JobID:         name(r.job.ID),
		ParentID:      name(r.job.ParentID),
		JobType:       or("service", r.job.Type), // Nomad's default
		Priority:      or(DefaultPriority, r.job.Priority),
		Queue:         DefaultQueue,
		NVLink:        NVLinkPreferred,
		Locality:      LocalityAny,
		RelaxAfter:    DefaultRelaxAfter,
		Periodic:      r.job.Periodic != nil || r.job.ParentID != nil && *r.job.ParentID != "" && !r.job.Dispatched,
		Parameterized: r.job.ParameterizedJob != nil || r.job.Dispatched,
	}
}

// targets finds the groups that ask for GPUs of a gang, in file order.
func (r *reader) targets() []target {
	var targets []target
	for _, group := range r.job.TaskGroups {
		if group == nil {
			continue
		}
		asks := r.deviceAsks(group)
		for _, ask := range asks {
			if asksForGang(ask.device.Name) {
				r.refuseOtherAsks(ask, asks)
				targets = append(targets, ask)
				break
			}
		}
	}
	return targets
}

// deviceAsks lists every device ask of a group.
func (r *reader) deviceAsks(group *api.TaskGroup) []target {
	var asks []target
	groupAt := r.at.named("group", name(group.Name))
	for _, task := range group.Tasks {
		if task == nil || task.Resources == nil {
			continue
		}
		at := groupAt.named("task", task.Name)
		for i, device := range task.Resources.Devices {
			if device != nil {
				deviceAt := at.in("resources").nth("device", i)
				asks = append(asks, target{group, groupAt, task, at, device, deviceAt, nil})
			}
		}
	}
	return asks
}

// asksForGang says whether Nomad would serve a device ask from a slot, or whoever wrote it meant that.
func asksForGang(ask string) bool {
	vendor, rest, hasVendor := strings.Cut(ask, "/")
	if !hasVendor {
		return strings.EqualFold(ask, "gang")
	}
	return strings.EqualFold(vendor, "muster") && rest != ""
}

func (r *reader) refuseOtherAsks(chosen target, asks []target) {
	for _, other := range asks {
		if other.device == chosen.device {
			continue
		}
		if other.task != chosen.task && asksForGang(other.device.Name) {
			r.refuse(other.deviceAt, "let one task of the group ask for all GPUs of a member",
				"tasks %s and %s of one group both ask for GPUs of the gang", chosen.task.Name, other.task.Name)
			continue
		}
		r.refuse(other.deviceAt, "keep the ask for muster/gang only, with the number of GPUs of a member",
			"a group of a gang can have one device ask, this is another (%q)", other.device.Name)
	}
}

// readGroup reads what a group asks for. Counts that are refused are read as 0, so that sums stay small.
func (r *reader) readGroup(t target, gang *Gang) Group {
	if t.device.Name != "muster/gang" {
		r.refuse(t.deviceAt, `write device "muster/gang"`,
			"device %q: slots of a gang are asked for by vendor and type only", t.device.Name)
	}
	group := Group{
		Name:        name(t.group.Name),
		Count:       r.readCount(t, gang.Size()),
		Task:        t.task.Name,
		Driver:      t.task.Driver,
		GPUs:        r.readGPUs(t),
		KillTimeout: or(nomadKillTimeout, t.task.KillTimeout),
	}
	r.readConstraints(t, &group)
	r.readCheckpoint(t, &group)
	return group
}

// readCount reads the members of a group; before is how many the groups above it have.
func (r *reader) readCount(t target, before int) int {
	count := 1
	switch {
	case t.group.Count != nil:
		count = *t.group.Count
	case t.group.Scaling != nil && t.group.Scaling.Min != nil: // as Nomad does
		count = int(min(max(*t.group.Scaling.Min, -1), MaxMembers+1))
	}
	at := t.groupAt.attribute("count")
	switch {
	case count == 0:
		r.refuse(at, "write the number of members; to pause the gang, stop the job", "count = 0: a gang needs members")
		return 0
	case count < 0:
		r.refuse(at, "write the number of members", "count = %d: a gang can't have fewer than no members", count)
		return 0
	case count > MaxMembers-before:
		r.refuse(at, "ask for fewer members with more GPUs each",
			"a gang can have at most %d members, with this group it has more", MaxMembers)
		return 0
	}
	return count
}

// readGPUs reads the GPUs of each member.
func (r *reader) readGPUs(t target) int {
	count := or(1, t.device.Count)
	at := t.deviceAt.attribute("count")
	switch {
	case count == 0:
		r.refuse(at, "write the number of GPUs of each member", "a device ask for 0 GPUs is served by no slot")
		return 0
	case count > MaxGPUsPerMember:
		r.refuse(at, "ask for fewer GPUs per member and more members",
			"%d GPUs per member: no machine has more than %d", count, MaxGPUsPerMember)
		return 0
	}
	return int(count)
}

// name is a text that Nomad's API may leave out.
func name(text *string) string { return or("", text) }

// or is the first value that is set, else the default.
func or[T any](byDefault T, values ...*T) T {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return byDefault
}
