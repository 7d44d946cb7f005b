// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-muster/muster/driver/launch/proc"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"
)

// The test binary is also the supervisor, and a starter that dies (TestOutlivesItsStarter).
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == SuperviseArgument {
		code := Supervise(os.Args[2])
		// The race detector would sleep for a second in os.Exit.
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
	if len(os.Args) == 3 && os.Args[1] == "start-and-hang" {
		startAndHang(os.Args[2])
	}
	if os.Getenv(unifiedVariable) != "" {
		useUnified()
	}
	os.Exit(m.Run())
}

// patience is how long anything may take on a busy machine.
const patience = time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(
		wait.BoolFunc(condition), wait.Timeout(patience), wait.Gap(20*time.Millisecond),
	), must.Sprint(what))
}

// shell describes a task that runs a script with its log pipes as plain files.
func shell(t *testing.T, script string, args ...string) Spec {
	t.Helper()
	work := t.TempDir()
	for _, name := range []string{"out", "err"} {
		must.NoError(t, os.WriteFile(filepath.Join(work, name), nil, 0o666))
	}
	return Spec{
		Name: filepath.Base(filepath.Dir(work)) + "-" + filepath.Base(work), Command: "/bin/sh",
		Args: append([]string{"-c", script, "sh"}, args...), Dir: work, Env: map[string]string{"GREETING": "hello"},
		Stdout: filepath.Join(work, "out"), Stderr: filepath.Join(work, "err"),
		Limits: Limits{Parent: "muster-test"},
	}
}

func start(t *testing.T, spec Spec) *Task {
	t.Helper()
	task, err := Start(within(t), t.TempDir(), spec)
	must.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = task.Kill(ctx)
		must.NoError(t, task.Gone(ctx))
	})
	return task
}

func output(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(text)
}

func TestExitStatusAndOutput(t *testing.T) {
	spec := shell(t, `echo "$GREETING $1"; echo trouble >&2; pwd; exit 3`, "world")
	task := start(t, spec)
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.Eq(t, 3, exit.Code)
	must.False(t, exit.Success())
	must.Eq(t, "hello world\n"+spec.Dir+"\n", output(t, spec.Stdout))
	must.Eq(t, "trouble\n", output(t, spec.Stderr))
	must.NoError(t, task.Gone(within(t)))
	again, err := Attach(task.dir)
	must.NoError(t, err)
	recorded, err := again.Wait(within(t))
	must.NoError(t, err)
	must.Eq(t, exit.Code, recorded.Code)
}

func TestSignalReachesTheCommand(t *testing.T) {
	spec := shell(t, `trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.05; done`)
	task := start(t, spec)
	eventually(t, "the trap is set", func() bool { return output(t, spec.Stdout) == "ready\n" })
	must.NoError(t, task.Signal(within(t), syscall.SIGUSR1))
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.True(t, exit.Success())
	must.Eq(t, "ready\ngot it\n", output(t, spec.Stdout))
}

func TestSignalRefusesStrangers(t *testing.T) {
	task := start(t, shell(t, `read _ || sleep 60`))
	must.Error(t, task.Signal(within(t), syscall.SIGKILL, os.Getpid()))
}

func TestDefaultSignalDispositions(t *testing.T) {
	task := start(t, shell(t, `kill -TERM $$; exit 0`))
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.Eq(t, int(syscall.SIGTERM), exit.Signal)
}

func TestLeftBehindProcessesEnd(t *testing.T) {
	spec := shell(t, `setsid sh -c 'echo $$; exec sleep 600' & while [ ! -s out ]; do sleep 0.02; done; exit 0`)
	task := start(t, spec)
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.True(t, exit.Success())
	must.NoError(t, task.Gone(within(t)))
	pid, err := strconv.Atoi(strings.TrimSpace(output(t, spec.Stdout)))
	must.NoError(t, err)
	_, err = proc.Read(pid)
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestStartFailures(t *testing.T) {
	cases := map[string]struct {
		change func(*Spec)
		want   string
	}{
		"no such command":        {func(s *Spec) { s.Command = "/no/such" }, "does not exist"},
		"command not in PATH":    {func(s *Spec) { s.Command = "no-such-command" }, "not in the task's PATH"},
		"command not executable": {func(s *Spec) { s.Command = "/etc/passwd" }, "not executable"},
		"no such user":           {func(s *Spec) { s.User = "no-such-user" }, "no-such-user"},
		"no such directory":      {func(s *Spec) { s.Dir = "/no/such/directory" }, "no such file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec, dir := shell(t, "true"), t.TempDir()
			c.change(&spec)
			_, err := Start(within(t), dir, spec)
			must.ErrorContains(t, err, c.want)
			_, err = Attach(dir)
			must.ErrorIs(t, err, ErrNotStarted)
		})
	}
}

