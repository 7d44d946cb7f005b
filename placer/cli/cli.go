// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package cli is the muster command: one file per subcommand, each a thin reader of flags that calls the package which
// does the work and prints what it returns. It decides nothing. Only plugin/muster imports it.
package cli

import (
	"io"
	"time"

	"github.com/hashicorp/cli"

	"github.com/nomad-muster/muster/driver/version"
)

// Run runs one muster command and returns its exit code: 0 done, 1 failed, 2 refused input (validate).
func Run(args []string, stdout, stderr io.Writer) int {
	ui := &cli.BasicUi{Writer: stdout, ErrorWriter: stderr}
	return run(args, stderr, Meta{UI: ui, Open: openConsul, Now: time.Now})
}

func run(args []string, stderr io.Writer, meta Meta) int {
	c := cli.NewCLI("muster", version.String())
	c.Args = args
	c.HelpWriter = stderr
	c.ErrorWriter = stderr
	c.Commands = Commands(meta)
	code, err := c.Run()
	if err != nil {
		meta.UI.Error(err.Error())
		return 1
	}
	return code
}

// Commands is every subcommand by name.
func Commands(meta Meta) map[string]cli.CommandFactory {
	factory := func(c cli.Command) cli.CommandFactory {
		return func() (cli.Command, error) { return c, nil }
	}
	return map[string]cli.CommandFactory{
		"gang":     factory(&GangCommand{Meta: meta}),
		"gangs":    factory(&GangsCommand{Meta: meta}),
		"nodes":    factory(&NodesCommand{Meta: meta}),
		"placer":   factory(&PlacerCommand{Meta: meta}),
		"topo":     factory(&TopoCommand{Meta: meta}),
		"validate": factory(&ValidateCommand{Meta: meta}),
	}
}
