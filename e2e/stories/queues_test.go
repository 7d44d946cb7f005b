// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/e2e/fakenvml"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
)

// TestQueues tells how two queues share a cluster of two nodes with eight GPUs each.
func TestQueues(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "queues", Nodes: []cluster.Node{
		{Name: "n1", Topology: map[string]string{"zone": "z1", "rack": "r1"}, Machine: fakenvml.HGX8("queues-1")},
		{Name: "n2", Topology: map[string]string{"zone": "z1", "rack": "r1"}, Machine: fakenvml.HGX8("queues-2")},
	}})
	t.Run("an owner takes back what its queue has lent, and the borrower goes on later", func(t *testing.T) { tell(t, c, takesBack) })
}

// ownerRunsFor is what the owner's job says about its end, though it ends when the story wants.
const ownerRunsFor = 2 * time.Hour

// takesBack: a gang borrows the GPUs that another queue does not use, until a gang of that queue comes. The borrower
// checkpoints, ends whole, waits, and goes on from its checkpoint when the owner's gang has finished. At each turn the
// story stops to see what users are told.
func takesBack(s *stage) {
	l := &loan{stage: s, dir: s.sharedDir("borrower")}
	l.hold = filepath.Join(s.sharedDir("holds"), "borrower")
	l.applyQueues()
	finishBorrower := l.submit("borrower", 2, 12*time.Hour, "-checkpoint", l.dir+"/$${NOMAD_ALLOC_INDEX}", "-resume", l.dir, "-hold-while", l.hold)
	l.borrows()
	followed := s.startMuster("run", "-follow", "-all", "borrower")
	l.foresees()

	must.NoError(s.t, os.WriteFile(l.hold, nil, 0o644)) // until everything has been looked at, no checkpoint is finished
	finishOwner := l.submit("owner", 1, ownerRunsFor)
	l.makesRoom()
	must.NoError(s.t, os.Remove(l.hold))
	waited := l.waits()
	finishOwner()
	l.ownerFinishes()
	resumed := l.resumes()
	finishBorrower()
	finished := s.awaitFinished("borrower", endWithin)
	s.startedOnce(finished) // an eviction counts as no attempt
	l.accounts(finished, waited, resumed)

	output := followed(0)
	for _, line := range []string{
		"ends: " + l.reason + "; then it waits again\n", "waits: needs 2 nodes with 8 free GPUs", "[0] rank 0 goes on from checkpoint 1\n",
		"[1] rank 1 goes on from checkpoint 1\n", "gang borrower has finished\n",
	} {
		must.StrContains(s.t, output, line)
	}
}

// loan is the story of a gang that borrows.
type loan struct {
	*stage
	dir    string      // of the borrower's checkpoints; each member has a folder inside
	hold   string      // while this file is there the borrower finishes no checkpoint
	first  ledger.Gang // the borrower when it ran first
	reason string      // why it was evicted
}

func (l *loan) applyQueues() {
	file := filepath.Join(l.sharedDir("queues"), "queues.hcl")
	must.NoError(l.t, os.WriteFile(file, []byte(`
policy {
  min_runtime   = "1s"
  reclaim_above = 0.5
}

queue "borrower" {
  quota = 8
}

queue "lender" {
  quota = 8
}
`), 0o644))
	output, err := l.MusterCommand(l.ctx, "queue", "apply", file)
	must.NoError(l.t, err)
	must.StrContains(l.t, output, "+ queue borrower: quota 8\n")
	must.StrContains(l.t, output, "+ queue lender: quota 8\n")
	must.StrHasSuffix(l.t, "Applied\n", output)
}

// vars are the variables of jobs/queue.nomad.hcl for a gang of whole nodes.
func (l *loan) vars(name string, count int, maxRuntime time.Duration, program ...string) map[string]string {
	queue := "borrower"
	if name == "owner" {
		queue = "lender"
	}
	return map[string]string{
		"gang": name, "queue": queue, "count": strconv.Itoa(count), "gpus": "8", "max_runtime": maxRuntime.String(),
		"checkpoint_path": l.sharedDir(name) + "/${NOMAD_ALLOC_INDEX}",
		"args":            hclList(append([]string{"-for", clusterLifetime.String(), "-until", l.until(name)}, program...)),
	}
}

// until is the file that ends a gang well.
func (l *loan) until(name string) string { return filepath.Join(l.sharedDir("releases"), name) }

