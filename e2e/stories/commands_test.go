// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// musterFails runs a muster command that must end with an exit code, and returns what it printed.
func (s *stage) musterFails(code int, args ...string) string {
	s.t.Helper()
	ended := s.startMuster(args...)
	return ended(code)
}

// startMuster begins a muster command, and returns what waits for its end with an exit code and returns what it printed.
func (s *stage) startMuster(args ...string) (ended func(code int) string) {
	type end struct {
		output string
		err    error
	}
	done := make(chan end, 1)
	go func() {
		output, err := s.MusterCommand(s.ctx, args...)
		done <- end{output, err}
	}()
	return func(code int) string {
		s.t.Helper()
		var e end
		s.await("muster "+strings.Join(args, " ")+" to end", clusterLifetime, func() (bool, string) {
			select {
			case e = <-done:
				return true, ""
			default:
				return false, "it goes on"
			}
		})
		got := 0
		if exit := (&exec.ExitError{}); errors.As(e.err, &exit) {
			got = exit.ExitCode()
		} else {
			must.NoError(s.t, e.err)
		}
		must.EqOp(s.t, code, got, must.Sprintf("muster %s:\n%s", strings.Join(args, " "), e.output))
		return e.output
	}
}

// runArgs are the arguments of muster run for a gang of jobs/gang.nomad.hcl.
func (s *stage) runArgs(name string, vars ...string) []string {
	args := []string{"run"}
	for _, v := range append([]string{"gang=" + name, "gpus=1", "program=" + s.TestProgram()}, vars...) {
		args = append(args, "-var", v)
	}
	return append(args, filepath.Join("jobs", "gang.nomad.hcl"))
}

// runsToTheEnd: muster run shows why a gang waits, where it starts, what rank 0 prints, and its end, and says by its exit
// code which it was.
func runsToTheEnd(s *stage) {
	output := s.startMuster(s.runArgs("followed", "count=2", `args=["-for", "2s"]`)...)(0)
	must.StrContains(s.t, output, "submitted job followed (version 0): gang followed: 2 members x 1 GPU = 2")
	must.StrContains(s.t, output, "granted: ranks 0-1 on n")
	must.StrContains(s.t, output, "gang followed rank 0 of 2, generation 1: 1 GPUs open\n")
	must.StrNotContains(s.t, output, "rank 1 of 2", must.Sprint("rank 0 alone is shown"))
	must.StrContains(s.t, output, "\nfinished\n")
	must.StrContains(s.t, output, "gang followed has finished\n")

	release := s.submitUntil(gang{name: "owner", count: 1, gpus: 1})
	s.awaitWhole("owner", 1, startWithin)
	refused := s.musterFails(1, s.runArgs("owner", "count=1", "job=thief")...)
	must.StrContains(s.t, refused, "job thief was refused: the gang name owner belongs to job owner in namespace default, which asked first; choose another name\n")
	must.NoError(s.t, s.StopJob(s.ctx, "thief", true))
	faulty := s.musterFails(2, s.runArgs("7", "count=1")...)
	must.StrContains(s.t, faulty, "error: ")

	ended := s.startMuster("run", "-follow", "-all", "owner")
	release()
	s.awaitFinished("owner", endWithin)
	must.StrContains(s.t, ended(0), "gang owner has finished\n")

	s.submitUntil(gang{name: "stopped", count: 1, gpus: 1})
	s.awaitWhole("stopped", 1, startWithin)
	must.NoError(s.t, s.StopJob(s.ctx, "stopped", false))
	stopped := s.musterFails(1, "run", "-follow", "stopped")
	must.StrContains(s.t, stopped, "stopped")
}

// setsAKnob: a gang that waits for one rack starts in two as soon as an operator says so, without a new version of its
// job, and status tells the same as the gang's document.
func setsAKnob(s *stage) {
	s.submit(gang{name: "wide", count: 2, gpus: 4, runFor: seconds(2), more: map[string]string{"locality": "rack", "relax_after": "1h"}})
	s.awaitShown(func() []string {
		return []string{"Nodes   = 2: 2 ready\n", "answers, server ", s.awaitReason("wide").Why.Text}
	}, "status")

	refused := s.musterFails(1, "set", "wide", "locality=row")
	must.StrContains(s.t, refused, `locality = "row" is no level of this cluster`)
	output, err := s.MusterCommand(s.ctx, "set", "wide", "locality=any", "priority=80")
	must.NoError(s.t, err)
	must.EqOp(s.t, "Gang wide: locality=any priority=80\n", output)
	doc := s.awaitFinished("wide", startWithin+endWithin)
	must.EqOp(s.t, 80, doc.Spec.Priority)
	must.EqOp(s.t, 0, doc.JobVersion, must.Sprint("the job was not touched"))
}

// releasesByForce: a gang is preempted while the device plugin of its node hangs, so that its slot is never said to be
// clear. An operator sees why, and releases it by force.
func releasesByForce(s *stage) {
	release := s.submitUntil(gang{name: "stuck", count: 1, gpus: 1, nodes: "n2"})
	s.awaitWhole("stuck", 1, startWithin)
	kept := s.musterFails(1, "release", "-force", "nosuch")
	must.StrContains(s.t, kept, `no gang named "nosuch"`)
	resume := s.pausePlugin("n2")
	defer resume()

	_, err := s.MusterCommand(s.ctx, "preempt", "stuck")
	must.NoError(s.t, err)
	s.await("the member to end", endWithin, func() (bool, string) {
		snapshot := s.snapshot()
		return len(snapshot.Claims["n2"]) == 0 && len(s.ranks("stuck")) == 0, "it still has its claim"
	})
	closing := s.document("stuck")
	must.EqOp(s.t, ledger.GangClosing, closing.State)
	list, err := s.MusterCommand(s.ctx, "release", "stuck")
	must.NoError(s.t, err)
	must.StrContains(s.t, list, closing.Reservation.ID+".0  n2")
	must.StrContains(s.t, list, "the node has acted on table")
	must.StrContains(s.t, s.musterFails(1, "release", "-force", "stuck"), "nobody can be asked here: add -yes")
	must.EqOp(s.t, ledger.GangClosing, s.document("stuck").State)

	output, err := s.MusterCommand(s.ctx, "release", "-force", "-yes", "stuck")
	must.NoError(s.t, err)
	must.StrContains(s.t, output, "Released: 1 slot of gang stuck\n")
	must.NotEq(s.t, ledger.GangClosing, s.document("stuck").State)
	resume()
	s.awaitWhole("stuck", 1, 2*startWithin)
	release()
	s.awaitFinished("stuck", endWithin)
}
