// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/engine"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/service"
)

// exitWaits is the exit code of a plan by which the gang would not start now.
const exitWaits = 3

// PlanCommand says what would become of a job file's gang, without submitting it.
type PlanCommand struct{ Meta }

// Synopsis is one line for the list of commands.
func (c *PlanCommand) Synopsis() string {
	return "Say whether a job's gang would start now, and where, or why not and when"
}

// Help is the whole usage.
func (c *PlanCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster plan [options] <file>

  Says what would become of the gang of a job file if it were submitted now: where
  it would start, or why it would wait, its place in the queue, when it is likely to
  start, and which gangs would be evicted for it. Decides by the rules of the placer
  on what the ledger and Nomad say. Submits nothing and writes nothing.

Exit Codes:

  0    The gang would start now.
  1    That could not be found out.
  2    The file has errors, as of 'muster validate', or the job would be refused.
  3    The gang would not start now.

Plan Options:

  -var 'key=value'
    Set a variable of the job file. May be given several times.

  -var-file=<path>
    Read variables from a file. May be given several times.

  Nomad is found by the usual variables: NOMAD_ADDR, NOMAD_TOKEN and so on. The
  token needs the rights of a placer to read: list-jobs and read-job in all
  namespaces, and node:read.
` + readHelp)
}

// plan is what `muster plan -json` prints.
type plan struct {
	engine.Plan
	Starts bool `json:"starts"`
}

// Run plans.
func (c *PlanCommand) Run(args []string) int {
	var read readFlags
	var vars, varFiles many
	fs := c.flags("plan")
	read.add(fs)
	fs.Var(&vars, "var", "")
	fs.Var(&varFiles, "var-file", "")
	if !c.parse(fs, args, c) {
		return exitFailed
	}
	if fs.NArg() != 1 {
		return c.wrongUse("plan", "one job file")
	}
	job, gang, diagnostics := jobspecs.ParseFile(fs.Arg(0), vars, varFiles, jobspecs.Options{Env: os.Environ()})
	if len(diagnostics) > 0 {
		c.UI.Error(strings.TrimRight(diagnostics.String(), "\n"))
	}
	switch {
	case diagnostics.HasErrors():
		return exitFaultyFile
	case gang == nil:
		return c.fail(fmt.Errorf("%s asks for no gang: it is an ordinary job; 'nomad job plan' tells about it", fs.Arg(0)))
	}
	region := cmp.Or(text(job.Region), read.region)
	p, err := c.plan(region, job)
	if err != nil {
		return c.fail(fmt.Errorf("region %s: %w", region, err))
	}
	if read.json {
		c.printJSON(plan{Plan: p, Starts: p.Starts()})
	} else {
		c.UI.Output(planText(p, jobspecs.Describe(gang), c.Now()))
	}
	switch {
	case p.Refused != nil:
		return exitFaultyFile
	case !p.Starts():
		return exitWaits
	}
	return exitDone
}

func (c *PlanCommand) plan(region string, job *nomad.Job) (engine.Plan, error) {
	client, err := c.Nomad(region)
	if err != nil {
		return engine.Plan{}, err
	}
	book, err := c.Open(region)
	if err != nil {
		return engine.Plan{}, err
	}
	if job.Namespace == nil {
		job.Namespace = new(cmp.Or(os.Getenv("NOMAD_NAMESPACE"), nomad.DefaultNamespace))
	}
	ctx, cancel := context.WithTimeout(c.Context, readTimeout)
	defer cancel()
	return service.Plan(ctx, book, client, job, c.Now())
}

// planText says in words what would become of a gang.
func planText(p engine.Plan, describe string, now time.Time) string {
	g := p.Gang
	rows := [][]string{{"Gang", "= " + g.Name}, {"Asks for", "= " + describe}, {"Queue", "= " + g.Spec.Queue}}
	say := func(key, text string) { rows = append(rows, []string{key, "= " + text}) }
	switch {
	case p.Refused != nil:
		say("Answer", "it would be refused: "+p.Refused.Text)
	case p.Starts():
		say("Answer", "it would start now")
		say("Where", placesText(*g.Reservation))
	case g.State != ledger.GangWaiting:
		say("Answer", fmt.Sprintf("it is %s already; 'muster gang %s' tells more", g.State, g.Name))
	default:
		say("Answer", "it would wait: "+g.Why.Text)
		rows = append(rows, planRows(p, now)...)
	}
	return table(rows)
}

// planRows are what can be said of the wait.
func planRows(p engine.Plan, now time.Time) [][]string {
	var rows [][]string
	if p.Cause != model.CauseOwn {
		rows = append(rows, []string{"Cause", "= " + string(p.Cause)})
	}
	g := p.Gang
	g.Delay = ledger.Delay{}
	rows = append(rows, outlookRows(g, now)...)
	if n := len(p.Evicts); n > 0 {
		rows = append(rows, []string{"Evicts", fmt.Sprintf("= %s: %s", countOf(n, "gang"), namesText(p.Evicts, 0))})
	}
	return rows
}
