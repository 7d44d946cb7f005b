// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nomad-muster/muster/driver/launch/proc"
	"golang.org/x/sys/unix"
)

// SuperviseArgument is the first argument by which the plugin's binary becomes a supervisor: "<binary> supervise <dir>".
const SuperviseArgument = "supervise"

// reportFD is where the supervisor says how the start went: one line of JSON to whoever started it.
const reportFD = 3

const (
	// drainPatience is how long the end of a task waits until its last output has gone into the log pipe.
	drainPatience = 2 * time.Second
	// unreadPatience is how long the supervisor of an ended task stays so that a log collector that is away can still
	// read the last output.
	unreadPatience = 5 * time.Minute
	// killInterval is how often SIGKILL is repeated while processes are left.
	killInterval = 100 * time.Millisecond
)

// report is what the starter learns.
type report struct {
	Error string `json:"error,omitempty"`
	State *State `json:"state,omitempty"`
}

// supervisor is the process that runs one task.
type supervisor struct {
	dir   string
	spec  Spec
	who   account
	group *group // nil: this machine gives us none
	state State
	exit  Exit
	ended chan struct{} // closed when the command has ended, exit is set and the output was passed on

	children children
	outputs  [2]*relay
}

// Supervise runs the task of a directory and returns when nothing of it is left; main calls it for SuperviseArgument and
// exits with its result. A second supervisor of the same directory ends at once.
func Supervise(dir string) int {
	log.SetFlags(log.LstdFlags | log.LUTC)
	// Caught and not ignored: the task's command would inherit that a signal is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	unix.CloseOnExec(reportFD)
	s := &supervisor{dir: dir, ended: make(chan struct{})}
	started := os.NewFile(reportFD, "report")
	err := s.start()
	answer := report{State: &s.state}
	if err != nil {
		log.Printf("the task did not start: %v", err)
		answer = report{Error: err.Error()}
	}
	reportStart(started, answer)
	if err != nil {
		s.removeGroup()
		return 1
	}
	s.finish()
	return 0
}

// start does everything up to the running command.
func (s *supervisor) start() error {
	if err := lock(s.dir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(s.dir, stateFile)); err == nil {
		return errors.New("this task has already run")
	}
	spec, err := readJSON[Spec](filepath.Join(s.dir, specFile))
	if err != nil {
		return err
	}
	s.spec = spec
	if s.who, err = lookUp(spec.User); err != nil {
		return err
	}
	// Orphans of the task come to us, so that its processes stay below us in the tree whatever they do.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of the task's orphans: %w", err)
	}
	// The task inherits ours, and ours is the agent's, which is commonly protected: then nothing would end a task that
	// uses up the memory.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0); err != nil {
		s.state.Notes = append(s.state.Notes, fmt.Sprintf("the task has the agent's protection from the kernel's out-of-memory killer: %v", err))
	}
	s.joinOwnGroup()
	var notes []string
	if s.group, notes, err = createGroup(spec.Name, spec.Limits); err != nil {
		notes = []string{fmt.Sprintf("the task has no cgroup, so no limit is enforced: %v", err)}
	}
	s.state.Notes = append(s.state.Notes, notes...)
	s.children.init()
	listener, err := s.listen()
	if err != nil {
		return err
	}
	if err := s.startMain(); err != nil {
		return err
	}
	go s.serve(listener)
	return nil
}

