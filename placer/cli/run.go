// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
)

// mostSource is the size in bytes of a job file that Nomad keeps beside the job.
const mostSource = 1 << 20

// RunCommand submits a job and stays with its gang until it is done.
type RunCommand struct{ Meta }

// Synopsis is one line for the list of commands.
func (c *RunCommand) Synopsis() string { return "Submit a job and follow its gang to the end" }

// Help is the whole usage.
func (c *RunCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster run [options] <file>
       muster run -follow [options] <gang>

  Submits a job file to Nomad, says why its gang waits, where it was placed and
  how it ends, and prints what rank 0 prints, across new starts. The words of
  muster go to standard error, so that standard output is the task's own.

  Ctrl-C leaves the gang alone and says how to stop it and how to follow it again.

  'nomad job run' on a gang that has to wait says "failed to place" and exits with
  2, since nothing was placed yet; with -detach it hands the job over and exits with 0.

Exit Codes:

  0    The gang has finished, or was handed over (-detach).
  1    It failed, was refused, or its job was stopped; or the job could not be
       submitted.
  2    The file has errors, as of 'muster validate'; nothing was submitted.
  130  Ctrl-C; the gang goes on.

Run Options:

  -var 'key=value'
    Set a variable of the job file. May be given several times.

  -var-file=<path>
    Read variables from a file. May be given several times.

  -detach
    Submit and return.

  -follow
    Submit nothing: follow a gang that is there.

  -all
    Print what all ranks print, each line after its [rank].

  -region=<name>
    The Nomad region. Default: NOMAD_REGION, else global. A region in the job file
    comes before all of these, as with 'nomad job run'.

  Nomad is found by the usual variables: NOMAD_ADDR, NOMAD_TOKEN and so on. The
  token needs submit-job, read-job and read-logs in the job's namespace. Consul is
  found by CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN and so on; that token needs to read
  muster/<region>/. CONSUL_HTTP_TOKEN and VAULT_TOKEN go to Nomad with the job, as
  with 'nomad job run'.
`)
}

// runOptions are what the flags say.
type runOptions struct {
	region                  string
	vars, varFiles          many
	detach, follow, allLogs bool
}

// Run submits and follows.
func (c *RunCommand) Run(args []string) int {
	var o runOptions
	fs := c.flags("run")
	addRegion(fs, &o.region)
	fs.Var(&o.vars, "var", "")
	fs.Var(&o.varFiles, "var-file", "")
	fs.BoolVar(&o.detach, "detach", false, "")
	fs.BoolVar(&o.follow, "follow", false, "")
	fs.BoolVar(&o.allLogs, "all", false, "")
	if !c.parse(fs, args, c) {
		return exitFailed
	}
	switch {
	case fs.NArg() != 1 && o.follow:
		return c.wrongUse("run", "one gang with -follow")
	case fs.NArg() != 1:
		return c.wrongUse("run", "one job file")
	case o.follow && (o.detach || len(o.vars)+len(o.varFiles) > 0):
		return c.wrongUse("run", "no options for a file with -follow")
	case o.follow:
		return c.runFollow(fs.Arg(0), o)
	}
	return c.runFile(fs.Arg(0), o)
}

// say prints a line of muster's own, with the time.
func (m Meta) say(format string, args ...any) {
	m.UI.Error(fmt.Sprintf("[muster %s] ", m.Now().Format(time.TimeOnly)) + fmt.Sprintf(format, args...))
}

// runFile submits a file's job and follows its gang.
func (c *RunCommand) runFile(file string, o runOptions) int {
	job, gang, diagnostics := jobspecs.ParseFile(file, o.vars, o.varFiles, jobspecs.Options{Env: os.Environ()})
	if len(diagnostics) > 0 {
		c.UI.Error(strings.TrimRight(diagnostics.String(), "\n"))
	}
	switch {
	case diagnostics.HasErrors():
		return exitFaultyFile
	case gang == nil:
		return c.fail(fmt.Errorf("%s asks for no gang: it is an ordinary job; submit it with 'nomad job run'", file))
	}
	region := cmp.Or(text(job.Region), o.region)
	client, err := c.Nomad(region)
	if err != nil {
		return c.fail(err)
	}
	seen, err := c.submit(client, job, file, o)
	if err != nil {
		return c.fail(err)
	}
	f := follower{
		Meta: c.Meta, nomad: client, gang: gang.Name, all: o.allLogs,
		job: jobRef{namespace: *seen.Namespace, id: *seen.ID, createIndex: *seen.CreateIndex, version: *seen.Version},
	}
	c.say("submitted job %s (version %d): %s", f.job, f.job.version, jobspecs.Describe(gang))
	switch {
	case o.detach:
		c.say("to follow it: muster run -follow %s", f.gang)
		return exitDone
	case gang.Parameterized || gang.Periodic:
		c.say("it runs when it is dispatched or its time has come; 'muster gangs' shows its gangs")
		return exitDone
	}
	if f.ledger, err = c.Open(region); err != nil {
		return c.fail(err)
	}
	return f.follow(c.Context)
}

// submit registers a job and reads it back, for its version.
func (c *RunCommand) submit(client *nomad.Client, job *nomad.Job, file string, o runOptions) (*nomad.Job, error) {
	if job.Namespace == nil {
		job.Namespace = new(cmp.Or(os.Getenv("NOMAD_NAMESPACE"), nomad.DefaultNamespace))
	}
	ctx, cancel := context.WithTimeout(c.Context, readTimeout)
	defer cancel()
	write := (&nomad.WriteOptions{Namespace: *job.Namespace}).WithContext(ctx)
	var answer nomad.JobRegisterResponse
	if _, err := client.Raw().Write("/v1/jobs", newRegistration(job, submission(file, o)), &answer, write); err != nil {
		return nil, fmt.Errorf("submitting job %s: %w", text(job.ID), err)
	}
	if answer.Warnings != "" {
		c.say("Nomad warns: %s", strings.TrimSpace(answer.Warnings))
	}
	read := (&nomad.QueryOptions{Namespace: *job.Namespace}).WithContext(ctx)
	seen, _, err := client.Jobs().Info(*job.ID, read)
	if err != nil {
		return nil, fmt.Errorf("job %s was submitted, but can't be read back: %w", *job.ID, err)
	}
	return seen, nil
}

// registration is Nomad's request with the tokens of whoever submits the job, by which Nomad before 1.10 checks what the
// job wants of Consul and Vault. Nomad's own client has them no more.
type registration struct {
	nomad.JobRegisterRequest

	Job struct {
		*nomad.Job

		ConsulToken, VaultToken string `json:",omitempty"`
	}
}

func newRegistration(job *nomad.Job, submission *nomad.JobSubmission) (r registration) {
	r.Submission, r.Job.Job = submission, job
	r.Job.ConsulToken, r.Job.VaultToken = os.Getenv("CONSUL_HTTP_TOKEN"), os.Getenv("VAULT_TOKEN")
	return r
}

// submission is the text that Nomad keeps beside the job, for its UI; nil where it is too long or can't be read again.
func submission(file string, o runOptions) *nomad.JobSubmission {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	s := &nomad.JobSubmission{Source: string(source), Format: "hcl2", VariableFlags: map[string]string{}}
	for _, pair := range o.vars {
		name, value, _ := strings.Cut(pair, "=")
		s.VariableFlags[name] = value
	}
	for _, path := range o.varFiles {
		variables, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		s.Variables += string(variables) + "\n"
	}
	if len(s.Source)+len(s.Variables) > mostSource {
		return nil
	}
	return s
}

// runFollow follows a gang that is in the ledger already.
func (c *RunCommand) runFollow(name string, o runOptions) int {
	client, err := c.Nomad(o.region)
	if err != nil {
		return c.fail(err)
	}
	l, err := c.Open(o.region)
	if err != nil {
		return c.fail(err)
	}
	g, err := c.gang(l, name)
	if err != nil {
		return c.fail(err)
	}
	f := follower{Meta: c.Meta, nomad: client, ledger: l, gang: name, all: o.allLogs, job: refOf(g)}
	return f.follow(c.Context)
}

// jobRef is the job that a gang is followed for.
type jobRef struct {
	namespace, id string
	createIndex   uint64
	version       uint64 // the one that was submitted; older ones are not waited for
}

func refOf(g ledger.Gang) jobRef {
	return jobRef{namespace: g.Namespace, id: g.Job, createIndex: g.CreateIndex, version: g.JobVersion}
}

// String is the job as people write it.
func (j jobRef) String() string { return jobName(j.namespace, j.id) }

// stopCommand is what ends the job.
func (j jobRef) stopCommand() string {
	if j.namespace == nomad.DefaultNamespace {
		return "nomad job stop " + j.id
	}
	return fmt.Sprintf("nomad job stop -namespace %s %s", j.namespace, j.id)
}

// owns says whether a gang's document is this job's, of this version or a later one.
func (j jobRef) owns(g ledger.Gang) bool {
	return g.Namespace == j.namespace && g.Job == j.id && g.CreateIndex == j.createIndex && g.JobVersion >= j.version
}

// text is a text that may be missing.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// isNotFound says whether Nomad does not know what it was asked for.
func isNotFound(err error) bool {
	var answer nomad.UnexpectedResponseError
	return errors.As(err, &answer) && answer.StatusCode() == 404
}
