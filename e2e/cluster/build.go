// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nomad-muster/muster/e2e/agents"
	"github.com/nomad-muster/muster/e2e/fakenvml"
)

// Binaries are the programs that a cluster consists of.
type Binaries struct {
	Nomad        string
	Consul       string
	Muster       string // placer and command line
	DevicePlugin string
	DriverPlugin string
	TestProgram  string // e2e/testprog
	Guard        string // e2e/leftover/cmd/leftover-guard
	NVML         string // the stand-in for libnvidia-ml.so.1
}

// Build makes every program from the source tree, as far as Go's build cache does not have it already.
func Build(ctx context.Context) (Binaries, error) {
	root, err := agents.Root()
	if err != nil {
		return Binaries{}, err
	}
	bin := filepath.Join(root, "bin")
	b := Binaries{
		Muster:       filepath.Join(bin, "muster"),
		DevicePlugin: filepath.Join(bin, "plugins", "nomad-device-muster"),
		DriverPlugin: filepath.Join(bin, "plugins", "nomad-driver-muster"),
		TestProgram:  filepath.Join(bin, "e2e", "testprog"),
		Guard:        filepath.Join(bin, "e2e", "leftover-guard"),
	}
	if b.Nomad, err = agents.Nomad(ctx); err != nil {
		return Binaries{}, err
	}
	if b.Consul, err = agents.Consul(ctx); err != nil {
		return Binaries{}, err
	}
	for out, packages := range map[string][]string{
		"":        {"./plugin/muster"},
		"plugins": {"./plugin/nomad-device-muster", "./plugin/nomad-driver-muster"},
		"e2e":     {"./e2e/testprog", "./e2e/leftover/cmd/leftover-guard"},
	} {
		if err := goBuild(ctx, root, filepath.Join(bin, out), packages); err != nil {
			return Binaries{}, err
		}
	}
	if b.NVML, err = fakenvml.Build(ctx, filepath.Join(bin, "e2e")); err != nil {
		return Binaries{}, fmt.Errorf("building the stand-in for NVML: %w", err)
	}
	return b, nil
}

func goBuild(ctx context.Context, root, out string, packages []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("folder for binaries: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-o", out + "/"}, packages...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %v: %w\n%s", packages, err, output)
	}
	return nil
}