func TestRunsAsUser(t *testing.T) {
	asRoot(t)
	spec := shell(t, `id -u; id -g; echo $USER`)
	must.NoError(t, os.Chmod(spec.Dir, 0o755))
	must.NoError(t, os.Chmod(filepath.Dir(spec.Dir), 0o755))
	spec.User = "nobody"
	task := start(t, spec)
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.True(t, exit.Success(), must.Sprint(output(t, spec.Stderr)))
	who, err := lookUp("nobody")
	must.NoError(t, err)
	must.Eq(t, fmt.Sprintf("%d\n%d\nnobody\n", who.credential.Uid, who.credential.Gid), output(t, spec.Stdout))
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func withGroup(t *testing.T, task *Task) {
	t.Helper()
	asRoot(t)
	if len(task.State().Cgroups) == 0 {
		t.Skipf("no writable cgroups here: %s", task.State().Notes)
	}
}

func TestCgroupHoldsTheTaskAndGoes(t *testing.T) {
	spec := shell(t, `sleep 600 & echo $!; wait`)
	spec.Limits.MemoryBytes, spec.Limits.CPUShares = 512<<20, 512
	task := start(t, spec)
	withGroup(t, task)
	eventually(t, "the child runs", func() bool { return output(t, spec.Stdout) != "" })
	processes, err := task.Processes(within(t))
	must.NoError(t, err)
	must.Len(t, 2, processes)
	for _, p := range processes {
		must.True(t, inGroup(t, p.PID, spec.Name), must.Sprintf("process %v", p))
	}
	must.False(t, inGroup(t, task.State().Supervisor, spec.Name))
	stats, err := task.Stats(within(t))
	must.NoError(t, err)
	must.True(t, stats.Cgroup)
	must.Eq(t, 2, stats.Processes)
	must.NoError(t, task.Kill(within(t)))
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.Eq(t, int(syscall.SIGKILL), exit.Signal)
	must.False(t, exit.OOMKilled)
	must.NoError(t, task.Gone(within(t)))
	for _, dir := range task.State().Cgroups {
		_, err := os.Stat(dir)
		must.ErrorIs(t, err, os.ErrNotExist, must.Sprint(dir))
	}
}

func inGroup(t *testing.T, pid int, name string) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	must.NoError(t, err)
	return strings.Contains(string(text), "/muster-test/"+name)
}

func TestOnlyItsDeviceNodes(t *testing.T) {
	asRoot(t)
	// The numbers of /dev/kmsg stand for a GPU's: a driver that is certainly there, and not one of the standard ones.
	node := filepath.Join(t.TempDir(), "gpu0")
	must.NoError(t, unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 11))))
	if _, err := os.Stat("/dev/kmsg"); err != nil {
		t.Skip("no /dev/kmsg here")
	}
	script := `
		( : < "$1" ) 2>/dev/null && echo gpu
		( : < /dev/zero ) && ( : > /dev/null ) && echo standard
		exit 0`
	cases := map[string]struct {
		limits Limits
		want   string
	}{
		"everything":               {Limits{}, "gpu\nstandard\n"},
		"nothing but the standard": {Limits{RestrictDevices: true}, "standard\n"},
		"its own, by path":         {Limits{RestrictDevices: true, DeviceNodes: []string{node, node + "-missing"}}, "gpu\nstandard\n"},
		"its own, by pattern":      {Limits{RestrictDevices: true, DeviceNodeMatches: []string{filepath.Dir(node) + "/*"}}, "gpu\nstandard\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := shell(t, script, node)
			parent := spec.Limits.Parent
			spec.Limits = c.limits
			spec.Limits.Parent = parent
			task := start(t, spec)
			withGroup(t, task)
			if notes := strings.Join(task.State().Notes, "; "); strings.Contains(notes, "device nodes") {
				t.Skip(notes)
			}
			_, err := task.Wait(within(t))
			must.NoError(t, err)
			must.Eq(t, c.want, output(t, spec.Stdout))
		})
	}
}

