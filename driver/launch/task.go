// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-muster/muster/driver/launch/proc"
	"golang.org/x/sys/unix"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrNotStarted says that a directory's task has never started.
	ErrNotStarted = errors.New("the task has not started")
	// ErrLost says that a task's exit status will never be known: its supervisor, or the whole machine, went down first.
	ErrLost = errors.New("the task's supervisor died, so how the task ended is unknown")
)

const (
	// startPatience is how long a supervisor may take to start a command.
	startPatience = 30 * time.Second
	// requestPatience is how long a request that waits for nothing may take.
	requestPatience = 10 * time.Second
	// pollInterval is between two looks at what can't be waited for.
	pollInterval = 100 * time.Millisecond
)

// Task is a handle on a task's supervisor. It holds nothing open: any number of them may exist, in any process.
type Task struct {
	dir   string
	state State
}

// Start runs a task under a new supervisor and returns when its command runs, or with the reason why it does not. dir
// must exist, and be used for this one task. A task that an earlier call has started after all is found, not started again.
func Start(ctx context.Context, dir string, spec Spec) (*Task, error) {
	spec.Version = version
	if err := writeJSON(filepath.Join(dir, specFile), spec); err != nil {
		return nil, err
	}
	state, err := spawn(ctx, dir)
	if err == nil {
		return &Task{dir: dir, state: state}, nil
	}
	for deadline := time.Now().Add(startPatience); ; {
		if found, attachErr := Attach(dir); attachErr == nil {
			return found, nil
		}
		// An earlier call's supervisor may still be on its way to start the command.
		if !locked(dir) || time.Now().After(deadline) || pause(ctx) != nil {
			return nil, err
		}
	}
}

// spawn starts the supervisor and waits for its report.
func spawn(ctx context.Context, dir string) (State, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return State{}, fmt.Errorf("making a pipe for the supervisor: %w", err)
	}
	defer read.Close()
	messages, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		write.Close()
		return State{}, fmt.Errorf("opening the supervisor's log: %w", err)
	}
	defer messages.Close()
	// This very image, even if the file on disk has been replaced since.
	cmd := exec.Command("/proc/self/exe", SuperviseArgument, dir) //nolint:noctx // it outlives us on purpose
	cmd.Args[0], cmd.Dir, cmd.Env = "muster-supervisor", "/", []string{"PATH=" + defaultPath}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = messages, messages, []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return State{}, fmt.Errorf("starting the task's supervisor: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return readReport(ctx, read)
}

func readReport(ctx context.Context, read *os.File) (State, error) {
	deadline := time.Now().Add(startPatience)
	if until, ok := ctx.Deadline(); ok && until.Before(deadline) {
		deadline = until
	}
	_ = read.SetReadDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = read.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var r report
	if err := json.NewDecoder(read).Decode(&r); err != nil {
		return State{}, fmt.Errorf("the task's supervisor gave no sign of life: %w", errors.Join(err, ctx.Err()))
	}
	if r.Error != "" || r.State == nil {
		return State{}, errors.New(r.Error)
	}
	return *r.State, nil
}

func reportStart(to *os.File, r report) {
	line, err := json.Marshal(r)
	if err == nil {
		_, _ = to.Write(append(line, '\n')) // nobody may be listening any more
	}
	_ = to.Close()
}

// Attach finds the task of a directory that Start was given, by this process or an earlier one. ErrNotStarted: it never
// ran, and may be started. ErrLost: it is over, Gone removes what is left. ErrNewer: hands off.
func Attach(dir string) (*Task, error) {
	state, err := readJSON[State](filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotStarted
	}
	if err != nil {
		return nil, err
	}
	t := &Task{dir: dir, state: state}
	if _, err := t.Exit(); err == nil || t.supervised() {
		return t, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return t, err
	}
	return t, ErrLost
}

// State says who runs the task.
func (t *Task) State() State { return t.state }

// supervised says whether the supervisor lives.
func (t *Task) supervised() bool {
	return t.state.BootID == bootID() && proc.Alive(t.state.Supervisor, t.state.SupervisorTicks)
}

// Exit is how the command ended; os.ErrNotExist until it has.
func (t *Task) Exit() (Exit, error) { return readJSON[Exit](filepath.Join(t.dir, exitFile)) }

// Wait returns when the command has ended and its output was passed on; ErrLost when nobody will ever know.
func (t *Task) Wait(ctx context.Context) (Exit, error) {
	for {
		answer, err := t.ask(ctx, request{Op: opWait}, 0)
		if err == nil && answer.Exit != nil {
			return *answer.Exit, nil
		}
		// No supervisor answers: it has recorded the exit, or it is starting to serve, or it died.
		alive := t.supervised()
		if exit, exitErr := t.Exit(); exitErr == nil && !alive {
			return exit, nil
		} else if exitErr != nil && !errors.Is(exitErr, os.ErrNotExist) {
			return Exit{}, exitErr
		} else if !alive {
			return Exit{}, ErrLost
		}
		if err := pause(ctx); err != nil {
			return Exit{}, err
		}
	}
}

