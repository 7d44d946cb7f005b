// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package jobspecs is the contract between a Nomad job and Muster: it reads the gang that a job asks for, from an HCL
// file or from Nomad's API, by one set of rules, and says in plain words what keeps a job from being admitted and how
// to mend it. It never talks to Nomad or Consul, never looks at the cluster and never changes a job. Anybody may
// import it; it imports nothing of ours.
package jobspecs

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// NVLink says whether the GPUs of each member must be joined by NVLink.
type NVLink string

// The two values of muster_nvlink.
const (
	NVLinkRequired  NVLink = "required"  // one island per member, always
	NVLinkPreferred NVLink = "preferred" // one island per member where there is one
)

// Comm is how much the members of a gang talk to one another, and so how much distance between them costs it.
type Comm string

// The values of muster_comm. One that is not stated is CommUnknown.
const (
	CommUnknown Comm = ""
	CommNone    Comm = "none" // independent of one another: distance costs nothing
	CommLow     Comm = "low"  // little beside the computation
	CommHigh    Comm = "high" // gradients or activations at every step
)

// The two values of muster_locality that are no topology level.
const (
	LocalityNode = "node"
	LocalityAny  = "any"
)

// What a job gets that does not say otherwise.
const (
	DefaultQueue             = "default"
	DefaultPriority          = 50 // Nomad's
	DefaultRelaxAfter        = 10 * time.Minute
	DefaultCheckpointSignal  = "SIGUSR1"
	DefaultCheckpointTimeout = 2 * time.Minute // both are the muster driver's
)

// Limits of one gang. They keep every sum far from overflow; how large a gang the ledger holds is the placer's to say.
const (
	MaxMembers       = 16384 // of all groups together
	MaxGPUsPerMember = 1024
	MaxNameLength    = 63    // bytes
	MaxPriority      = 32766 // the most that Nomad lets an operator allow
)

// Gang is what a job asks for. Durations are JSON numbers of nanoseconds.
type Gang struct {
	Name          string        `json:"name"`
	Namespace     string        `json:"namespace"`
	JobID         string        `json:"job_id"`
	ParentID      string        `json:"parent_id,omitempty"` // of a dispatched or periodic child
	JobType       string        `json:"job_type"`            // batch or service
	Priority      int           `json:"priority"`            // Nomad's job priority, higher first
	Queue         string        `json:"queue"`
	NVLink        NVLink        `json:"nvlink"`
	Locality      string        `json:"locality"`                 // LocalityNode, a level's name, or LocalityAny
	RelaxAfter    time.Duration `json:"relax_after_ns"`           // per level; without meaning if RelaxNever or RelaxAuto
	RelaxNever    bool          `json:"relax_never"`              // Locality holds for ever
	RelaxAuto     bool          `json:"relax_auto,omitempty"`     // wider when waiting costs more than the slower run
	Comm          Comm          `json:"comm,omitempty"`           // empty: not stated
	MaxRuntime    time.Duration `json:"max_runtime_ns,omitempty"` // 0: not stated
	Groups        []Group       `json:"groups"`                   // in file order: ranks follow it
	Periodic      bool          `json:"periodic,omitempty"`       // a periodic job, or a child of one
	Parameterized bool          `json:"parameterized,omitempty"`  // a parameterized job, or a child of one
	Stated        []string      `json:"stated,omitempty"`         // knobs that the job says itself, sorted; the others are defaults
}

// Group is one task group of a gang.
type Group struct {
	Name              string            `json:"name"`
	Value             string            `json:"value"` // of the gang constraint: "<gang>" or "<gang>/<group>"
	Count             int               `json:"count"` // members
	Task              string            `json:"task"`  // the one that gets the GPUs
	Driver            string            `json:"driver"`
	GPUs              int               `json:"gpus"`                         // of each member
	DeviceConstraints []*api.Constraint `json:"device_constraints,omitempty"` // all but the gang's
	KillTimeout       time.Duration     `json:"kill_timeout_ns"`              // before Nomad's SIGKILL; a client may allow less
	Checkpoint        *Checkpoint       `json:"checkpoint,omitempty"`         // nil: none declared
	CheckpointSignal  string            `json:"checkpoint_signal,omitempty"`  // asks for one, whatever the driver; empty: none
}

// Checkpoint is the checkpoint block of a muster task.
type Checkpoint struct {
	Interval time.Duration `json:"interval_ns,omitempty"` // 0: only before the task is ended
	Signal   string        `json:"signal"`
	Timeout  time.Duration `json:"timeout_ns"`     // how long one may take
	Path     string        `json:"path,omitempty"` // where finished checkpoints appear; empty: not known
}

// Size is the number of members.
func (g *Gang) Size() int {
	n := 0
	for _, group := range g.Groups {
		n += group.Count
	}
	return n
}

// GPUs is the number of GPUs of all members.
func (g *Gang) GPUs() int {
	n := 0
	for _, group := range g.Groups {
		n += group.Count * group.GPUs
	}
	return n
}

// Shape is a stable text of everything that a reservation is bound to: two specs of equal shape can use the same
// slots, any other needs new ones. For example "worker/train(muster)=resnet50:4x8".
func (g *Gang) Shape() string {
	parts := make([]string, 0, len(g.Groups))
	for _, group := range g.Groups {
		parts = append(parts, fmt.Sprintf("%s/%s(%s)=%s:%dx%d%s", group.Name, group.Task, group.Driver, group.Value,
			group.Count, group.GPUs, constraintShape(group.DeviceConstraints)))
	}
	return strings.Join(parts, " ")
}

// constraintShape is the device constraints in an order of their own, since Nomad checks them as a set.
func constraintShape(constraints []*api.Constraint) string {
	if len(constraints) == 0 {
		return ""
	}
	texts := make([]string, 0, len(constraints))
	for _, c := range constraints {
		texts = append(texts, fmt.Sprintf("%q %s %q", c.LTarget, c.Operand, c.RTarget))
	}
	sort.Strings(texts)
	return "[" + strings.Join(texts, " and ") + "]"
}