func TestMemoryLimitKills(t *testing.T) {
	spec := shell(t, `head -c 200m /dev/zero | tail -c 190m >/dev/null; exit $?`)
	spec.Limits.MemoryBytes = 32 << 20
	task := start(t, spec)
	withGroup(t, task)
	if len(task.State().Notes) > 0 {
		t.Skip(task.State().Notes)
	}
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.True(t, exit.OOMKilled, must.Sprint(exit))
}

func TestExecJoinsTheTask(t *testing.T) {
	spec := shell(t, `sleep 600`)
	task := start(t, spec)
	read, write, err := os.Pipe()
	must.NoError(t, err)
	input, err := os.Open(os.DevNull)
	must.NoError(t, err)
	errors, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must.NoError(t, err)
	exit, err := task.Exec(within(t), []string{"sh", "-c", `echo $GREETING; pwd; cat /proc/self/cgroup; exit 4`}, [3]*os.File{input, write, errors}, false)
	must.NoError(t, err)
	must.Eq(t, 4, exit.Code)
	text, err := io.ReadAll(read)
	must.NoError(t, err)
	must.StrHasPrefix(t, "hello\n"+spec.Dir+"\n", string(text))
	if len(task.State().Cgroups) > 0 {
		must.StrContains(t, string(text), spec.Name)
	}
}

func TestOutputWithoutReaderNeverBlocksOrKills(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "log")
	must.NoError(t, unix.Mkfifo(fifo, 0o600))
	r, write, err := openRelay(fifo)
	must.NoError(t, err)
	r.patience = time.Millisecond
	go r.run()
	line := bytes.Repeat([]byte("x"), 1023)
	for range 4 << 10 { // 4 MiB, more than any pipe holds
		_, err := write.Write(append(line, '\n'))
		must.NoError(t, err)
	}
	must.Positive(t, r.unread())
	reader, err := os.Open(fifo)
	must.NoError(t, err)
	text := make(chan []byte)
	go func() { all, _ := io.ReadAll(reader); text <- all }()
	eventually(t, "the log is read", func() bool { return r.unread() == 0 })
	_, err = write.WriteString("back\n")
	must.NoError(t, err)
	must.NoError(t, write.Close())
	<-r.done
	r.close()
	got := string(<-text)
	must.True(t, strings.Contains(got, "bytes of output were dropped here"))
	must.StrHasSuffix(t, "back\n", got[len(got)-5:])
}

// startAndHang starts a task and prints the supervisor's PID, then waits to be killed.
func startAndHang(dir string) {
	spec, err := readJSON[Spec](filepath.Join(dir, "wanted.json"))
	if err == nil {
		var task *Task
		if task, err = Start(context.Background(), dir, spec); err == nil {
			fmt.Println(task.State().Supervisor)
		}
	}
	if err != nil {
		fmt.Println(err)
	}
	select {}
}

func TestOutlivesItsStarter(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "terminated": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			spec, dir := shell(t, `while [ ! -e go ]; do sleep 0.05; done; echo done; exit 5`), t.TempDir()
			must.NoError(t, writeJSON(filepath.Join(dir, "wanted.json"), spec))
			starter := exec.Command("/proc/self/exe", "start-and-hang", dir)
			starter.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stdout, err := starter.StdoutPipe()
			must.NoError(t, err)
			must.NoError(t, starter.Start())
			line := make([]byte, 64)
			n, err := stdout.Read(line)
			must.NoError(t, err)
			supervisor, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
			must.NoError(t, err, must.Sprint(string(line[:n])))
			must.NoError(t, syscall.Kill(-starter.Process.Pid, signal)) // its whole process group
			_ = starter.Wait()
			task, err := Attach(dir)
			must.NoError(t, err)
			must.Eq(t, supervisor, task.State().Supervisor)
			must.NoError(t, os.WriteFile(filepath.Join(spec.Dir, "go"), nil, 0o600))
			exit, err := task.Wait(within(t))
			must.NoError(t, err)
			must.Eq(t, 5, exit.Code)
			must.NoError(t, task.Gone(within(t)))
			must.Eq(t, "done\n", output(t, spec.Stdout))
		})
	}
}

func TestSupervisorKilled(t *testing.T) {
	spec := shell(t, `sleep 600 & setsid sleep 600 & wait`)
	task := start(t, spec)
	withGroup(t, task)
	must.NoError(t, syscall.Kill(task.State().Supervisor, syscall.SIGKILL))
	_, err := task.Wait(within(t))
	must.ErrorIs(t, err, ErrLost)
	again, err := Attach(task.dir)
	must.ErrorIs(t, err, ErrLost)
	must.NoError(t, again.Gone(within(t)))
	must.SliceEmpty(t, again.leftovers())
}

