// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
)

// Version is the version that this build writes into every document. A document of a newer version is kept as it is
// and never rewritten (ErrNewerVersion).
const Version = 1

// Epoch is the random identity of the ledger under one leader. Each leader gives it a new one and asks every node what it
// remembers, so that a ledger that was lost or set back meanwhile is put in order before anything is decided on it. One
// that is missing or changed while a placer leads means that the ledger was lost or set back under it.
type Epoch struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
}

// Node is a node's inventory: what the device plugin knows of the machine and its GPUs. It changes rarely.
type Node struct {
	Version   int               `json:"version"`
	Node      string            `json:"node"`    // Nomad node name, the name used in the ledger
	NodeID    string            `json:"node_id"` // Nomad node ID
	Address   string            `json:"address"` // where other members reach this node
	MachineID string            `json:"machine_id"`
	BootID    string            `json:"boot_id"`
	Topology  map[string]string `json:"topology,omitempty"`  // domain level -> label, from the plugin's config
	Unmanaged []string          `json:"unmanaged,omitempty"` // UUIDs that Muster leaves to ordinary jobs
	Machine   gpu.Machine       `json:"machine"`
	Problem   string            `json:"problem,omitempty"` // why the node offers nothing, in words; empty: it does
}

// Health is the health of a node's GPUs by UUID. A GPU that is not listed is healthy.
type Health struct {
	Version int                   `json:"version"`
	GPUs    map[string]gpu.Health `json:"gpus,omitempty"`
}

// SlotState is where a slot is on its way from granted to gone.
type SlotState string

// The states of a slot. A released slot is no longer in the table.
const (
	SlotOpen    SlotState = "open"
	SlotClosing SlotState = "closing"
)

// SlotTable holds all slots of one node, so that one GPU can't be in two. Sequence counts its changes: a table that was
// set back by a restored snapshot shows by a smaller one. Epoch is that of the ledger when it was written: two tables of
// one sequence but of different epochs are not the same.
type SlotTable struct {
	Version  int    `json:"version"`
	Epoch    string `json:"epoch,omitempty"`
	Sequence uint64 `json:"seq"`
	Slots    []Slot `json:"slots"`

	// Rebuild says that the node is asked what it remembers: until it has answered, Slots are only what the ledger holds.
	Rebuild bool `json:"rebuild,omitempty"`
	// Former is where the table that was asked about stood; nil unless Rebuild, or if there was none.
	Former *Lineage `json:"former,omitempty"`
	// Vouched are the reservations whose slots a person had taken out while the node was still to answer: what it remembers
	// of them comes back closing.
	Vouched []string `json:"vouched,omitempty"`
}

// Lineage is where a slot table stood in the life of a ledger.
type Lineage struct {
	Epoch    string `json:"epoch,omitempty"`
	Sequence uint64 `json:"seq"`
}

// Slot is the GPUs of one member on one node, as reserved. Field names are short because eight of them must fit in
// MaxSlotTableBytes.
type Slot struct {
	Reservation string    `json:"res"`
	Rank        int       `json:"rank"` // global: 0..Size-1 over all groups
	Size        int       `json:"size"` // members of the whole gang
	Owner       Owner     `json:"owner"`
	Driver      string    `json:"driver"` // task driver of the member, decides who claims
	GPUs        []string  `json:"gpus"`   // UUIDs in NVML index order
	State       SlotState `json:"state"`
	Closing     uint64    `json:"closing,omitempty"` // sequence of the table that first had it closing
	Why         string    `json:"why,omitempty"`     // why it is closing, in at most MaxSlotWhyBytes
	MachineID   string    `json:"mach"`              // the machine and boot that it was granted on
	BootID      string    `json:"boot"`
	Checkpoint  string    `json:"ckpt,omitempty"` // signal that asks the task to checkpoint; muster_checkpoint_signal or the driver's own block
}

