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
	args := []string{"job", "run", "-detach"}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		args = append(args, "-var", name+"="+vars[name])
	}
	_, err := c.NomadCommand(ctx, append(args, file)...)
	return err
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
	return c.command(ctx, c.binaries.Nomad, args)
}

// MusterCommand runs the muster command and returns what it prints.
func (c *Cluster) MusterCommand(ctx context.Context, args ...string) (string, error) {
	return c.command(ctx, c.binaries.Muster, args)
}

func (c *Cluster) command(ctx context.Context, path string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(cleanEnviron(), c.Environ()...)
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
