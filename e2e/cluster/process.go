// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nomad-muster/muster/e2e/leftover"
)

// stopWithin is how long an agent may take to end by itself.
const stopWithin = time.Minute

// Process is one program that a cluster runs: an agent or a placer. It can be ended and started again with the same
// arguments; its output goes to one log file.
type Process struct {
	Name string
	Log  string // path of its log

	path string
	args []string
	env  []string

	mu   sync.Mutex // protects cmd and gone
	cmd  *exec.Cmd
	gone chan struct{} // closed when cmd has ended
}

func (c *Cluster) newProcess(name, path string, args, env []string) *Process {
	p := &Process{Name: name, Log: filepath.Join(c.Logs, name+".log"), path: path, args: args}
	p.env = append(cleanEnviron(), leftover.EnvVar+"="+string(c.Mark), "TMPDIR="+c.tmp())
	p.env = append(p.env, env...)
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	return p
}

// drop takes a program that could not be started out of the cluster.
func (c *Cluster) drop(p *Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = slices.DeleteFunc(c.processes, func(other *Process) bool { return other == p })
}

// cleanEnviron is this process's environment without what would send an agent or command to another cluster.
func cleanEnviron() []string {
	var env []string
	for _, pair := range os.Environ() {
		foreign := strings.HasPrefix(pair, "NOMAD_") || strings.HasPrefix(pair, "CONSUL_") || strings.HasPrefix(pair, "MUSTER_")
		if !foreign {
			env = append(env, pair)
		}
	}
	return env
}

// Start starts the program.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("log of %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for the test, which ends them in order
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how an agent ended is in its log
		close(gone)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.gone = cmd, gone
	return nil
}

// PID is the program's process ID; 0 when it never ran.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Running says whether the program runs.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the program and does not wait for what it does: SIGSTOP and SIGCONT.
func (p *Process) Signal(signal syscall.Signal) error {
	if !p.Running() {
		return fmt.Errorf("%s does not run", p.Name)
	}
	if err := syscall.Kill(p.PID(), signal); err != nil {
		return fmt.Errorf("%s to %s: %w", signal, p.Name, err)
	}
	return nil
}

// Kill sends a signal and waits until the program has ended. Only the program itself is meant, not what it started.
func (p *Process) Kill(signal syscall.Signal) error {
	p.mu.Lock()
	cmd, gone := p.cmd, p.gone
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending %s: %w", p.Name, err)
	}
	limit := time.NewTimer(stopWithin)
	defer limit.Stop()
	select {
	case <-gone:
		return nil
	case <-limit.C:
		_ = cmd.Process.Kill() // it has ended in this moment, or ends now
		<-gone
		return fmt.Errorf("%s did not end within %s of %s; see %s", p.Name, stopWithin, signal, p.Log)
	}
}

// Tail is the last lines of the program's log.
func (p *Process) Tail(lines int) string {
	return p.tail(lines, func(string) bool { return true })
}

// tail is the last of those lines of the program's log that are wanted, none of them long.
func (p *Process) tail(lines int, wanted func(line string) bool) string {
	const longest = 400 // bytes
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if wanted(line) {
			line = strings.TrimSuffix(line, "\n")
			all = append(all, line[:min(len(line), longest)])
		}
	}
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Logged counts a text in the program's log.
func (p *Process) Logged(text string) (int, error) {
	log, err := os.ReadFile(p.Log)
	if err != nil {
		return 0, fmt.Errorf("log of %s: %w", p.Name, err)
	}
	return strings.Count(string(log), text), nil
}