// Owner says whose slot it is. The device asks of a job name Value; the rest is checked at the claim, so that another
// job with the same value never gets in.
type Owner struct {
	Gang        string `json:"gang"`
	Value       string `json:"value"` // "<gang>" or "<gang>/<group>"
	Namespace   string `json:"ns"`
	Job         string `json:"job"` // parent's ID for periodic and dispatched children
	CreateIndex uint64 `json:"create"`
	Group       string `json:"group"`
	Task        string `json:"task"`
}

// ID names the slot for ever.
func (s Slot) ID() SlotID { return SlotID{Reservation: s.Reservation, Rank: s.Rank} }

// Find returns the slot with an ID.
func (t SlotTable) Find(id SlotID) (Slot, bool) {
	for _, s := range t.Slots {
		if s.ID() == id {
			return s, true
		}
	}
	return Slot{}, false
}

// Claim is a slot taken by one allocation's task. It has no time limit: it ends when its processes are gone.
type Claim struct {
	Version     int       `json:"version"`
	Reservation string    `json:"res"`
	Rank        int       `json:"rank"`
	Allocation  string    `json:"alloc"`
	Task        string    `json:"task"`
	Namespace   string    `json:"ns"`
	Job         string    `json:"job"`
	By          string    `json:"by"` // "driver" (muster) or "plugin" (any other task driver)
	BootID      string    `json:"boot"`
	At          time.Time `json:"at"` // for people; nothing is decided by it
}

// Ack says what a node's device plugin has acted on. Clear lists the closing slots on whose GPUs nothing runs any more;
// a slot that is listed can't be claimed again, so the list only grows until the slot leaves the table.
type Ack struct {
	Version    int               `json:"version"`
	Epoch      string            `json:"epoch,omitempty"` // of the slot table acted on
	Sequence   uint64            `json:"seq"`             // of the slot table acted on
	BootID     string            `json:"boot"`
	Clear      []string          `json:"clear,omitempty"`      // SlotID texts
	Busy       map[string]string `json:"busy,omitempty"`       // closing slots that are not clear, by SlotID text: what keeps them, for people
	Remembered *Remembered       `json:"remembered,omitempty"` // the answer to a table with Rebuild
}

// Remembered is what a node still knows of a ledger that was lost or set back.
type Remembered struct {
	Asked  uint64         `json:"asked"` // sequence of the table that asked
	Table  SlotTable      `json:"table"` // the last one acted on
	Claims []Claim        `json:"claims,omitempty"`
	Ports  map[string]int `json:"ports,omitempty"` // by reservation: Grant.MasterPort
}

// GangState is where a gang is.
type GangState string

// The states of a gang.
const (
	GangWaiting  GangState = "waiting"  // no slots; Why says why
	GangReserved GangState = "reserved" // slots granted, not all claimed yet
	GangRunning  GangState = "running"  // every slot claimed
	GangClosing  GangState = "closing"  // slots closing; After says what comes next
	GangFinished GangState = "finished" // every member succeeded, nothing held
	GangFailed   GangState = "failed"   // given up; Why says why, nothing held
)

