// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
		everyRightIsUsed(s)
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

// everyRightIsUsed: what the placer and the device plugins ask of Nomad works with their policies, and each right that is
// taken out ends some of it.
func everyRightIsUsed(s *stage) {
	release := s.submitUntil(gang{name: "probe", count: 1, gpus: 1, more: map[string]string{"driver": "raw_exec"}})
	s.awaitWhole("probe", 1, startWithin)
	alloc := slices.Collect(maps.Keys(s.awaitKnown("probe", 1)))[0]
	node := s.nodeIDOf(alloc)
	job, _, err := s.Nomad.Jobs().Info("probe", nil)
	must.NoError(s.t, err)
	const all = "*" // namespaces
	placer := map[string]func(c *nomad.Client) error{
		`"list-jobs",`: func(c *nomad.Client) error {
			jobs, _, err := c.Jobs().List(&nomad.QueryOptions{Namespace: all})
			return someOf(jobs, err)
		},
		`"read-job",`: func(c *nomad.Client) error {
			allocs, _, err := c.Allocations().List(&nomad.QueryOptions{Namespace: all})
			_, _, infoErr := c.Jobs().Info("probe", nil)
			return errors.Join(someOf(allocs, err), infoErr)
		},
		`"scale-job",`: func(c *nomad.Client) error {
			_, _, err := c.Jobs().Scale("probe", "worker", nil, "a message", false, nil, nil)
			return err
		},
		`"alloc-lifecycle",`: func(c *nomad.Client) error {
			return c.Allocations().Signal(&nomad.Allocation{ID: alloc, NodeID: node}, nil, "train", "SIGCONT")
		},
		`"submit-job",`: func(c *nomad.Client) error {
			_, _, err := c.Jobs().Register(job, nil)
			return err
		},
		"node {\n  policy = \"read\"": func(c *nomad.Client) error {
			nodes, _, err := c.Nodes().List(nil)
			return someOf(nodes, err)
		},
	}
	s.checkRights("nomad-placer", placer)
	s.checkRights("nomad-device", map[string]func(c *nomad.Client) error{
		`"read-job"`: func(c *nomad.Client) error {
			allocs, _, err := c.Nodes().Allocations(node, nil)
			return someOf(allocs, err)
		},
		"node {\n  policy = \"read\"": func(c *nomad.Client) error {
			_, _, err := c.Nodes().Allocations(node, nil)
			return err
		},
		"agent {\n  policy = \"read\"": func(c *nomad.Client) error {
			_, err := c.Agent().Self()
			return err
		},
	})
	release()
	s.awaitOver("probe")
	must.NoError(s.t, s.StopJob(s.ctx, "probe", true)) // what is said later is said once for each job
}

// someOf is an error where nothing is listed: Nomad leaves out what its reader may not see.
func someOf[T any](list []T, err error) error {
	if err == nil && len(list) == 0 {
		return errors.New("nothing is listed")
	}
	return err
}

func (s *stage) nodeIDOf(alloc string) string {
	s.t.Helper()
	info, _, err := s.Nomad.Allocations().Info(alloc, nil)
	must.NoError(s.t, err)
	return info.NodeID
}

// checkRights tries requests with a policy, and each once more when the right that it is listed with is taken out.
func (s *stage) checkRights(policy string, requests map[string]func(c *nomad.Client) error) {
	s.t.Helper()
	rules, err := cluster.Policy(policy)
	must.NoError(s.t, err)
	for right, request := range requests {
		enough := rules
		if right == `"scale-job",` { // in Nomad who may submit a job may scale it as well
			enough = strings.Replace(rules, `"submit-job",`, "", 1)
		}
		must.StrContains(s.t, enough, right)
		must.NoError(s.t, request(s.clientWith(policy, enough)), must.Sprintf("with %s", policy))
		less := strings.Replace(enough, right, "", 1)
		if strings.HasSuffix(right, `policy = "read"`) {
			less = strings.Replace(enough, right, strings.Replace(right, "read", "deny", 1), 1)
		}
		must.Error(s.t, request(s.clientWith(policy+"-less", less)), must.Sprintf("without %s of %s", right, policy))
	}
}

// clientWith is a client of Nomad that may do what some rules say.
func (s *stage) clientWith(name, rules string) *nomad.Client {
	s.t.Helper()
	name = fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	_, err := s.Nomad.ACLPolicies().Upsert(&nomad.ACLPolicy{Name: name, Rules: rules}, nil)
	must.NoError(s.t, err)
	token, _, err := s.Nomad.ACLTokens().Create(&nomad.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
	must.NoError(s.t, err)
	client, err := nomad.NewClient(&nomad.Config{Address: s.Nomad.Address(), Region: cluster.Region, SecretID: token.SecretID})
	must.NoError(s.t, err)
	return client
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
	for _, job := range []string{"holder", "allowed", "curbed"} { // whichever Nomad would run again
		said := s.logged("job=" + job + ` namespace=default change=stop error="` + lacks)
		must.LessEq(s.t, 1, said, must.Sprintf("it is said once of job %s", job))
	}
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
