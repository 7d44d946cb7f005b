// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/opencontainers/runc/libcontainer/cgroups"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// unifiedVariable makes the test binary run in a mount namespace of its own where /sys/fs/cgroup is of version 2.
const unifiedVariable = "MUSTER_TEST_UNIFIED"

// hybridMount is where a machine on version 1 has its hierarchy of version 2.
const hybridMount = "/sys/fs/cgroup/unified"

// useUnified shows this process the unified hierarchy alone.
func useUnified() {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount(hybridMount, "/sys/fs/cgroup", "", unix.MS_BIND, "")
	}
	if err != nil {
		fmt.Println("mounting the unified hierarchy:", err)
		os.Exit(1)
	}
}

// A machine on cgroup version 1 usually has the unified hierarchy as well, without controllers of CPU and memory: what
// depends on those is skipped there, the rest (membership, killing, device nodes) is real.
func TestOnTheUnifiedHierarchy(t *testing.T) {
	asRoot(t)
	if cgroups.IsCgroup2UnifiedMode() {
		t.Skip("all tests of this package run on it already")
	}
	if _, err := os.Stat(hybridMount + "/cgroup.controllers"); err != nil {
		t.Skip("this machine has no unified hierarchy")
	}
	cmd := exec.CommandContext(within(t), "/proc/self/exe", "-test.v", "-test.run",
		"^(TestExitStatusAndOutput|TestLeftBehindProcessesEnd|TestCgroupHoldsTheTaskAndGoes|TestOnlyItsDeviceNodes|TestExecJoinsTheTask|TestSupervisorKilled)$")
	cmd.Env = append(os.Environ(), unifiedVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	text, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(text)))
	must.StrNotContains(t, string(text), "--- SKIP")
	must.StrContains(t, string(text), "--- PASS: TestOnlyItsDeviceNodes/nothing_but_the_standard")
}