// Gang is one gang as the leader knows it.
type Gang struct {
	Version     int               `json:"version"`
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Job         string            `json:"job"`
	CreateIndex uint64            `json:"create_index"` // Nomad's; the same job registered anew after a purge has another
	JobVersion  uint64            `json:"job_version"`  // the job version that Spec was read from
	Spec        Spec              `json:"spec"`
	State       GangState         `json:"state"`
	Submitted   time.Time         `json:"submitted"`             // first seen by a leader; the order of the queue
	Since       time.Time         `json:"since"`                 // of State
	Why         *Reason           `json:"why,omitempty"`         // why it waits, closes or failed
	Reservation *Grant            `json:"reservation,omitempty"` // nil unless reserved, running or closing
	After       GangState         `json:"after,omitempty"`       // closing: waiting, finished, failed, or "" to delete the document
	Attempts    int               `json:"attempts,omitempty"`    // grants so far of this job version
	Failures    int               `json:"failures,omitempty"`    // of the user's command, in a row
	Reset       *Reset            `json:"reset,omitempty"`       // waiting: its job is being stopped and registered again
	NotBefore   *time.Time        `json:"not_before,omitempty"`  // waiting: back-off until then
	HoldUntil   *time.Time        `json:"hold_until,omitempty"`  // waiting: an operator grants it nothing until then
	Avoid       []string          `json:"avoid,omitempty"`       // nodes that failed the last attempt, tried last
	LastRun     *RunSummary       `json:"last_run,omitempty"`    // how the last reservation ended
	Set         map[string]string `json:"set,omitempty"`         // knobs that an operator has set over the job's meta; Spec has them in it
	Delay       Delay             `json:"delay,omitzero"`        // what the time that it has waited is put down to
	Outlook     *Outlook          `json:"outlook,omitempty"`     // waiting: what can be said about its start; nil: nothing
	Earmarks    []Earmark         `json:"earmarks,omitempty"`    // waiting: GPUs that are, or were, freed for it; no other gang may have them
	EarmarkedAt *time.Time        `json:"earmarked_at,omitempty"`
	FreedFor    string            `json:"freed_for,omitempty"` // closing: the gang that it was evicted for
	Evicted     []time.Time       `json:"evicted,omitempty"`   // the last times that it was evicted for others, at most MaxEvicted
}

// MaxEvicted is how many of a gang's evictions its document remembers. No policy can set a higher limit to them.
const MaxEvicted = 8

// Earmark is GPUs of one node, as indexes in NVML order ("0-3,6"), which are short enough for a gang of many nodes. A
// machine that starts anew may number them in another way; who reads them takes only those that its inventory has.
type Earmark struct {
	Node string `json:"node"`
	GPUs string `json:"gpus"`
}

// Outlook is what can be said about the start of a gang that waits, as far as it was written.
type Outlook struct {
	Position int       `json:"position,omitempty"` // in the order in which gangs are tried, from 1
	Planned  *Planned  `json:"planned,omitempty"`  // a start that is kept free for it
	Move     *Move     `json:"move,omitempty"`     // gangs that could make room for it by starting again elsewhere
	At       time.Time `json:"at"`                 // when this was written
}

// MaxPlannedNodes is how many nodes of a planned start are named.
const MaxPlannedNodes = 24

// Planned is a start that is kept free for a gang.
type Planned struct {
	At        time.Time `json:"at,omitzero"` // zero: as soon as the nodes are free, and nobody knows when
	Nodes     []string  `json:"nodes"`       // at most MaxPlannedNodes
	MoreNodes int       `json:"more_nodes,omitempty"`
	Sure      bool      `json:"sure,omitempty"` // it follows from stated run times alone, not from estimates
}

// MaxMovedGangs is how many gangs of a proposal are named.
const MaxMovedGangs = 24

// Move is a proposal: gangs that would be evicted and start again elsewhere.
type Move struct {
	Gangs           []string `json:"gangs"` // at most MaxMovedGangs
	MoreGangs       int      `json:"more_gangs,omitempty"`
	LostGPUSeconds  float64  `json:"lost_gpu_seconds"`
	SavedGPUSeconds float64  `json:"saved_gpu_seconds"`
}

// Reset says that the leader stops a gang's job and registers the same spec again, so that Nomad places every member anew.
// It is written before the job is touched.
type Reset struct {
	FromVersion uint64    `json:"from_version"` // of the job; the stopped job is the next one, the same spec the one after
	Why         string    `json:"why"`          // what Nomad's books and the ledger disagree about
	At          time.Time `json:"at"`
}

