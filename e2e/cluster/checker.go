// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	sampleEvery = 100 * time.Millisecond
	// startSpread is how far apart the processes of one gang may start, however busy the machine is that plays all nodes.
	// What it is on a quiet one the report says, and a story of its own proves.
	startSpread = 20 * time.Second
	// startGrace is how long a sample of all processes may take on a busy machine.
	startGrace = 5 * time.Second
)

// Checker looks at a cluster every 100 ms and notes everything that must never be: a GPU with processes of two members, a
// process without a slot, a slot without its gang, a GPU in two slots, a gang granted or started in part, a process before
// all members have arrived, two generations of a gang at once. What it says of processes was so at one moment, however long
// it took to look.
type Checker struct {
	cluster   *Cluster
	processes *processes
	holds     func(h TaskProcess, minor int) bool // whether a process still holds a GPU
	cancel    context.CancelFunc
	ended     chan struct{}

	mu         sync.Mutex // protects what follows
	report     Report
	violations map[string]bool
	runs       map[string]*runWatch // by gang and run
	before     ledger.Snapshot      // of the last sample
	rebuild    *rebuild             // nil: the ledger is in order
}

// rebuild is a ledger that was lost or set back and is not in order yet. What it says of slots is not held against
// anybody meanwhile; processes are.
type rebuild struct {
	began time.Time
	stale []string // epochs of before
}

// Report is what a checker saw.
type Report struct {
	Samples        int
	Violations     []string
	Runs           int           // starts of gangs
	MaxGPUs        int           // that were held open at once
	MaxGangs       int           // that ran at once
	MaxWaiting     int           // gangs that waited at once
	MaxStartSpread time.Duration // between the first and the last process of a gang
	PartialStarts  int           // samples that saw a gang in the middle of its start
	LongestGap     time.Duration // between two samples
	Rebuilds       int           // how often the ledger was lost or set back, and put in order
	LongestRebuild time.Duration
}

// String is the report on one line.
func (r Report) String() string {
	text := ""
	if r.Rebuilds > 0 {
		text = fmt.Sprintf(", the ledger in order again %d times after at most %s", r.Rebuilds, r.LongestRebuild.Round(time.Millisecond))
	}
	return fmt.Sprintf("%d samples (longest gap %s), %d starts of gangs, at most %d GPUs in use by %d gangs with %d waiting, "+
		"processes of a gang started within %s of each other, %d samples in the middle of a start, %d violations",
		r.Samples, r.LongestGap.Round(time.Millisecond), r.Runs, r.MaxGPUs, r.MaxGangs, r.MaxWaiting, r.MaxStartSpread, r.PartialStarts, len(r.Violations)) + text
}

// runWatch follows one start of a gang.
type runWatch struct {
	size    int
	started map[int]time.Duration // by rank, its first process
	whole   bool                  // all ranks have been seen alive
}

// StartChecker starts to look, until Stop or the end of ctx.
func (c *Cluster) StartChecker(ctx context.Context) *Checker {
	ctx, cancel := context.WithCancel(ctx)
	k := &Checker{
		cluster: c, processes: newProcesses(c.Mark), holds: holds, cancel: cancel, ended: make(chan struct{}),
		violations: map[string]bool{}, runs: map[string]*runWatch{},
	}
	go k.loop(ctx)
	return k
}

// Stop ends the looking and returns what was seen.
func (k *Checker) Stop() Report {
	k.cancel()
	<-k.ended
	k.mu.Lock()
	defer k.mu.Unlock()
	slices.Sort(k.report.Violations)
	return k.report
}

func (k *Checker) loop(ctx context.Context) {
	defer close(k.ended)
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		holders, now := k.processes.list(), uptime()
		k.mu.Lock()
		k.checkProcesses(holders)
		k.mu.Unlock()
		snapshot, err := k.cluster.Ledger.Load(ctx)
		if err != nil {
			continue // Consul is being ended or does not answer: no more can be said about this moment
		}
		k.mu.Lock()
		k.report.LongestGap = max(k.report.LongestGap, time.Since(last))
		k.sample(snapshot, holders, now)
		k.mu.Unlock()
		last = time.Now()
	}
}

