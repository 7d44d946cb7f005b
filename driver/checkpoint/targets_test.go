// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"strings"
	"syscall"
	"testing"

	"github.com/nomad-muster/muster/driver/launch/proc"
	"github.com/shoenig/test/must"
)

func process(pid, parent int, catches bool, command string) proc.Process {
	p := proc.Process{PID: pid, PPID: parent, Args: strings.Fields(command)}
	if catches {
		p.Caught = 1 << (syscall.SIGUSR1 - 1)
	}
	return p
}

func TestTargets(t *testing.T) {
	const catches, ignores = true, false
	cases := map[string]struct {
		processes []proc.Process
		users     []int
		want      []int
	}{
		"one program": {
			processes: []proc.Process{process(10, 1, catches, "python3 train.py")},
			want:      []int{10},
		},
		"nobody catches it": {
			processes: []proc.Process{process(10, 1, ignores, "python3 train.py"), process(11, 10, ignores, "sleep 1")},
		},
		"torchrun and its workers": {
			processes: []proc.Process{
				process(10, 1, catches, "/usr/bin/python3 /usr/bin/torchrun train.py"),
				process(11, 10, catches, "/usr/bin/python3 -u train.py"),
				process(12, 10, catches, "/usr/bin/python3 -u train.py"),
			},
			want: []int{11, 12},
		},
		"a launcher without workers": {
			processes: []proc.Process{process(10, 1, catches, "python3 -u -m torch.distributed.run train.py")},
		},
		"deepspeed's launchers, module and script": {
			processes: []proc.Process{
				process(10, 1, catches, "python3 /opt/bin/deepspeed train.py"),
				process(11, 10, catches, "python3 -u -m deepspeed.launcher.launch train.py"),
				process(12, 11, catches, "python3 -u train.py"),
			},
			want: []int{12},
		},
		"mpirun": {
			processes: []proc.Process{process(10, 1, catches, "/usr/bin/mpirun -n 2 ./solve"), process(11, 10, catches, "./solve"), process(12, 10, ignores, "./solve")},
			want:      []int{11},
		},
		"a shell around it that traps the signal too": {
			processes: []proc.Process{process(10, 1, catches, "bash run.sh"), process(11, 10, catches, "python3 train.py")},
			want:      []int{11},
		},
		"workers forked by a data loader belong to their parent": {
			processes: []proc.Process{
				process(10, 1, catches, "python3 train.py"),
				process(11, 10, catches, "python3 train.py"),
				process(12, 11, catches, "python3 train.py"),
			},
			want: []int{10},
		},
		"forked workers with handlers of their own": {
			processes: []proc.Process{
				process(10, 1, ignores, "python3 train.py"),
				process(11, 10, catches, "python3 train.py"),
				process(12, 10, catches, "python3 train.py"),
			},
			want: []int{11, 12},
		},
		"helpers that don't catch it change nothing": {
			processes: []proc.Process{
				process(10, 1, catches, "python3 train.py"),
				process(11, 10, ignores, "python3 -c from multiprocessing.spawn import spawn_main"),
			},
			want: []int{10},
		},
		"those that use the GPUs, where they are known": {
			processes: []proc.Process{process(10, 1, catches, "python3 train.py"), process(11, 10, catches, "logger")},
			users:     []int{10, 99},
			want:      []int{10},
		},
		"users of the GPUs that don't catch it": {
			processes: []proc.Process{process(10, 1, ignores, "python3 train.py"), process(11, 10, catches, "saver")},
			users:     []int{10},
			want:      []int{11},
		},
		"a script named like no launcher": {
			processes: []proc.Process{process(10, 1, catches, "python3 my_torchrun.py")},
			want:      []int{10},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			must.Eq(t, c.want, Targets(c.processes, syscall.SIGUSR1, c.users))
		})
	}
}