// Spec is what the gang asks for, as admitted.
type Spec struct {
	Groups      []GroupSpec `json:"groups"` // in file order; ranks follow it
	Shape       string      `json:"shape"`  // what a reservation is bound to (jobspecs.Gang.Shape)
	Priority    int         `json:"priority"`
	Queue       string      `json:"queue"`
	NVLink      string      `json:"nvlink"`               // required | preferred
	Locality    string      `json:"locality"`             // node | <level> | any
	RelaxAfterS int64       `json:"relax_after_s"`        // seconds per level; negative: never
	RelaxAuto   bool        `json:"relax_auto,omitempty"` // wider when waiting costs more than the slower run; RelaxAfterS means nothing
	Comm        string      `json:"comm,omitempty"`       // none | low | high; empty: not known
	MaxRuntimeS int64       `json:"max_runtime_s,omitempty"`
}

// GroupSpec is one task group of a gang.
type GroupSpec struct {
	Group      string `json:"group"`
	Value      string `json:"value"`
	Count      int    `json:"count"`
	GPUs       int    `json:"gpus"` // of each member
	Task       string `json:"task"`
	Driver     string `json:"driver"`
	Checkpoint string `json:"checkpoint,omitempty"` // signal
}

// Size is the number of members.
func (s Spec) Size() int {
	n := 0
	for _, g := range s.Groups {
		n += g.Count
	}
	return n
}

// GPUs is the number of GPUs of all members.
func (s Spec) GPUs() int {
	n := 0
	for _, g := range s.Groups {
		n += g.Count * g.GPUs
	}
	return n
}

// Reason is why a gang waits, closes or failed: a code for programs and one plain sentence for people.
type Reason struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// Grant is a reservation as granted: where every member is.
type Grant struct {
	ID         string      `json:"id"`
	At         time.Time   `json:"at"` // for people; deadlines run by the leader's own clock
	JobVersion uint64      `json:"job_version"`
	Shape      string      `json:"shape"`
	MasterPort int         `json:"port"` // first of three consecutive ports on rank 0's node, for tasks without the muster driver
	Placements []Placement `json:"placements"`
}

// Placement is the members of one group on one node; their ranks are consecutive.
type Placement struct {
	Node    string `json:"node"`
	Address string `json:"addr"`
	Group   string `json:"group"`
	Rank    int    `json:"rank"`    // first
	Members int    `json:"members"` // how many
	GPUs    int    `json:"gpus"`    // of each
}

// RunSummary is how a reservation ended.
type RunSummary struct {
	Reservation string     `json:"reservation"`
	Generation  int        `json:"generation,omitempty"`
	Started     *time.Time `json:"started,omitempty"`
	Ended       time.Time  `json:"ended"`
	Result      string     `json:"result"` // finished | failed | preempted | stopped | not started
	Reason      Reason     `json:"reason"`
}

// Refusal is a job that asks for a gang and was not admitted.
type Refusal struct {
	Version     int       `json:"version"`
	Namespace   string    `json:"namespace"`
	Job         string    `json:"job"`
	CreateIndex uint64    `json:"create_index"`
	JobVersion  uint64    `json:"job_version"`
	Gang        string    `json:"gang,omitempty"`
	Why         Reason    `json:"why"`
	At          time.Time `json:"at"`
	Ended       bool      `json:"ended,omitempty"` // the job is stopped for it; it stays to be read until the job is gone or runs again
}

// OrderKind is what an operator orders.
type OrderKind string

// The kinds of orders.
const (
	OrderPreempt OrderKind = "preempt" // the gang gives its GPUs back and waits again, last in the queue
	OrderRelease OrderKind = "release" // its closing slots go although their nodes have not acknowledged them as clear
	OrderSet     OrderKind = "set"     // knobs that its job's meta would set, changed without touching the job
)