// sample checks one moment: processes as they were, and the ledger just after.
func (k *Checker) sample(snapshot ledger.Snapshot, holders []TaskProcess, now time.Duration) {
	k.report.Samples++
	k.checkRebuild(snapshot)
	if k.rebuild == nil {
		k.checkSlots(snapshot)
	}
	k.checkHolders(snapshot, holders)
	k.checkBarrier(snapshot, holders)
	k.checkStarts(snapshot, holders, now)
	k.before = snapshot

	waiting := 0
	for _, gang := range snapshot.Gangs {
		if gang.Doc.State == ledger.GangWaiting {
			waiting++
		}
	}
	k.report.MaxWaiting = max(k.report.MaxWaiting, waiting)
}

func (k *Checker) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !k.violations[text] {
		k.violations[text] = true
		k.report.Violations = append(k.report.Violations, time.Now().Format("15:04:05.000 ")+text)
	}
}

// checkSlots checks the ledger by itself: a snapshot is of one moment.
func (k *Checker) checkSlots(snapshot ledger.Snapshot) {
	granted := map[string]int{} // slots by reservation
	for node, table := range snapshot.Tables {
		taken := map[string]string{}
		for _, slot := range table.Doc.Slots {
			granted[slot.Reservation]++
			for _, uuid := range slot.GPUs {
				if other, ok := taken[uuid]; ok {
					k.violation("GPU %s of %s is in the slots %s and %s", uuid, node, other, slot.ID())
				}
				taken[uuid] = slot.ID().String()
			}
			gang, ok := snapshot.Gangs[slot.Owner.Gang]
			leftBehind := slot.State == ledger.SlotClosing // by a gang that went on without this node
			if !leftBehind && (!ok || gang.Doc.Reservation == nil || gang.Doc.Reservation.ID != slot.Reservation) {
				k.violation("slot %s on %s has no owner: gang %s does not hold this reservation", slot.ID(), node, slot.Owner.Gang)
			}
		}
	}
	for name, gang := range snapshot.Gangs {
		if grant := gang.Doc.Reservation; grant != nil && granted[grant.ID] != gang.Doc.Spec.Size() && grant.Shape == gang.Doc.Spec.Shape {
			k.violation("gang %s has %d of its %d slots", name, granted[grant.ID], gang.Doc.Spec.Size())
		}
	}
}

// checkRebuild notes when the ledger was lost or set back, and when it is in order again: under a new epoch all nodes
// have answered, all gangs are whole and no open slot is without one.
func (k *Checker) checkRebuild(snapshot ledger.Snapshot) {
	if snapshot.SetBackFrom(k.before) {
		if k.rebuild == nil {
			k.rebuild = &rebuild{began: time.Now()}
		}
		k.rebuild.stale = append(k.rebuild.stale, k.before.EpochID, snapshot.EpochID)
	}
	if k.rebuild == nil || slices.Contains(k.rebuild.stale, snapshot.EpochID) || len(snapshot.Nodes) < len(k.cluster.config.Nodes) {
		return
	}
	for node := range snapshot.Nodes {
		if snapshot.Unheard(node) {
			return
		}
	}
	for _, orphans := range snapshot.Orphans() {
		if slices.ContainsFunc(orphans, func(slot ledger.Slot) bool { return slot.State == ledger.SlotOpen }) {
			return
		}
	}
	for _, gang := range snapshot.Gangs {
		if gang.Doc.Reservation == nil {
			continue
		}
		if whole, err := snapshot.Whole(gang.Doc); err != nil || !whole {
			return
		}
	}
	k.report.Rebuilds++
	k.report.LongestRebuild = max(k.report.LongestRebuild, time.Since(k.rebuild.began))
	k.rebuild = nil
}

