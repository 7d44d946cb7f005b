// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// trainWithin is how long the examples may take: they load much and compute little.
const trainWithin = 3 * time.Minute

// Debian's Python: another one that comes first in PATH knows nothing of Debian's packages.
const debianPython = "/usr/bin/python3"

// examples is where the examples of the job specs and their programs are.
func examples(path ...string) string {
	dir, err := filepath.Abs(filepath.Join(append([]string{"..", "..", "jobspecs"}, path...)...))
	if err != nil {
		return ""
	}
	return dir
}

// torchrun: the example for PyTorch, as it stands, with the real torchrun over two nodes. It trains a tiny model and
// finishes without a rendezvous flag in the spec.
func torchrun(s *stage) {
	program := needs(s.t, "/usr/bin/torchrun", "python3-torch")
	release := s.leaveTwoPerNode()
	dir := s.sharedDir("torch")
	must.NoError(s.t, s.Run(s.ctx, examples("torchrun.nomad.hcl"), map[string]string{
		"gang": "torch", "members": "2", "gpus": "2", "torchrun": program, "script": s.script("train.py"),
		"arguments": hclList([]string{"--steps=60", "--step-seconds=0.05"}), "checkpoints": dir,
	}))
	must.SliceLen(s.t, 2, s.awaitGranted("torch").Placements)
	s.awaitFinished("torch", startWithin+trainWithin)
	release()
	output := s.outputOf("torch")
	for _, line := range []string{"rank 0 of 4 starts", "rank 3 of 4 starts", "rank 0 done after step 60", "rank 3 done after step 60"} {
		must.StrContains(s.t, output, line)
	}
	must.StrContains(s.t, strings.Join(files(s.t, dir), " "), "step-00000060.pt")
	must.Eq(s.t, 1, strings.Count(output, "checkpoint step-00000060.pt"))
}

// mpi: the example for Open MPI, as it stands, over two nodes.
func mpi(s *stage) {
	compiler := needs(s.t, "/usr/bin/mpicc", "libopenmpi-dev")
	needs(s.t, "/usr/bin/mpirun", "openmpi-bin")
	program := filepath.Join(s.Dir(), "hello_mpi")
	output, err := exec.CommandContext(s.ctx, compiler, "-o", program, examples("scripts", "hello_mpi.c")).CombinedOutput()
	must.NoError(s.t, err, must.Sprint(string(output)))
	release := s.leaveTwoPerNode()
	must.NoError(s.t, s.Run(s.ctx, examples("mpi.nomad.hcl"), map[string]string{
		"gang": "mpi", "members": "2", "gpus": "2", "launcher": s.script("mpi_launch.py"), "python": debianPython,
		"program": hclList([]string{program, "20", "0.1"}),
	}))
	must.SliceLen(s.t, 2, s.awaitGranted("mpi").Placements)
	s.awaitFinished("mpi", startWithin+trainWithin)
	release()
	must.StrContains(s.t, s.outputOf("mpi"), "sum of 4 ranks: 6")
}

// awaitGranted waits until a gang is granted: some seconds before Nomad starts its members, at least.
func (s *stage) awaitGranted(name string) *ledger.Grant {
	s.t.Helper()
	var doc ledger.Gang
	s.await("gang "+name+" to be granted", noticeWithin, func() (bool, string) {
		doc = s.document(name)
		return doc.Reservation != nil, describe(doc)
	})
	return doc.Reservation
}

// leaveTwoPerNode takes all GPUs but two on each of three nodes, so that a gang of 2 x 2 must spread, and returns what
// gives them back.
func (s *stage) leaveTwoPerNode() (release func()) {
	s.t.Helper()
	big := s.submitUntil(gang{name: "filler-big", count: 3, gpus: 6})
	small := s.submitUntil(gang{name: "filler-small", count: 1, gpus: 4, nodes: "n4"})
	s.awaitWhole("filler-big", 3, startWithin)
	s.awaitWhole("filler-small", 1, startWithin)
	return func() {
		s.t.Helper()
		big()
		small()
		s.awaitFinished("filler-big", endWithin)
		s.awaitFinished("filler-small", endWithin)
	}
}

// twoGroups: the example of a gang of two groups, a launcher with one GPU and workers with more.
func twoGroups(s *stage) {
	must.NoError(s.t, s.Run(s.ctx, examples("launcher-workers.nomad.hcl"), map[string]string{
		"gang": "pool", "workers": "2", "gpus": "2", "python": debianPython, "script": s.script("pool.py"), "items": "40",
		"checkpoints": s.sharedDir("pool"),
	}))
	s.awaitFinished("pool", startWithin+trainWithin)
	must.StrContains(s.t, s.outputOf("pool"), "sum of 40 squares: 20540")
}

// oneGPU: the smallest example, in its own shell, saves where it is.
func oneGPU(s *stage) {
	dir := s.sharedDir("one")
	must.NoError(s.t, s.Run(s.ctx, examples("one-gpu.nomad.hcl"), map[string]string{
		"gang": "one", "steps": "12", "interval": "4s", "checkpoints": dir,
	}))
	s.awaitFinished("one", startWithin+trainWithin)
	must.SliceNotEmpty(s.t, files(s.t, dir))
	must.StrContains(s.t, s.outputOf("one"), "saved step-")
}

// script copies a program of the examples to where tasks can read it.
func (s *stage) script(name string) string {
	s.t.Helper()
	path, err := s.CopyIn(examples("scripts", name))
	must.NoError(s.t, err)
	return path
}

// needs returns a program's path, or skips the story with the package that has the program.
func needs(t *testing.T, program, debianPackage string) string {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		t.Skipf("no %s on this machine: install Debian's %s", program, debianPackage)
	}
	return program
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// outputOf is what all tasks of a job that ran to their end have printed.
func (s *stage) outputOf(job string) string {
	s.t.Helper()
	var all strings.Builder
	for _, alloc := range s.allocations(job) {
		if alloc.ClientStatus != nomad.AllocClientStatusComplete {
			continue
		}
		for _, stream := range [][]string{nil, {"-stderr"}} {
			text, err := s.NomadCommand(s.ctx, append(append([]string{"alloc", "logs"}, stream...), alloc.ID)...)
			must.NoError(s.t, err)
			all.WriteString(text)
		}
	}
	return all.String()
}