// Order is what an operator wants of one gang. The leader carries it out and deletes it in one transaction, or writes
// into Answer why it does not.
type Order struct {
	Version     int               `json:"version"`
	ID          string            `json:"id"` // tells one order from the next about the same gang
	Gang        string            `json:"gang"`
	Kind        OrderKind         `json:"kind"`
	Values      map[string]string `json:"values,omitempty"`      // set: knob -> value; an empty value gives it back to the job
	HoldS       int64             `json:"hold_s,omitempty"`      // preempt: seconds for which the gang gets nothing
	Reservation string            `json:"reservation,omitempty"` // release: the one whose slots the operator has looked at
	Reason      string            `json:"reason,omitempty"`      // preempt: in the operator's words
	By          string            `json:"by"`                    // for people; what counts is the right to write here
	At          time.Time         `json:"at"`                    // for people
	Answer      *Answer           `json:"answer,omitempty"`      // nil: not decided yet
}

// Answer is why an order is not carried out.
type Answer struct {
	Text string    `json:"text"`
	At   time.Time `json:"at"` // by the leader's clock, which removes answers that are old
}

// RunPhase is where a run is.
type RunPhase string

// The phases of a run.
const (
	RunGathering RunPhase = "gathering" // members arrive; those with a process of an earlier generation end it first
	RunRunning   RunPhase = "running"   // all have arrived; every driver starts its process
	RunSucceeded RunPhase = "succeeded" // all succeeded; every driver ends its task well
	RunFailed    RunPhase = "failed"    // a member failed or left; every driver ends its task failed
)

// Run is one start of the whole gang on a reservation, moved by rank 0's driver; all others watch this one key.
type Run struct {
	Version    int        `json:"version"`
	Generation int        `json:"generation"` // from 1; counts restarts in place
	Phase      RunPhase   `json:"phase"`
	MasterAddr string     `json:"master_addr"`
	MasterPort int        `json:"master_port"`       // first of three consecutive ports
	Missing    []int      `json:"missing,omitempty"` // gathering: ranks not arrived yet, at most 16 of them
	Why        string     `json:"why,omitempty"`     // failed: the first cause; of a later generation: why it began
	Orderly    bool       `json:"orderly,omitempty"` // failed: a member was asked to end, so the others checkpoint before they end
	Started    *time.Time `json:"started,omitempty"` // when the phase became running
}

// MemberState is where a member is in its run.
type MemberState string

// The states of a member.
const (
	MemberArrived   MemberState = "arrived"
	MemberRunning   MemberState = "running"
	MemberSucceeded MemberState = "succeeded"
	MemberFailed    MemberState = "failed"
	MemberLeaving   MemberState = "leaving" // Nomad ends its task and may start it again at once: a new generation of all
	MemberStopped   MemberState = "stopped" // ended on request: closing slot, job stop
)

// Member is one member of a run, written by that member's driver.
type Member struct {
	Version    int         `json:"version"`
	Rank       int         `json:"rank"`
	Generation int         `json:"generation"`
	Allocation string      `json:"alloc"`
	Node       string      `json:"node"`
	Address    string      `json:"addr"`
	Port       int         `json:"port,omitempty"` // rank 0: first of the three ports it has tried to bind
	State      MemberState `json:"state"`
	Started    *time.Time  `json:"started,omitempty"` // of the process
	Ended      *time.Time  `json:"ended,omitempty"`
	ExitCode   *int        `json:"exit_code,omitempty"`
	Lost       bool        `json:"lost,omitempty"` // failed: nobody knows how its process ended, since the machine or the supervisor went down
	Why        string      `json:"why,omitempty"`
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"` // the last one
}

// Checkpoint is the last checkpoint that a member was asked for.
type Checkpoint struct {
	Count     int        `json:"count"` // asked for so far in this run
	Requested time.Time  `json:"requested"`
	Completed *time.Time `json:"completed,omitempty"` // nil: not finished yet, or Problem says why it never was
	TookMS    int64      `json:"took_ms,omitempty"`
	Entry     string     `json:"entry,omitempty"` // newest finished entry under path
	Problem   string     `json:"problem,omitempty"`
}
