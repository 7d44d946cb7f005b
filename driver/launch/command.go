// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// findCommand resolves a command the way a shell in the working directory would: a name with a slash against the
// directory, any other along the task's own PATH.
func findCommand(command string, spec Spec) (string, error) {
	dir, path := spec.Dir, searchPath(spec)
	if strings.Contains(command, "/") {
		full := command
		if !filepath.IsAbs(full) {
			full = filepath.Join(dir, full)
		}
		return full, executable(full)
	}
	for _, entry := range filepath.SplitList(path) {
		if !filepath.IsAbs(entry) {
			entry = filepath.Join(dir, entry)
		}
		full := filepath.Join(entry, command)
		if executable(full) == nil {
			return full, nil
		}
	}
	return "", fmt.Errorf("command %q is not in the task's PATH (%s)", command, path)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("command %s does not exist", path)
	case err != nil:
		return fmt.Errorf("command %s: %w", path, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("command %s is not executable", path)
	}
	return nil
}

// defaultPath serves tasks whose environment has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func searchPath(spec Spec) string {
	if path := spec.Env["PATH"]; path != "" {
		return path
	}
	return defaultPath
}

// environment is the task's environment as a list, sorted. HOME, USER and LOGNAME become the account's where they are
// missing or still the agent's, which Nomad passes on; an account without a home gets the working directory.
func environment(spec Spec, who account) []string {
	all := maps.Clone(spec.Env)
	if all == nil {
		all = map[string]string{}
	}
	all["PATH"] = searchPath(spec)
	if who.credential != nil {
		home := who.home
		if info, err := os.Stat(home); err != nil || !info.IsDir() {
			home = spec.Dir
		}
		replaceOwn(all, who.name, home)
	}
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// replaceOwn replaces what the agent's own account has left in an environment.
func replaceOwn(env map[string]string, name, home string) {
	self, err := user.Current()
	if err != nil {
		self = &user.User{}
	}
	for variable, values := range map[string][2]string{
		"HOME": {self.HomeDir, home}, "USER": {self.Username, name}, "LOGNAME": {self.Username, name},
	} {
		if env[variable] == "" || env[variable] == values[0] {
			env[variable] = values[1]
		}
	}
}

// attributes is how every command of the task starts: in a session of its own, as the account, with three streams.
func attributes(spec Spec, who account, env []string, streams [3]*os.File, terminal bool) *syscall.ProcAttr {
	return &syscall.ProcAttr{
		Dir:   spec.Dir,
		Env:   env,
		Files: []uintptr{streams[0].Fd(), streams[1].Fd(), streams[2].Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: terminal, Ctty: 0, Credential: who.credential},
	}
}

func signalName(signal int) string {
	if name := unix.SignalName(unix.Signal(signal)); name != "" {
		return name
	}
	return "unknown"
}
