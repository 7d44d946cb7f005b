// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/placer/ledger"
)

// Run submits a job as a user does: nomad job run -detach with HCL variables.
func (c *Cluster) Run(ctx context.Context, file string, vars map[string]string) error {
	return c.RunAs(ctx, c.tokens.management, file, vars)
}

func runArgs(vars map[string]string) []string {
	args := []string{"job", "run", "-detach"}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		args = append(args, "-var", name+"="+vars[name])
	}
	return args
}

// StopJob stops a job as a user does, and makes Nomad forget it if purge says so.
func (c *Cluster) StopJob(ctx context.Context, job string, purge bool) error {
	args := []string{"job", "stop", "-detach", "-yes"}
	if purge {
		args = append(args, "-purge")
	}
	_, err := c.NomadCommand(ctx, append(args, job)...)
	return err
}

// NomadCommand runs the nomad command and returns what it prints.
func (c *Cluster) NomadCommand(ctx context.Context, args ...string) (string, error) {
	return c.command(ctx, c.tokens.management, c.binaries.Nomad, args)
}

// RunAs submits a job as Run does, with another token.
func (c *Cluster) RunAs(ctx context.Context, who Token, file string, vars map[string]string) error {
	_, err := c.command(ctx, who, c.binaries.Nomad, append(runArgs(vars), file))
	return err
}

// MusterAs runs the muster command with another token.
func (c *Cluster) MusterAs(ctx context.Context, who Token, args ...string) (string, error) {
	return c.command(ctx, who, c.binaries.Muster, args)
}

// MusterCommand runs the muster command and returns what it prints.
func (c *Cluster) MusterCommand(ctx context.Context, args ...string) (string, error) {
	return c.MusterAs(ctx, c.tokens.management, args...)
}

func (c *Cluster) command(ctx context.Context, who Token, path string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = slices.Concat(cleanEnviron(), c.Environ(), who.Environ())
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, output)
	}
	return string(output), nil
}

// Environ is what makes the nomad, consul and muster commands talk to this cluster.
func (c *Cluster) Environ() []string {
	return []string{"NOMAD_ADDR=" + c.nomadAddr, "CONSUL_HTTP_ADDR=" + c.consulAddr}
}

// Gang reads a gang's document.
func (c *Cluster) Gang(ctx context.Context, name string) (ledger.Gang, error) {
	gang, err := c.Ledger.GetGang(ctx, name)
	return gang.Doc, err
}

// ConsulURL is the address of Consul's API.
func (c *Cluster) ConsulURL() string { return "http://" + c.consulAddr }

// NomadRPC is where Nomad's server takes RPC, host:port.
func (c *Cluster) NomadRPC() string { return c.nomadRPC }
