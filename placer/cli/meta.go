// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/cli"
	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/placer/ledger"
)

// readTimeout bounds one read of the ledger: a command that a person waits for must end.
const readTimeout = 15 * time.Second

// Meta is what every command has: where it prints, how it opens the ledger and the Nomad of a region, the clock that ages
// are shown by, and who runs it.
type Meta struct {
	UI             cli.Ui
	Stdout, Stderr io.Writer // for what tasks print, as it is
	Open           func(region string) (*ledger.Ledger, error)
	Nomad          func(region string) (*nomad.Client, error)
	Now            func() time.Time
	Context        context.Context //nolint:containedctx // ends when the user interrupts the one command of this process
	By             string          // who orders, for people
	Terminal       func() bool     // whether somebody can be asked
}

// openConsul opens the ledger at the Consul agent that the CONSUL_* variables name (127.0.0.1:8500 without them).
func openConsul(region string) (*ledger.Ledger, error) {
	client, err := consul.NewClient(consul.DefaultConfig())
	if err != nil {
		return nil, fmt.Errorf("Consul's client: %w; check the CONSUL_* variables", err) //nolint:staticcheck // Consul is a name
	}
	return ledger.New(ledger.NewConsul(client), region), nil
}

// openNomad makes a client of the Nomad agent that the NOMAD_* variables name.
func openNomad(region string) (*nomad.Client, error) {
	config := nomad.DefaultConfig()
	config.Region = region
	client, err := nomad.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("Nomad's client: %w; check the NOMAD_* variables", err) //nolint:staticcheck // Nomad is a name
	}
	return client, nil
}

// operator is who runs this command, as the system knows.
func operator() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// isTerminal says whether a file is a terminal, so that somebody can be asked.
func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
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
	addRegion(fs, &f.region)
	fs.BoolVar(&f.json, "json", false, "")
}

// addRegion adds the flag of every command that uses a ledger.
func addRegion(fs *flag.FlagSet, region *string) {
	fs.StringVar(region, "region", cmp.Or(os.Getenv("NOMAD_REGION"), "global"), "")
}

// wrongUse says how a command is used.
func (m Meta) wrongUse(name, takes string) int {
	m.UI.Error(fmt.Sprintf("this command takes %s; for additional help try 'muster %s -h'", takes, name))
	return exitFailed
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
func (m Meta) show(name string, command cli.Command, args []string, count int, look func(s ledger.Snapshot, region string, names []string) (view, error)) int {
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
		return m.wrongUse(name, takes)
	}
	snapshot, err := m.load(read.region)
	if err != nil {
		return m.fail(err)
	}
	v, err := look(snapshot, read.region, fs.Args())
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
	ctx, cancel := context.WithTimeout(m.Context, readTimeout)
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
	if m.Context != nil && m.Context.Err() != nil {
		return exitInterrupted
	}
	return exitFailed
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
