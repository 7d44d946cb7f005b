// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestRights runs a gang on agents that refuse whoever lacks a right. Every part has the policies of placer/doc/policies
// and no more.
func TestRights(t *testing.T) {
	c := startCluster(t, cluster.Config{Name: "rights", Nodes: cluster.FourNodes()[:2], ACL: true})
	tell(t, c, func(s *stage) {
		waitsChecksAndFinishes(s)
		missesSubmitJob(s)
	})
}

// waitsChecksAndFinishes: a user's gang waits, says why, starts, checkpoints and finishes, and its job is over.
func waitsChecksAndFinishes(s *stage) {
	release := s.submitUntil(gang{name: "holder", count: 1, gpus: 8, nodes: "n1"})
	s.awaitWhole("holder", 1, startWithin)

	dir := s.sharedDir("rights")
	until := filepath.Join(s.sharedDir("releases"), "allowed")
	vars := map[string]string{
		"program": s.TestProgram(), "gang": "allowed", "count": "2", "gpus": "8", "checkpoint_path": dir, "checkpoint_interval": "4s",
		"args": hclList([]string{"-for", clusterLifetime.String(), "-until", until, "-checkpoint", dir}),
	}
	must.NoError(s.t, s.RunAs(s.ctx, s.User(), filepath.Join("jobs", "checkpoint.nomad.hcl"), vars))
	s.awaitState("allowed", ledger.GangWaiting, noticeWithin)
	s.awaitMessage("allowed", "The gang waits: ")
	listed, err := s.MusterAs(s.ctx, s.User(), "gangs")
	must.NoError(s.t, err)
	must.StrContains(s.t, listed, "waiting")
	release()

	s.awaitWhole("allowed", 2, startWithin+endWithin)
	s.await("a checkpoint", noticeWithin, func() (bool, string) {
		found, err := filepath.Glob(filepath.Join(dir, "*.ckpt"))
		must.NoError(s.t, err)
		return len(found) > 0, "there is none"
	})
	must.NoError(s.t, os.WriteFile(until, nil, 0o644))
	s.awaitFinished("allowed", endWithin)
	s.evaluate("allowed") // Nomad would run it again, but the placer has the right to end it
	s.awaitOver("allowed")
}

// missesSubmitJob: without the right submit-job gangs run as before, and the placer says once what is missing.
func missesSubmitJob(s *stage) {
	rules, err := cluster.Policy("nomad-placer")
	must.NoError(s.t, err)
	before, after, found := strings.Cut(rules, `"submit-job",`)
	must.True(s.t, found)
	_, err = s.Nomad.ACLPolicies().Upsert(&nomad.ACLPolicy{Name: "placer", Rules: before + after}, nil)
	must.NoError(s.t, err)

	s.submit(gang{name: "curbed", count: 2, gpus: 4, runFor: seconds(2)})
	s.awaitFinished("curbed", startWithin+endWithin)
	s.startedOnce(s.document("curbed"))
	s.evaluate("curbed")
	const lacks = "this needs the right submit-job"
	s.await("the placer to say what it lacks", noticeWithin, func() (bool, string) {
		return s.logged(lacks) > 0, "it does not"
	})
	must.Eq(s.t, 1, s.logged(lacks))
}

// evaluate makes Nomad think about a job again.
func (s *stage) evaluate(job string) {
	s.t.Helper()
	_, _, err := s.Nomad.Jobs().EvaluateWithOpts(job, nomad.EvalOptions{}, nil)
	must.NoError(s.t, err)
}

// awaitMessage waits until a job's users can read a message that begins so in Nomad itself.
func (s *stage) awaitMessage(job, begins string) {
	s.t.Helper()
	s.await(fmt.Sprintf("job %s to say %q", job, begins), noticeWithin, func() (bool, string) {
		said := s.messages(job)
		for _, message := range said {
			if strings.HasPrefix(message, begins) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("it says %q", said)
	})
}

// messages are what `nomad job scaling-events` shows of a job.
func (s *stage) messages(job string) []string {
	s.t.Helper()
	status, _, err := s.Nomad.Jobs().ScaleStatus(job, nil)
	must.NoError(s.t, err)
	var said []string
	for _, group := range status.TaskGroups {
		for _, event := range group.Events {
			said = append(said, event.Message)
		}
	}
	return said
}

// logged counts the lines of the placers' logs with a text.
func (s *stage) logged(text string) int {
	s.t.Helper()
	n := 0
	for _, placer := range s.Placers {
		lines, err := placer.Logged(text)
		must.NoError(s.t, err)
		n += lines
	}
	return n
}
