// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/nomad-muster/muster/jobspecs"
)

// ValidateCommand checks job files against the contract without submitting anything.
type ValidateCommand struct{ Meta }

// validation is what `muster validate -json` prints for each file.
type validation struct {
	File        string               `json:"file"`
	Gang        *jobspecs.Gang       `json:"gang"` // null: the job asks for no gang, or could not be read
	Summary     string               `json:"summary"`
	Diagnostics jobspecs.Diagnostics `json:"diagnostics"`
}

// Synopsis is one line for the list of commands.
func (c *ValidateCommand) Synopsis() string { return "Check job files and say what would run" }

// Help is the whole usage.
func (c *ValidateCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster validate [options] <file>...

  Reads job files as Nomad does and checks what Muster asks of a gang. Prints
  what would run, and errors and warnings with file and line. Exits with 2 if
  a file has errors.

Validate Options:

  -var 'key=value'
    Set a variable of the job file. May be given several times.

  -var-file=<path>
    Read variables from a file. May be given several times.

  -json
    Print JSON.
`)
}

// many is a flag that may be given several times.
type many []string

// String is for package flag.
func (m *many) String() string { return strings.Join(*m, ",") }

// Set adds one value.
func (m *many) Set(value string) error {
	*m = append(*m, value)
	return nil
}

// Run checks every file. Which topology levels there are only the placer's configuration knows, so any is taken.
func (c *ValidateCommand) Run(args []string) int {
	var asJSON bool
	var vars, varFiles many
	fs := c.flags("validate")
	fs.BoolVar(&asJSON, "json", false, "")
	fs.Var(&vars, "var", "")
	fs.Var(&varFiles, "var-file", "")
	if !c.parse(fs, args, c) {
		return 1
	}
	if fs.NArg() == 0 {
		c.UI.Error("this command takes one job file or more; for additional help try 'muster validate -h'")
		return 1
	}
	code := 0
	results := make([]validation, 0, fs.NArg())
	for _, file := range fs.Args() {
		v := validate(file, vars, varFiles)
		if v.Diagnostics.HasErrors() {
			code = 2
		}
		results = append(results, v)
	}
	if asJSON {
		c.printJSON(results)
		return code
	}
	for _, v := range results {
		c.UI.Output(v.text())
	}
	return code
}

func validate(file string, vars, varFiles []string) validation {
	_, gang, diagnostics := jobspecs.ParseFile(file, vars, varFiles, jobspecs.Options{Env: os.Environ()})
	v := validation{File: file, Gang: gang, Diagnostics: diagnostics}
	if v.Diagnostics == nil {
		v.Diagnostics = jobspecs.Diagnostics{}
	}
	switch {
	case gang != nil && !diagnostics.HasErrors():
		v.Summary = jobspecs.Describe(gang)
	case !diagnostics.HasErrors():
		v.Summary = "asks for no gang: an ordinary job, which Muster leaves alone"
	default:
		v.Summary = "would be refused"
	}
	return v
}

func (v validation) text() string {
	text := fmt.Sprintf("%s: %s", v.File, v.Summary)
	if len(v.Diagnostics) > 0 {
		text = strings.TrimRight(v.Diagnostics.String(), "\n") + "\n" + text
	}
	return text
}