// pause waits between two looks.
func pause(ctx context.Context) error {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Gone returns when no process of the task is left and its cgroup is removed. It ends what a dead supervisor has left
// behind. It does not end a task that is well: the command must have ended, or been killed.
func (t *Task) Gone(ctx context.Context) error {
	for !t.gone() {
		if !t.supervised() {
			t.reap()
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	if !t.supervised() {
		t.removeGroup(ctx)
	}
	return nil
}

func (t *Task) gone() bool {
	if _, err := os.Stat(filepath.Join(t.dir, goneFile)); err == nil {
		return true
	}
	return !t.supervised() && len(t.leftovers()) == 0
}

// leftovers are the processes that a supervisor which is of no use has left: those in the cgroup, or in the command's
// session where there is no cgroup.
func (t *Task) leftovers() []proc.Process {
	if t.state.BootID != bootID() {
		return nil
	}
	var left []proc.Process
	if len(t.state.Cgroups) > 0 {
		if g, err := openGroup(t.state.Cgroups); err == nil {
			pids, _ := g.pids()
			left = proc.Some(pids)
		}
	} else if all, err := proc.All(); err == nil {
		left = session(all, t.state.Main, t.state.MainTicks)
	}
	alive := left[:0]
	for _, p := range left {
		if !p.Dead() {
			alive = append(alive, p)
		}
	}
	return alive
}

// session picks the processes of the session that a process began, unless its PID is another's by now.
func session(all []proc.Process, leader int, ticks uint64) []proc.Process {
	var members []proc.Process
	for _, p := range all {
		if p.PID == leader && p.StartTicks != ticks {
			return nil
		}
		if p.Session == leader {
			members = append(members, p)
		}
	}
	return members
}

// reap ends what the supervisor does not, once.
func (t *Task) reap() {
	for _, p := range t.leftovers() {
		_ = unix.Kill(p.PID, unix.SIGKILL)
	}
}

// removeGroup removes the cgroup in the place of a dead supervisor. It stays behind, empty, if a zombie is in it that
// nobody collects.
func (t *Task) removeGroup(ctx context.Context) {
	if len(t.state.Cgroups) == 0 || t.state.BootID != bootID() {
		return
	}
	g, err := openGroup(t.state.Cgroups)
	for range 10 {
		if err != nil || g.remove() == nil || pause(ctx) != nil {
			return
		}
	}
}

// Signal sends a signal to processes of the task, or to its command if none is named. A process that is not of the task
// (any more) is an error, and gets nothing.
func (t *Task) Signal(ctx context.Context, signal syscall.Signal, pids ...int) error {
	_, err := t.ask(ctx, request{Op: opSignal, Signal: int(signal), PIDs: pids}, requestPatience)
	return err
}

// Kill sends SIGKILL to every process of the task. With a supervisor that is dead or does not answer it does the same
// itself.
func (t *Task) Kill(ctx context.Context) error {
	if t.supervised() {
		if _, err := t.ask(ctx, request{Op: opKill}, requestPatience); err == nil || ctx.Err() != nil {
			return err
		}
	}
	t.reap()
	return nil
}

// Processes lists the task's processes that live.
func (t *Task) Processes(ctx context.Context) ([]proc.Process, error) {
	answer, err := t.ask(ctx, request{Op: opProcesses}, requestPatience)
	return answer.Processes, err
}

// Stats is what the task uses now.
func (t *Task) Stats(ctx context.Context) (Stats, error) {
	answer, err := t.ask(ctx, request{Op: opStats}, requestPatience)
	if err == nil && answer.Stats == nil {
		err = errors.New("the task's supervisor gave no statistics")
	}
	if err != nil {
		return Stats{}, err
	}
	return *answer.Stats, nil
}

// Exec runs a command beside the task's own, with the same user, cgroup, environment and directory, and returns how it
// ended. It takes over the three streams and closes them. terminal: the streams are one terminal, and the command
// controls its session by it. When ctx ends, Exec returns; the command goes on until it notices that its streams are gone.
func (t *Task) Exec(ctx context.Context, argv []string, streams [3]*os.File, terminal bool) (Exit, error) {
	defer closeAll(streams[:])
	answer, err := t.ask(ctx, request{Op: opExec, Argv: argv, Terminal: terminal}, 0, streams[:]...)
	if err != nil {
		return Exit{}, err
	}
	if answer.Exit == nil {
		return Exit{}, errors.New("the task's supervisor did not say how the command ended")
	}
	return *answer.Exit, nil
}

// ask sends one request and reads its answer. patience 0: as long as ctx lasts. Files are closed once they are sent.
func (t *Task) ask(ctx context.Context, r request, patience time.Duration, files ...*os.File) (response, error) {
	if patience > 0 {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		ctx = limited
	}
	conn, err := t.dial(ctx)
	if err != nil {
		return response{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	r.Version = version
	if err := send(conn, r, files...); err != nil {
		return response{}, err
	}
	closeAll(files)
	answer, err := receiveResponse(conn)
	if err != nil {
		return response{}, errors.Join(ctx.Err(), err)
	}
	if answer.Error != "" {
		return answer, errors.New(strings.TrimSpace(answer.Error))
	}
	return answer, nil
}

func (t *Task) dial(ctx context.Context) (*net.UnixConn, error) {
	address, handle, err := socketAddress(t.dir)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", address.Name)
	if err != nil {
		return nil, fmt.Errorf("reaching the task's supervisor: %w", err)
	}
	return conn.(*net.UnixConn), nil
}