func (l *loan) submit(name string, count int, maxRuntime time.Duration, program ...string) (finish func()) {
	l.t.Helper()
	l.run("queue.nomad.hcl", l.vars(name, count, maxRuntime, program...))
	return func() {
		l.t.Helper()
		must.NoError(l.t, os.WriteFile(l.until(name), nil, 0o644))
	}
}

// borrows: the borrower runs on twice what its queue is owed.
func (l *loan) borrows() {
	l.awaitWhole("borrower", 2, startWithin)
	l.first = l.awaitState("borrower", ledger.GangRunning, noticeWithin)
	l.awaitQueues("borrower 8 - 16 8 0", "lender 8 - 0 0 0")
	l.awaitShown(func() []string { return []string{"= running for ", "= 2 x 8 GPUs, 16 in all"} }, "gang", "borrower")
}

// awaitQueues waits until muster queue list has some rows, of which the columns from the name to what waits are given.
func (l *loan) awaitQueues(rows ...string) {
	l.t.Helper()
	l.await("muster queue list to show "+strings.Join(rows, " and "), noticeWithin, func() (bool, string) {
		shown, err := l.MusterCommand(l.ctx, "queue", "list")
		if err != nil {
			return false, err.Error()
		}
		var found []string
		for line := range strings.Lines(shown) {
			fields := strings.Fields(line)
			found = append(found, strings.Join(fields[:min(len(fields), 6)], " "))
		}
		return !slices.ContainsFunc(rows, func(row string) bool { return !slices.Contains(found, row) }), shown
	})
}

// foresees: muster plan says what the owner's gang would bring about, and brings nothing about.
func (l *loan) foresees() {
	args := []string{"plan"}
	vars := l.vars("owner", 1, ownerRunsFor)
	for name, value := range l.stage.vars {
		vars[name] = value
	}
	for name, value := range vars {
		args = append(args, "-var", name+"="+value)
	}
	args = append(args, filepath.Join("jobs", "queue.nomad.hcl"))
	l.await("muster plan to foresee the eviction", noticeWithin, func() (bool, string) {
		shown, err := l.MusterCommand(l.ctx, args...)
		exit := &exec.ExitError{}
		waits := errors.As(err, &exit) && exit.ExitCode() == 3
		return waits && strings.Contains(shown, "= it would wait: 1 gang is being evicted for it: borrower\n") &&
			strings.Contains(shown, "= 1 gang: borrower"), fmt.Sprintf("%v, it shows\n%s", err, shown)
	})
	must.EqOp(l.t, "", l.document("owner").Name)
	must.EqOp(l.t, ledger.GangRunning, l.document("borrower").State)
}

// makesRoom: the borrower is evicted whole, and runs until it has finished a checkpoint; the owner waits for it.
func (l *loan) makesRoom() {
	l.reason = "gives back what queue borrower had borrowed (it uses 16 GPUs and is owed 8): owner of queue lender needs it"
	borrower := l.awaitState("borrower", ledger.GangClosing, noticeWithin)
	must.EqOp(l.t, "owner", borrower.FreedFor)
	must.EqOp(l.t, ledger.GangWaiting, borrower.After)
	must.Eq(l.t, &ledger.Reason{Code: "preempted", Text: l.reason}, borrower.Why)
	must.SliceLen(l.t, 1, borrower.Evicted)
	l.awaitShown(func() []string {
		return []string{"= closing for ", ", then waiting; gang owner gets its GPUs\n", "= " + l.reason + "\n", "= once for others, last ", "1: asked for "}
	}, "gang", "borrower")

	owner := l.awaitReason("owner")
	must.EqOp(l.t, model.WaitFreeing, owner.Why.Code)
	must.EqOp(l.t, ledger.DelayFairShare, owner.Delay.Cause)
	must.SliceLen(l.t, 1, owner.Earmarks)
	node := owner.Earmarks[0].Node
	l.awaitShown(func() []string {
		return []string{
			"= waiting for ", "= 1 gang is being evicted for it: borrower\n", "= 1 in the order in which gangs are tried\n", "s: fair share ",
			"= as soon as its place on " + node + " is free; nobody knows when that is\n", "= 8 GPUs on " + node + ", for ",
		}
	}, "gang", "owner")
	l.awaitQueues("borrower 8 - 16 8 0", "lender 8 - 0 0 8")
	must.MapLen(l.t, 2, l.ranks("borrower"), must.Sprint("it runs until its checkpoint is finished"))
	must.MapEmpty(l.t, l.ranks("owner"))
}

