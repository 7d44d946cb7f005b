// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/nomad-muster/muster/driver/launch/proc"
	"golang.org/x/sys/unix"
)

// serve answers requests until the process ends.
func (s *supervisor) serve(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			log.Printf("accepting a request: %v", err)
			return
		}
		go s.handle(conn)
	}
}

func (s *supervisor) handle(conn *net.UnixConn) {
	defer conn.Close()
	r, files, err := receiveRequest(conn)
	defer closeAll(files)
	var answer response
	if err == nil {
		answer, err = s.answer(r, files)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	if err := send(conn, answer); err != nil {
		log.Printf("answering a %s request: %v", r.Op, err)
	}
}

func (s *supervisor) answer(r request, files []*os.File) (response, error) {
	if r.Version > version {
		return response{}, fmt.Errorf("the request has version %d, this supervisor speaks %d", r.Version, version)
	}
	switch r.Op {
	case opWait:
		<-s.ended
		return response{Exit: &s.exit}, nil
	case opSignal:
		return response{}, s.signal(syscall.Signal(r.Signal), r.PIDs)
	case opKill:
		s.killAll()
		return response{}, nil
	case opExec:
		exit, err := s.exec(r, files)
		return response{Exit: exit}, err
	case opProcesses:
		return response{Processes: s.processes()}, nil
	case opStats:
		stats, err := s.stats()
		return response{Stats: &stats}, err
	}
	return response{}, fmt.Errorf("this supervisor knows no request %q", r.Op)
}

// signal sends a signal to processes of the task and to no others, whoever has their PIDs by now.
func (s *supervisor) signal(signal syscall.Signal, pids []int) error {
	if len(pids) == 0 {
		pids = []int{s.state.Main}
	}
	ours := s.processes()
	var errs []error
	for _, pid := range pids {
		if !slices.ContainsFunc(ours, func(p proc.Process) bool { return p.PID == pid }) {
			errs = append(errs, fmt.Errorf("process %d is not of this task (any more)", pid))
			continue
		}
		if err := unix.Kill(pid, signal); err != nil {
			errs = append(errs, fmt.Errorf("sending signal %d to process %d: %w", signal, pid, err))
		}
	}
	return errors.Join(errs...)
}

// exec runs a command beside the task's own: same user, cgroup, environment and directory.
func (s *supervisor) exec(r request, files []*os.File) (*Exit, error) {
	if len(r.Argv) == 0 || len(files) != 3 {
		return nil, errors.New("a command and three streams are needed")
	}
	select {
	case <-s.ended:
		return nil, errors.New("the task has ended")
	default:
	}
	path, err := findCommand(r.Argv[0], s.spec)
	if err != nil {
		return nil, err
	}
	started, err := s.run(path, r.Argv, [3]*os.File(files), r.Terminal)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	closeAll(files) // the command alone holds its streams: its end must show on them
	<-started.done
	if started.status.Signaled() {
		return &Exit{Version: version, Signal: int(started.status.Signal())}, nil
	}
	return &Exit{Version: version, Code: started.status.ExitStatus()}, nil
}

func (s *supervisor) stats() (Stats, error) {
	if s.group == nil {
		return sumStats(s.processes()), nil
	}
	stats, err := s.group.stats()
	if err != nil {
		return Stats{}, fmt.Errorf("reading the task's cgroup: %w", err)
	}
	if pids, err := s.group.pids(); err == nil {
		stats.Processes = len(pids)
	}
	return stats, nil
}
