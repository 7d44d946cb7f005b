// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package proc

import (
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
)

func TestReadSelf(t *testing.T) {
	self, err := Read(os.Getpid())
	must.NoError(t, err)
	must.Eq(t, os.Getppid(), self.PPID)
	must.Eq(t, os.Args, self.Args)
	must.True(t, Alive(self.PID, self.StartTicks))
	must.False(t, Alive(self.PID, self.StartTicks+1))
}

func TestCatchesFollowsHandlers(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR2)
	self, err := Read(os.Getpid())
	must.NoError(t, err)
	must.True(t, self.Catches(syscall.SIGUSR2))
	must.False(t, self.Catches(syscall.SIGKILL))
	must.False(t, self.Catches(0))
	signal.Stop(caught)
}

func TestBelowFindsGrandchildren(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read _ & read _; wait")
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	all, err := All()
	must.NoError(t, err)
	below := Below(all, os.Getpid())
	must.True(t, slices.ContainsFunc(below, func(p Process) bool { return p.PID == cmd.Process.Pid }))
	must.False(t, slices.ContainsFunc(below, func(p Process) bool { return p.PID == os.Getpid() }))
}

func TestBelowOnlyDescendants(t *testing.T) {
	all := []Process{{PID: 1}, {PID: 10, PPID: 1}, {PID: 11, PPID: 10}, {PID: 12, PPID: 11}, {PID: 13, PPID: 1}}
	var pids []int
	for _, p := range Below(all, 10) {
		pids = append(pids, p.PID)
	}
	must.Eq(t, []int{11, 12}, pids)
}

func TestReadGone(t *testing.T) {
	_, err := Read(1 << 30)
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestParseStatNameWithBrackets(t *testing.T) {
	p, err := parseStat([]byte("42 (a) R (b)) S 7 42 41 0 -1 4 0 0 0 0 3 4 0 0 20 0 1 0 999 1000 55 0"))
	must.NoError(t, err)
	must.Eq(t, Process{PID: 42, PPID: 7, Session: 41, State: 'S', StartTicks: 999, CPUTicks: 7, RSSPages: 55}, p)
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) S 7 42 41 0 -1 4 0 0 0 0 3 4 0 0 20 0 1 0 999 1000 55 0"))
	f.Add([]byte("() "))
	f.Fuzz(func(t *testing.T, stat []byte) {
		_, _ = parseStat(stat)
		_, _ = parseCaught(stat)
	})
}