// checkProcesses checks what can be said without the ledger: who really is on the GPUs.
func (k *Checker) checkProcesses(holders []TaskProcess) {
	k.checkGenerations(holders)
	owner := map[string]TaskProcess{} // by GPU
	for _, h := range holders {
		for _, minor := range h.Minors {
			gpu := fmt.Sprintf("%s/nvidia%d", h.Node, minor)
			other, taken := owner[gpu]
			// The one may have ended before the other was seen, so both are looked at again.
			if taken && other.member() != h.member() && k.holds(other, minor) && k.holds(h, minor) {
				k.violation("GPU %s has processes of %s and of %s", gpu, other.member(), h.member())
			}
			owner[gpu] = h
		}
	}
	k.report.MaxGPUs = max(k.report.MaxGPUs, len(owner))
}

// member is whose process this is.
func (h TaskProcess) member() string { return fmt.Sprintf("%s rank %d (%s)", h.Gang, h.Rank, h.Run) }

// holds says whether a process still holds a GPU open.
func holds(h TaskProcess, minor int) bool {
	minors := openGPUs(h.PID)
	started, alive := startTime(h.PID)
	return alive && started == h.Started && slices.Contains(minors, minor)
}

// checkHolders checks that processes hold no GPU outside their slots. Who has let go of it since was in nobody's way.
func (k *Checker) checkHolders(snapshot ledger.Snapshot, holders []TaskProcess) {
	if k.rebuild != nil {
		return
	}
	for _, h := range holders {
		for _, minor := range h.Minors {
			if !slotCovers(snapshot, h, minor) && !slotCovers(k.before, h, minor) && k.holds(h, minor) {
				k.violation("process of %s holds %s/nvidia%d, which is not in its slot", h.member(), h.Node, minor)
			}
		}
	}
}

// checkBarrier checks that no process runs before all members of its generation have arrived: the ledger, read after the
// processes were seen, says so of each run.
func (k *Checker) checkBarrier(snapshot ledger.Snapshot, holders []TaskProcess) {
	for _, h := range holders {
		run := snapshot.Runs[ledger.RunID{Gang: h.Gang, Reservation: h.Reservation()}].Run.Doc
		if k.rebuild == nil && run.Phase == ledger.RunGathering && h.Generation() >= run.Generation && h.Generation() > 0 {
			k.violation("process of %s runs while generation %d of its gang still gathers", h.member(), run.Generation)
		}
	}
}

// slotCovers says whether a GPU that a process holds is part of the slot that the process says it has.
func slotCovers(snapshot ledger.Snapshot, h TaskProcess, minor int) bool {
	slot, ok := snapshot.Tables[h.Node].Doc.Find(ledger.SlotID{Reservation: h.Reservation(), Rank: h.Rank})
	if !ok {
		return false
	}
	for _, gpu := range snapshot.Nodes[h.Node].Doc.Machine.GPUs {
		if gpu.Minor == minor {
			return slices.Contains(slot.GPUs, gpu.UUID)
		}
	}
	return false
}

// checkStarts checks that each gang starts whole. Members may end one by one: the ones that are done wait for the others
// without a process.
func (k *Checker) checkStarts(snapshot ledger.Snapshot, holders []TaskProcess, now time.Duration) {
	alive := map[string]map[int]time.Duration{}
	gangs := map[string]bool{}
	for _, h := range holders {
		slot, ok := findSlot(h, snapshot, k.before)
		if !ok || slot.Driver != "muster" {
			continue // tasks of other drivers have no barrier
		}
		run := h.Gang + " " + h.Run
		if alive[run] == nil {
			alive[run] = map[int]time.Duration{}
		}
		if first, ok := alive[run][h.Rank]; !ok || h.Started < first {
			alive[run][h.Rank] = h.Started
		}
		if k.runs[run] == nil {
			k.runs[run] = &runWatch{size: slot.Size, started: map[int]time.Duration{}}
			k.report.Runs++
		}
		gangs[h.Gang] = true
	}
	for run, ranks := range alive {
		k.checkRun(run, k.runs[run], ranks, now)
	}
	k.report.MaxGangs = max(k.report.MaxGangs, len(gangs))
}