// waits: the owner runs on one node, and the borrower waits for both.
func (l *loan) waits() ledger.Gang {
	l.awaitWhole("owner", 1, startWithin)
	must.MapEmpty(l.t, l.ranks("borrower"))
	for rank := range 2 {
		must.SliceLen(l.t, 1, checkpoints(l.stage, l.dir, rank), must.Sprintf("checkpoints of rank %d", rank))
	}
	owner := l.awaitState("owner", ledger.GangRunning, noticeWithin)
	l.awaitShown(func() []string { return []string{"= running for ", "s: fair share "} }, "gang", "owner")
	wait := owner.Reservation.At.Sub(owner.Submitted)
	l.t.Logf("the owner waited %s: %+v", wait.Round(time.Millisecond), owner.Delay)
	l.sums(owner.Delay, wait)
	must.EqOp(l.t, owner.Delay.Total(), time.Duration(owner.Delay.FairShareMS)*time.Millisecond)

	var borrower ledger.Gang
	l.await("the borrower's start to be planned", noticeWithin, func() (bool, string) {
		borrower = l.awaitReason("borrower")
		return borrower.Outlook != nil && borrower.Outlook.Planned != nil && borrower.Outlook.Planned.Sure, fmt.Sprintf("%+v", borrower.Outlook)
	})
	must.EqOp(l.t, model.WaitCapacity, borrower.Why.Code)
	must.EqOp(l.t, ledger.DelayFairShare, borrower.Delay.Cause)
	must.EqOp(l.t, "preempted", borrower.LastRun.Result)
	must.EqOp(l.t, l.first.Reservation.ID, borrower.LastRun.Reservation)
	must.SliceLen(l.t, 1, borrower.Evicted)
	must.True(l.t, borrower.Submitted.Equal(l.first.Submitted), must.Sprint("it keeps its place in the queue"))
	must.Eq(l.t, []string{"n1", "n2"}, borrower.Outlook.Planned.Nodes)
	must.Between(l.t, ownerRunsFor-noticeWithin, borrower.Outlook.Planned.At.Sub(owner.Reservation.At), ownerRunsFor+startWithin)
	l.awaitShown(func() []string {
		return []string{
			"= waiting for ", "= " + l.awaitReason("borrower").Why.Text + "\n", "= needs 2 nodes with 8 free GPUs", "s: fair share ", " at the latest on n1, n2",
			"= 1 in the order in which gangs are tried\n", "= once for others, last ", "= preempted ", " ago: " + l.reason + "\n",
		}
	}, "gang", "borrower")
	l.awaitQueues("borrower 8 - 0 0 16", "lender 8 - 8 0 0")
	return borrower
}

// ownerFinishes: what the owner's run has taught is kept for gangs like it.
func (l *loan) ownerFinishes() {
	owner := l.awaitFinished("owner", endWithin)
	l.startedOnce(owner)
	must.MapContainsKey(l.t, l.snapshot().RunTimes, ledger.RunTimeID{Queue: "lender", Namespace: "default", Job: "owner"})
}

// resumes: the borrower runs whole again and goes on from its checkpoints.
func (l *loan) resumes() ledger.Gang {
	l.awaitWhole("borrower", 2, startWithin)
	borrower := l.awaitState("borrower", ledger.GangRunning, noticeWithin)
	must.NotEq(l.t, l.first.Reservation.ID, borrower.Reservation.ID)
	l.awaitQueues("borrower 8 - 16 8 0", "lender 8 - 0 0 0")
	l.awaitShown(func() []string { return []string{"= running for ", ": fair share ", "= once for others, last "} }, "gang", "borrower")
	return borrower
}

// accounts: the labels of the time that the borrower has waited sum to it, and nearly all of it is fair share.
func (l *loan) accounts(finished, waited, resumed ledger.Gang) {
	before, after := l.first.Reservation.At.Sub(l.first.Submitted), resumed.Reservation.At.Sub(waited.Since)
	l.t.Logf("the borrower waited %s before its first start and %s before its second: %+v",
		before.Round(time.Millisecond), after.Round(time.Millisecond), finished.Delay)
	if finished.Attempts > 1 {
		return // on a busy machine it had to start once more, and waited for that as well
	}
	l.sums(finished.Delay, before+after)
	must.Between(l.t, after-seconds(1), time.Duration(finished.Delay.FairShareMS)*time.Millisecond, after+before)
}

// sums checks that what is put down to causes is all the time that a gang has waited.
func (l *loan) sums(delay ledger.Delay, waited time.Duration) {
	l.t.Helper()
	const rounding = 5 * time.Millisecond
	must.Between(l.t, waited-rounding, delay.Total(), waited+rounding)
}
