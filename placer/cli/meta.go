// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/cli"
	consul "github.com/hashicorp/consul/api"

	"github.com/nomad-muster/muster/placer/ledger"
)

// readTimeout bounds one read of the ledger: a command that a person waits for must end.
const readTimeout = 15 * time.Second

// Meta is what every command has: where it prints, how it opens the ledger of a region, and the clock that ages are
// shown by.
type Meta struct {
	UI   cli.Ui
	Open func(region string) (*ledger.Ledger, error)
	Now  func() time.Time
}

// openConsul opens the ledger at the Consul agent that the CONSUL_* variables name (127.0.0.1:8500 without them).
func openConsul(region string) (*ledger.Ledger, error) {
	client, err := consul.NewClient(consul.DefaultConfig())
	if err != nil {
		return nil, fmt.Errorf("Consul's client: %w; check the CONSUL_* variables", err) //nolint:staticcheck // Consul is a name
	}
	return ledger.New(ledger.NewConsul(client), region), nil
}

// readFlags are the flags of every command that reads the ledger.
type readFlags struct {
	region string
	json   bool
}

// flags makes a flag set that prints usage itself, so that errors look alike in all commands.
func (m Meta) flags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

func (f *readFlags) add(fs *flag.FlagSet) {
	region := os.Getenv("NOMAD_REGION")
	if region == "" {
		region = "global"
	}
	fs.StringVar(&f.region, "region", region, "")
	fs.BoolVar(&f.json, "json", false, "")
}

const readHelp = `
Ledger Options:

  -region=<name>
    The Nomad region whose ledger to read. Default: NOMAD_REGION, else global.

  -json
    Print the documents as JSON.

  Consul is found by the usual variables: CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN,
  CONSUL_CACERT and so on.
`

// view is what a read command prints: itself as JSON, or its text for people.
type view interface {
	text(now time.Time) string
}

// show runs a command that reads the ledger once and prints what look makes of it. It takes one
// name as argument, or none.
func (m Meta) show(name string, command cli.Command, args []string, count int, look func(ledger.Snapshot, []string) (view, error)) int {
	var read readFlags
	fs := m.flags(name)
	read.add(fs)
	if !m.parse(fs, args, command) {
		return 1
	}
	if fs.NArg() != count {
		takes := "no arguments"
		if count == 1 {
			takes = "one name"
		}
		m.UI.Error(fmt.Sprintf("this command takes %s; for additional help try 'muster %s -h'", takes, name))
		return 1
	}
	snapshot, err := m.load(read.region)
	if err != nil {
		return m.fail(err)
	}
	v, err := look(snapshot, fs.Args())
	switch {
	case err != nil:
		return m.fail(fmt.Errorf("region %s: %w", read.region, err))
	case read.json:
		return m.printJSON(v)
	}
	m.UI.Output(v.text(m.Now()))
	return 0
}

// load reads the whole ledger once.
func (m Meta) load(region string) (ledger.Snapshot, error) {
	l, err := m.Open(region)
	if err != nil {
		return ledger.Snapshot{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	snapshot, err := l.Load(ctx)
	if err != nil {
		return ledger.Snapshot{}, fmt.Errorf("reading the ledger of region %s: %w", region, err)
	}
	return snapshot, nil
}

// parse reads flags and says what is wrong in words.
func (m Meta) parse(fs *flag.FlagSet, args []string, command cli.Command) bool {
	err := fs.Parse(args)
	if err == nil {
		return true
	}
	if errors.Is(err, flag.ErrHelp) {
		m.UI.Output(command.Help())
	} else {
		m.UI.Error(fmt.Sprintf("%s; for additional help try 'muster %s -h'", err, fs.Name()))
	}
	return false
}

// fail prints an error and gives the exit code for it.
func (m Meta) fail(err error) int {
	m.UI.Error("Error: " + err.Error())
	return 1
}

// printJSON prints a value for programs.
func (m Meta) printJSON(value any) int {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return m.fail(err)
	}
	m.UI.Output(string(text))
	return 0
}

// table aligns rows of cells; the first row is the heading.
func table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}