func TestOneSupervisorPerDirectory(t *testing.T) {
	task := start(t, shell(t, `sleep 600`))
	again, err := Start(within(t), task.dir, shell(t, `true`))
	must.NoError(t, err)
	must.Eq(t, task.State().Main, again.State().Main)
	log, err := os.ReadFile(filepath.Join(task.dir, logFile))
	must.NoError(t, err)
	must.StrContains(t, string(log), "the task has a supervisor already")
}

func TestAnswersAreOfThisVersion(t *testing.T) {
	task := start(t, shell(t, `sleep 600`))
	_, err := task.ask(within(t), request{Op: "juggle"}, 0)
	must.ErrorContains(t, err, "juggle")
}

func TestNewerStateIsAnErrorNotAPanic(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, stateFile), []byte(`{"version": 99, "main": "not a number"}`), 0o600))
	_, err := Attach(dir)
	must.ErrorIs(t, err, ErrNewer)
	must.False(t, errors.Is(err, ErrNotStarted))
}

func TestStateOfAnEarlierBoot(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, writeJSON(filepath.Join(dir, stateFile), State{Version: version, BootID: "earlier", Supervisor: os.Getpid(), Main: 1}))
	task, err := Attach(dir)
	must.ErrorIs(t, err, ErrLost)
	must.NoError(t, task.Gone(within(t)))
}

func TestKillWithoutTheSupervisorsHelp(t *testing.T) {
	task := start(t, shell(t, `sleep 600 & wait`))
	must.NoError(t, os.Remove(filepath.Join(task.dir, socketFile)))
	must.NoError(t, task.Kill(within(t)))
	exit, err := task.Wait(within(t))
	must.NoError(t, err)
	must.Eq(t, int(syscall.SIGKILL), exit.Signal)
	must.NoError(t, task.Gone(within(t)))
}

// A plugin that was restarted in the middle of a start finds the supervisor that is on its way.
func TestStartedTwiceAtOnce(t *testing.T) {
	spec, dir := shell(t, `sleep 600`), t.TempDir()
	type answer struct {
		task *Task
		err  error
	}
	answers := make(chan answer)
	for range 4 {
		go func() {
			task, err := Start(within(t), dir, spec)
			answers <- answer{task, err}
		}()
	}
	var tasks []*Task
	for range 4 {
		a := <-answers
		must.NoError(t, a.err)
		tasks = append(tasks, a.task)
	}
	for _, task := range tasks {
		must.Eq(t, tasks[0].State().Main, task.State().Main)
	}
	must.NoError(t, tasks[0].Kill(within(t)))
	must.NoError(t, tasks[0].Gone(within(t)))
}

// Nomad's agent is commonly protected from the kernel's out-of-memory killer, and what protects it is inherited.
func TestOutOfMemoryScoreIsNotInherited(t *testing.T) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	must.NoError(t, err)
	must.NoError(t, os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)) // to lower it takes a privilege
	t.Cleanup(func() { must.NoError(t, os.WriteFile("/proc/self/oom_score_adj", bytes.TrimSpace(own), 0)) })
	spec := shell(t, `cat /proc/self/oom_score_adj`)
	task := start(t, spec)
	_, err = task.Wait(within(t))
	must.NoError(t, err)
	must.Eq(t, "0\n", output(t, spec.Stdout))
}

// The directory of the log pipes is open to the tasks of an allocation, and the supervisor is root.
func TestOutputFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600))
	must.NoError(t, os.Symlink("secret", filepath.Join(dir, "out")))
	_, err := openLog(filepath.Join(dir, "out"))
	must.ErrorIs(t, err, syscall.ELOOP)
}

func TestASessionOfAnotherProcessIsNotOurs(t *testing.T) {
	all := []proc.Process{{PID: 7, Session: 7, StartTicks: 50}, {PID: 8, Session: 7}, {PID: 9, Session: 9}}
	must.Len(t, 2, session(all, 7, 50))
	must.SliceEmpty(t, session(all, 7, 40), must.Sprint("the PID was given out again"))
	must.Len(t, 1, session(all[1:], 7, 40), must.Sprint("the leader has ended, so its PID is still taken by its session"))
}
