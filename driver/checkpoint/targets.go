// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nomad-muster/muster/driver/launch/proc"
)

// Targets chooses the processes of a task that get the checkpoint signal: those that catch it, are no launcher, and have
// no other such process below them. Workers that a process forks without exec (a data loader's) inherit its handlers and
// count as part of it. users are the processes that use the task's GPUs, as far as known: where any of them catches the
// signal, only they get it. The answer is in PID order; it is empty where a signal would only kill.
func Targets(processes []proc.Process, signal syscall.Signal, users []int) []int {
	byPID := make(map[int]proc.Process, len(processes))
	for _, p := range processes {
		byPID[p.PID] = p
	}
	catching := map[int]bool{}
	for _, p := range processes {
		if p.Catches(signal) && !launcher(p.Args) && !forkOf(p, byPID, signal) {
			catching[p.PID] = true
		}
	}
	above := map[int]bool{} // has a catching process below it
	for pid := range catching {
		for parent, ok := byPID[byPID[pid].PPID]; ok && !above[parent.PID]; parent, ok = byPID[parent.PPID] {
			above[parent.PID] = true
		}
	}
	var leaves, computing []int
	for pid := range catching {
		if !above[pid] {
			leaves = append(leaves, pid)
		}
		if slices.Contains(users, pid) {
			computing = append(computing, pid)
		}
	}
	chosen := leaves
	if len(computing) > 0 {
		chosen = computing
	}
	slices.Sort(chosen)
	return chosen
}

// forkOf says whether a process has its handler from its parent, by a fork that never called exec: the same command line,
// no program of its own.
func forkOf(p proc.Process, byPID map[int]proc.Process, signal syscall.Signal) bool {
	parent, ok := byPID[p.PPID]
	return ok && len(p.Args) > 0 && slices.Equal(p.Args, parent.Args) && parent.Catches(signal)
}

// launchers start the processes that compute, and end all of them when they get a signal that they don't know.
func launchers() []string {
	return []string{
		"torchrun", "ft_launcher", "mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "orted", "prterun", "prted",
		"accelerate", "deepspeed", "composer", "horovodrun", "srun", "ray",
	}
}

// launcherModules are launchers that run as "python -m <module>".
func launcherModules() []string {
	return []string{
		"torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher", "accelerate.commands.launch",
		"accelerate.commands.accelerate_cli", "deepspeed.launcher", "composer.cli.launcher", "nvidia_resiliency_ext",
	}
}

// launcher says whether a command line is a launcher's: the program itself, the script that an interpreter runs, or the
// module of python -m.
func launcher(args []string) bool {
	if len(args) == 0 {
		return false
	}
	if slices.Contains(launchers(), filepath.Base(args[0])) {
		return true
	}
	if !interpreter(filepath.Base(args[0])) {
		return false
	}
	for i, arg := range args[1:] {
		switch {
		case arg == "-m" && i+2 < len(args):
			return slices.ContainsFunc(launcherModules(), func(m string) bool {
				return args[i+2] == m || strings.HasPrefix(args[i+2], m+".")
			})
		case arg == "-c":
			return false
		case !strings.HasPrefix(arg, "-"):
			return slices.Contains(launchers(), filepath.Base(arg))
		}
	}
	return false
}

func interpreter(name string) bool {
	return strings.HasPrefix(name, "python") || strings.HasPrefix(name, "pypy") || slices.Contains([]string{"sh", "bash", "dash", "perl", "ruby"}, name)
}
