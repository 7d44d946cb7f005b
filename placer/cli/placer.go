// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"

	"github.com/nomad-muster/muster/placer/config"
	"github.com/nomad-muster/muster/placer/service"
)

// PlacerCommand runs the placer service until it is told to stop.
type PlacerCommand struct{ Meta }

// Synopsis is one line for the list of commands.
func (c *PlacerCommand) Synopsis() string { return "Run the placer" }

// Help is the whole usage.
func (c *PlacerCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster placer [options]

  Runs the placer: it watches Nomad for jobs that ask for a gang, decides which
  may start and where, and reserves whole gangs in Consul. Run two or more; one
  leads, another takes over within seconds. Stops on SIGINT and SIGTERM.

Placer Options:

  -config=<path>
    The configuration file. Without one every option has its default.

  -region=<name>           Overrides region.
  -name=<name>             Overrides name.
  -log-level=<level>       Overrides log_level.
  -consul-address=<addr>   Overrides consul.address and CONSUL_HTTP_ADDR.
  -nomad-address=<addr>    Overrides nomad.address and NOMAD_ADDR.
`)
}

// Run runs the placer.
func (c *PlacerCommand) Run(args []string) int {
	fs := c.flags("placer")
	path := fs.String("config", "", "")
	var flags config.Flags
	flags.Register(fs)
	if !c.parse(fs, args, c) {
		return 1
	}
	conf, err := placerConfig(*path, flags)
	if err != nil {
		return c.fail(err)
	}
	level, err := conf.Level()
	if err != nil {
		return c.fail(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := service.Run(c.Context, conf, log); err != nil && !errors.Is(err, context.Canceled) {
		return c.fail(err)
	}
	return 0
}

// placerConfig reads the file and lays the environment and the flags over it.
func placerConfig(path string, flags config.Flags) (config.Config, error) {
	conf, err := config.Load(path)
	if err != nil {
		return config.Config{}, err
	}
	conf = flags.Apply(conf.Environ(os.LookupEnv))
	return conf, conf.Validate()
}
