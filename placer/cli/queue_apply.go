// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/queues"
)

// QueueApplyCommand makes the queues of a file those of the cluster.
type QueueApplyCommand struct{ Meta }

// application is what `muster queue apply -json` prints.
type application struct {
	Changes  []string `json:"changes"`
	Warnings []string `json:"warnings"`
	Applied  bool     `json:"applied"` // false: -check, or nothing to change
}

// Synopsis is one line for the list of commands.
func (c *QueueApplyCommand) Synopsis() string { return "Apply a queue file" }

// Help is the whole usage.
func (c *QueueApplyCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster queue apply [options] <file>

  Makes the queues and the policy of a file those of the cluster, in place of all
  that were there before, and says what has changed. The placers follow at once;
  nothing is restarted, and gangs that run go on. Exits with 2 if the file has
  errors; then nothing is changed.

Apply Options:

  -check
    Only check the file and say what would change.

Ledger Options:

  -region=<name>
    The Nomad region whose ledger to use. Default: NOMAD_REGION, else global.

  -json
    Print JSON.

  Consul is found by the usual variables: CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN,
  CONSUL_CACERT and so on. The token needs to read muster/<region>/ and, without
  -check, to write muster/<region>/queues.
`)
}

// Run checks and applies the file.
func (c *QueueApplyCommand) Run(args []string) int {
	var read readFlags
	var check bool
	fs := c.flags("queue apply")
	read.add(fs)
	fs.BoolVar(&check, "check", false, "")
	if !c.parse(fs, args, c) {
		return exitFailed
	}
	if fs.NArg() != 1 {
		return c.wrongUse("queue apply", "one file")
	}
	doc, err := queues.Load(fs.Arg(0))
	if err != nil {
		c.UI.Error(err.Error())
		return exitFaultyFile
	}
	snapshot, err := c.load(read.region)
	if err == nil {
		err = readable(snapshot)
	}
	if err != nil {
		return c.fail(err)
	}
	result := application{
		Changes: append([]string{}, queues.Changes(snapshot.Queues.Doc, doc)...), Warnings: append([]string{}, warnings(snapshot, doc)...),
	}
	if !check && (len(result.Changes) > 0 || snapshot.Queues.Index == 0) {
		if err := c.apply(read.region, ledger.Versioned[ledger.Queues]{Doc: doc, Index: snapshot.Queues.Index}); err != nil {
			return c.fail(err)
		}
		result.Applied = true
	}
	if read.json {
		return c.printJSON(result)
	}
	c.UI.Output(result.text(check))
	return exitDone
}

// apply writes the queues in place of those that were read.
func (m Meta) apply(region string, q ledger.Versioned[ledger.Queues]) error {
	l, err := m.Open(region)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.Context, readTimeout)
	defer cancel()
	q.Doc.By, q.Doc.At = m.By, m.Now().UTC()
	_, err = l.PutQueues(ctx, q)
	switch {
	case errors.Is(err, ledger.ErrConflict):
		return errors.New("somebody else has applied queues meanwhile, so nothing was changed; look at the changes again with -check")
	case errors.Is(err, ledger.ErrForbidden):
		return fmt.Errorf("%w: the token must be allowed to write muster/%s/queues", err, region)
	}
	return err
}

func (a application) text(check bool) string {
	lines := slices.Clone(a.Changes)
	for _, w := range a.Warnings {
		lines = append(lines, "warning: "+w)
	}
	switch {
	case a.Applied:
		lines = append(lines, "Applied")
	case check && len(a.Changes) > 0:
		lines = append(lines, "Checked; nothing was changed")
	default:
		lines = append(lines, "Nothing to change")
	}
	return strings.Join(lines, "\n")
}

// warnings are what an operator may not have meant: quotas that the cluster can't hold, a level that it does not have, gangs
// and namespaces that are shut out.
func warnings(s ledger.Snapshot, doc ledger.Queues) []string {
	var out []string
	owed, gpus, levels := 0, 0, map[string]bool{}
	for _, n := range s.Nodes {
		gpus += len(n.Doc.Machine.GPUs) - len(n.Doc.Unmanaged)
		for level := range n.Doc.Topology {
			levels[level] = true
		}
	}
	for _, q := range doc.Queues {
		if queues.Parent(q.Name) == "" {
			owed += q.Quota
		}
		if level := q.Defaults.Locality; len(s.Nodes) > 0 && level != "" && level != jobspecs.LocalityNode && level != jobspecs.LocalityAny && !levels[level] {
			out = append(out, fmt.Sprintf("queue %s: no node has a label of the level %s, so that locality = %q has no effect if placer.hcl does not name it", q.Name, level, level))
		}
	}
	if owed > gpus {
		out = append(out, fmt.Sprintf("the quotas come to %d GPUs and the nodes have %d: not every queue can get what it is owed", owed, gpus))
	}
	return append(out, stranded(s, doc)...)
}

// stranded are gangs that will not start any more, or not again, since their queue would not take them.
func stranded(s ledger.Snapshot, doc ledger.Queues) []string {
	var out []string
	before, after := queues.New(s.Queues.Doc), queues.New(doc)
	for _, name := range slices.Sorted(maps.Keys(s.Gangs)) {
		g := s.Gangs[name].Doc
		queue := g.Spec.Queue
		if queue == before.Home(g.Namespace) {
			queue = after.Home(g.Namespace) // it moves along, unless its job names the queue
		}
		why := after.Refusal(queue, g.Namespace, g.Spec.Priority)
		if why == "" || g.State == ledger.GangFinished || g.State == ledger.GangFailed {
			continue
		}
		what := "will not start"
		if g.State != ledger.GangWaiting {
			what = "goes on, but will not start again"
		}
		out = append(out, fmt.Sprintf("gang %s %s: %s", g.Name, what, why))
	}
	return out
}
