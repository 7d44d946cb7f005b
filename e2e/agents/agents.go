// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package agents finds or builds the real Nomad and Consul agents that the end-to-end tests and the demonstration run.
// Each agent has a nested module of its own here, so that neither's dependencies meet ours; the finished binaries are
// kept in bin/ and built once, whatever number of test processes ask at the same time. Only e2e imports it.
package agents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Agent is one program that can be built: its nested module and its main package.
type Agent struct {
	Name    string // of the binary in bin/ and of the folder of its module
	Package string // main package, in the nested module's dependencies
	Env     string // variable that names a ready binary instead
}

// The two agents.
const (
	nomadName  = "nomad"
	consulName = "consul"
)

// All returns every agent.
func All() []Agent {
	return []Agent{
		{Name: nomadName, Package: "github.com/hashicorp/nomad", Env: "NOMAD_BIN"},
		{Name: consulName, Package: "github.com/hashicorp/consul", Env: "CONSUL_BIN"},
	}
}

// Nomad returns the path of a Nomad 1.6.3 agent: NOMAD_BIN, else bin/nomad, built if it is not there yet.
func Nomad(ctx context.Context) (string, error) { return find(ctx, nomadName) }

// Consul returns the path of a Consul 1.14.11 agent: CONSUL_BIN, else bin/consul, built if it is not there yet.
func Consul(ctx context.Context) (string, error) { return find(ctx, consulName) }

func find(ctx context.Context, name string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	for _, agent := range All() {
		if agent.Name == name {
			return agent.Path(ctx, filepath.Join(root, "bin"))
		}
	}
	return "", fmt.Errorf("no agent is named %q", name)
}

// Path returns the agent's binary: the one that its variable names, else the one in the folder out, which it builds
// there when it is missing (minutes the first time, then Go's build cache has it). Concurrent callers build once.
func (a Agent) Path(ctx context.Context, out string) (string, error) {
	if path := os.Getenv(a.Env); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s names no file: %w", a.Env, err)
		}
		return path, nil
	}
	path := filepath.Join(out, a.Name)
	if executable(path) {
		return path, nil
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", fmt.Errorf("folder for the %s agent: %w", a.Name, err)
	}
	unlock, err := lock(filepath.Join(out, "."+a.Name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if executable(path) { // somebody else built it while we waited
		return path, nil
	}
	return path, a.build(ctx, path)
}

// build compiles into a file beside path and renames it, so that path never names half a binary.
func (a Agent) build(ctx context.Context, path string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	part := path + ".part"
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", part, a.Package)
	cmd.Dir = filepath.Join(root, "e2e", "agents", a.Name)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building the %s agent in %s: %w; %s may name a ready binary instead", a.Name, cmd.Dir, err, a.Env)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("keeping the built %s agent: %w", a.Name, err)
	}
	return nil
}

// Root is the folder of the main module, found from the working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/nomad-muster/muster\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside Muster's source tree: no go.mod of it at or above the working directory")
		}
		dir = parent
	}
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// lock takes an exclusive file lock, which the kernel gives back if this process dies.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock for the build: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}