func (k *Checker) checkRun(run string, watch *runWatch, alive map[int]time.Duration, now time.Duration) {
	for rank, started := range alive {
		if first, known := watch.started[rank]; !known {
			watch.started[rank] = started
		} else if started < first {
			watch.started[rank] = started
		}
	}
	times := slices.Sorted(maps.Values(watch.started))
	spread := times[len(times)-1] - times[0]
	k.report.MaxStartSpread = max(k.report.MaxStartSpread, spread)
	if spread > startSpread {
		k.violation("gang %s: its processes started %s apart", run, spread)
	}
	watch.whole = watch.whole || len(watch.started) == watch.size
	if !watch.whole {
		k.report.PartialStarts++
		if age := now - times[0]; age > startSpread+startGrace {
			k.violation("gang %s runs in part: %d of %d members after %s", run, len(watch.started), watch.size, age.Round(time.Second))
		}
	}
}

// checkGenerations checks that a gang which starts again in place is absent before: that none of its processes lives beside
// one of an earlier generation. A sample takes a while, so that an earlier process counts only if it lives after all were
// seen.
func (k *Checker) checkGenerations(holders []TaskProcess) {
	latest := map[string]int{} // by gang and reservation
	for _, h := range holders {
		latest[h.Gang+" "+h.Reservation()] = max(latest[h.Gang+" "+h.Reservation()], h.Generation())
	}
	for _, h := range holders {
		now := latest[h.Gang+" "+h.Reservation()]
		if started, alive := startTime(h.PID); h.Generation() < now && alive && started == h.Started {
			k.violation("gang %s on %s: process %d of rank %d is of generation %d and runs beside generation %d",
				h.Gang, h.Reservation(), h.PID, h.Rank, h.Generation(), now)
		}
	}
}

func findSlot(h TaskProcess, snapshots ...ledger.Snapshot) (ledger.Slot, bool) {
	for _, snapshot := range snapshots {
		if slot, ok := snapshot.Tables[h.Node].Doc.Find(ledger.SlotID{Reservation: h.Reservation(), Rank: h.Rank}); ok {
			return slot, true
		}
	}
	return ledger.Slot{}, false
}

// AwaitEmpty waits until nothing is held any more: no slot, no claim, no run, no process on a GPU, no task's cgroup.
func (c *Cluster) AwaitEmpty(ctx context.Context, limit time.Duration) error {
	return Poll(ctx, "nothing to be held any more", limit, func(ctx context.Context) (bool, string) {
		snapshot, err := c.Ledger.Load(ctx)
		if err != nil {
			return false, err.Error()
		}
		held := heldIn(snapshot)
		for _, h := range c.Processes() {
			held = append(held, fmt.Sprintf("process %d of gang %s", h.PID, h.Gang))
		}
		for _, path := range c.Mark.Cgroups() {
			if strings.Contains(path, tasksSuffix+"/") && inUse(path) {
				held = append(held, "cgroup "+path)
			}
		}
		slices.Sort(held)
		return len(held) == 0, strings.Join(held, "; ")
	})
}

// inUse says whether a cgroup below that of a client's tasks is a task's or has processes. The one in which the tasks'
// supervisors are stays.
func inUse(cgroup string) bool {
	if filepath.Base(cgroup) != "supervisors" {
		return true
	}
	text, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	return err == nil && len(text) > 0
}

func heldIn(snapshot ledger.Snapshot) []string {
	var held []string
	for node, table := range snapshot.Tables {
		for _, slot := range table.Doc.Slots {
			held = append(held, fmt.Sprintf("slot %s of gang %s on %s (%s)", slot.ID(), slot.Owner.Gang, node, slot.State))
		}
	}
	for node, claims := range snapshot.Claims {
		for id := range claims {
			held = append(held, fmt.Sprintf("claim %s on %s", id, node))
		}
	}
	for run := range snapshot.Runs {
		held = append(held, fmt.Sprintf("run %s/%s", run.Gang, run.Reservation))
	}
	return held
}
