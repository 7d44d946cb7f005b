// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package cli is the muster command: one file per subcommand, each a thin reader of flags that calls the package which
// does the work and prints what it returns. It decides nothing. Only plugin/muster imports it.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/cli"

	"github.com/nomad-muster/muster/driver/version"
)

// The exit codes of all commands.
const (
	exitDone        = 0
	exitFailed      = 1
	exitFaultyFile  = 2   // a job file or a queue file has errors
	exitInterrupted = 130 // as of any program that Ctrl-C has ended
)

// Run runs one muster command and returns its exit code: 0 done, 1 failed, 2 a file has errors, 130 interrupted.
func Run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	ui := &cli.BasicUi{Reader: stdin, Writer: stdout, ErrorWriter: stderr}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(args, stderr, Meta{
		UI: ui, Stdout: stdout, Stderr: stderr, Open: openConsul, Nomad: openNomad, Now: time.Now, Context: ctx,
		By: operator(), Terminal: func() bool { return isTerminal(stdin) },
	})
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
		"gang":        factory(&GangCommand{Meta: meta}),
		"gangs":       factory(&GangsCommand{Meta: meta}),
		"nodes":       factory(&NodesCommand{Meta: meta}),
		"placer":      factory(&PlacerCommand{Meta: meta}),
		"plan":        factory(&PlanCommand{Meta: meta}),
		"preempt":     factory(&PreemptCommand{Meta: meta}),
		"queue apply": factory(&QueueApplyCommand{Meta: meta}),
		"queue list":  factory(&QueueListCommand{Meta: meta}),
		"queue show":  factory(&QueueShowCommand{Meta: meta}),
		"release":     factory(&ReleaseCommand{Meta: meta}),
		"replay":      factory(&ReplayCommand{Meta: meta}),
		"run":         factory(&RunCommand{Meta: meta}),
		"set":         factory(&SetCommand{Meta: meta}),
		"status":      factory(&StatusCommand{Meta: meta}),
		"topo":        factory(&TopoCommand{Meta: meta}),
		"validate":    factory(&ValidateCommand{Meta: meta}),
	}
}