// lock makes sure that a directory has one supervisor. The lock ends with the process.
func lock(dir string) error {
	fd, err := unix.Open(filepath.Join(dir, lockFile), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("opening the task's lock: %w", err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("the task has a supervisor already: %w", err)
	}
	return nil
}

// locked says whether a directory has a supervisor.
func locked(dir string) bool {
	fd, err := unix.Open(filepath.Join(dir, lockFile), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil
}

// joinOwnGroup leaves the cgroup of Nomad's agent, which may be killed as a whole. All supervisors share one.
func (s *supervisor) joinOwnGroup() {
	group, _, err := createGroup("supervisors", Limits{Parent: s.spec.Limits.Parent})
	if err == nil {
		err = group.manager.Apply(os.Getpid())
	}
	if err != nil {
		s.state.Notes = append(s.state.Notes, fmt.Sprintf("the task's supervisor shares the agent's cgroup: %v", err))
	}
}

// startMain starts the task's command and writes the state.
func (s *supervisor) startMain() error {
	path, err := findCommand(s.spec.Command, s.spec)
	if err != nil {
		return err
	}
	streams, err := s.openStreams()
	defer closeAll(streams[:])
	if err != nil {
		return err
	}
	argv := append([]string{s.spec.Command}, s.spec.Args...)
	main, err := s.run(path, argv, streams, false)
	if err != nil {
		return fmt.Errorf("starting %s as user %q in %s: %w", path, s.spec.User, s.spec.Dir, err)
	}
	for _, output := range s.outputs {
		go output.run()
	}
	s.state.Version, s.state.BootID, s.state.Started = version, bootID(), time.Now().UTC()
	s.state.Main, s.state.MainTicks = main.pid, main.ticks
	if self, err := proc.Read(os.Getpid()); err == nil {
		s.state.Supervisor, s.state.SupervisorTicks = self.PID, self.StartTicks
	}
	if s.group != nil {
		s.state.Cgroups = s.group.paths
	}
	if err := writeJSON(filepath.Join(s.dir, stateFile), s.state); err != nil {
		s.killAll()
		return err
	}
	go s.awaitMain(main)
	return nil
}

// openStreams makes the command's three streams: nothing to read, and two pipes of ours.
func (s *supervisor) openStreams() (streams [3]*os.File, err error) {
	if streams[0], err = os.Open(os.DevNull); err != nil {
		return streams, fmt.Errorf("opening the task's input: %w", err)
	}
	for i, path := range []string{s.spec.Stdout, s.spec.Stderr} {
		output, write, err := openRelay(path)
		if output == nil {
			return streams, err
		}
		if err != nil {
			s.state.Notes = append(s.state.Notes, fmt.Sprintf("output is lost: %v", err))
		}
		s.outputs[i], streams[i+1] = output, write
	}
	return streams, nil
}

// run starts one command of the task in its cgroup, and knows it as a child from then on.
func (s *supervisor) run(path string, argv []string, streams [3]*os.File, terminal bool) (*child, error) {
	attr := attributes(s.spec, s.who, environment(s.spec, s.who), streams, terminal)
	return s.children.start(func() (int, error) {
		if s.group == nil {
			return syscall.ForkExec(path, argv, attr)
		}
		return s.group.start(path, argv, attr)
	})
}

// awaitMain records how the command ended, ends whatever it left behind, and lets the last output through.
func (s *supervisor) awaitMain(main *child) {
	<-main.done
	s.exit = Exit{Version: version, At: time.Now().UTC()}
	if main.status.Signaled() {
		s.exit.Signal = int(main.status.Signal())
	} else {
		s.exit.Code = main.status.ExitStatus()
	}
	s.exit.OOMKilled = !s.exit.Success() && s.group != nil && s.group.killedForMemory()
	if err := writeJSON(filepath.Join(s.dir, exitFile), s.exit); err != nil {
		log.Printf("the exit status was not recorded: %v", err)
	}
	s.killAll()
	patience := time.After(drainPatience)
	for _, output := range s.outputs {
		select {
		case <-output.done:
		case <-patience:
		}
	}
	close(s.ended)
}

// killAll ends every process of the task, once.
func (s *supervisor) killAll() {
	if s.group != nil {
		s.group.kill()
	}
	for _, p := range s.processes() {
		_ = unix.Kill(p.PID, unix.SIGKILL)
	}
}

// processes lists the task's processes that live: those below us in the tree, and those in the cgroup.
func (s *supervisor) processes() []proc.Process {
	all, err := proc.All()
	if err != nil {
		log.Printf("listing processes: %v", err)
	}
	pids := map[int]bool{}
	for _, p := range proc.Below(all, os.Getpid()) {
		pids[p.PID] = true
	}
	if s.group != nil {
		inside, _ := s.group.pids()
		for _, pid := range inside {
			pids[pid] = true
		}
	}
	return slices.DeleteFunc(proc.Some(slices.Sorted(maps.Keys(pids))), proc.Process.Dead)
}

// finish waits until the command has ended and nothing of the task is left, then until the log collector has read its
// output.
func (s *supervisor) finish() {
	<-s.ended
	ticker := time.NewTicker(killInterval)
	defer ticker.Stop()
	for len(s.processes()) > 0 {
		<-ticker.C
		s.killAll()
	}
	s.removeGroup()
	if err := os.WriteFile(filepath.Join(s.dir, goneFile), nil, 0o600); err != nil {
		log.Printf("recording that the task is gone: %v", err)
	}
	for deadline := time.Now().Add(unreadPatience); time.Now().Before(deadline) && s.unread(); {
		<-ticker.C
	}
	for _, output := range s.outputs {
		output.close()
	}
}

func (s *supervisor) unread() bool {
	for _, output := range s.outputs {
		select {
		case <-output.done:
		default:
			return true
		}
		if output.unread() > 0 {
			return true
		}
	}
	return false
}

func (s *supervisor) removeGroup() {
	if s.group == nil {
		return
	}
	if err := s.group.remove(); err != nil {
		log.Printf("removing the task's cgroup: %v", err)
	}
}

// listen makes the socket; only root reaches it, as the directory is root's.
func (s *supervisor) listen() (*net.UnixListener, error) {
	_ = os.Remove(filepath.Join(s.dir, socketFile))
	address, handle, err := socketAddress(s.dir)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	listener, err := net.ListenUnix("unix", address)
	if err != nil {
		return nil, fmt.Errorf("listening for the driver: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	return listener, nil
}
