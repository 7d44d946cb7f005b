// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	psstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestParseFileReadsVariablesAsNomadDoes(t *testing.T) {
	varFile := filepath.Join(t.TempDir(), "vars.hcl")
	must.NoError(t, os.WriteFile(varFile, []byte("members = 3\ngpus = 2\n"), 0o600))
	options := Options{Env: []string{"NOMAD_VAR_gang=from-env", "NOMAD_VAR_gpus=1"}}

	_, gang, findings := ParseFile("torchrun.nomad.hcl", []string{"members=5"}, []string{varFile}, options)
	must.Eq(t, "", findings.String())
	must.Eq(t, "from-env", gang.Name)
	must.Eq(t, 5, gang.Size(), must.Sprint("-var comes before -var-file"))
	must.Eq(t, 10, gang.GPUs(), must.Sprint("-var-file comes before the environment"))
}

func TestParseFileSaysWhatIsMissing(t *testing.T) {
	cases := map[string]struct {
		path     string
		varFiles []string
		want     string
	}{
		"no such file":          {path: "testdata/none.hcl", want: "testdata/none.hcl: error: open testdata/none.hcl: no such file"},
		"no such variable file": {path: "mpi.nomad.hcl", varFiles: []string{"none.hcl"}, want: "none.hcl"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job, gang, findings := ParseFile(c.path, nil, c.varFiles)
			must.Nil(t, job)
			must.Nil(t, gang)
			must.True(t, findings.HasErrors())
			must.StrContains(t, findings.String(), c.want)
		})
	}
}

func TestGangHoldsWhatTheJobSays(t *testing.T) {
	job, gang, findings := ParseFile("testdata/gang.nomad.hcl", nil, nil)
	must.Eq(t, "", findings.String())
	must.Eq(t, "resnet50", *job.ID)
	must.Eq(t, &Gang{
		Name: "resnet50", Namespace: "default", JobID: "resnet50", JobType: "batch", Priority: 50,
		Queue: "default", NVLink: NVLinkPreferred, Locality: "rack", RelaxAfter: 10 * time.Minute,
		Groups: []Group{{
			Name: "worker", Value: "resnet50", Count: 4, Task: "train", Driver: "muster", GPUs: 8,
			KillTimeout:      30 * time.Second,
			Checkpoint:       &Checkpoint{Interval: 15 * time.Minute, Signal: "SIGUSR1", Timeout: 30 * time.Second, Path: "/mnt/ckpt"},
			CheckpointSignal: "SIGUSR1",
		}},
		Stated: []string{"locality"},
	}, gang)
}

// Children of parameterized and periodic jobs come from the API only.
func TestChildrenSayWhoseTheyAre(t *testing.T) {
	cases := map[string]struct {
		change                  func(*api.Job)
		parameterized, periodic bool
	}{
		"dispatched": {func(j *api.Job) { j.Dispatched = true }, true, false},
		"periodic":   {func(*api.Job) {}, false, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job, _, _ := ParseFile("one-gpu.nomad.hcl", nil, nil)
			parent := "one-gpu"
			job.ParentID = &parent
			c.change(job)
			gang, findings := FromJob(job)
			must.Eq(t, "", findings.String())
			must.Eq(t, parent, gang.ParentID)
			must.Eq(t, c.parameterized, gang.Parameterized)
			must.Eq(t, c.periodic, gang.Periodic)
		})
	}
}

func TestNoJobIsNoGang(t *testing.T) {
	gang, findings := FromJob(nil)
	must.Nil(t, gang)
	must.Len(t, 0, findings)
}

func TestRefusalIsOneSentence(t *testing.T) {
	job, _, _ := ParseFile("testdata/gang.nomad.hcl", nil, nil)
	job.TaskGroups[0].RestartPolicy = nil
	job.TaskGroups[0].MaxClientDisconnect = nil //nolint:staticcheck // Nomad before 1.8 knows no other
	_, findings := FromJob(job)
	must.StrHasPrefix(t, "resnet50/worker: restart attempts = 3:", findings.Refusal())
	must.StrHasSuffix(t, "(and 1 more)", findings.Refusal())
	must.Eq(t, "", Diagnostics{}.Refusal())
}

func TestDiagnosticAsJSON(t *testing.T) {
	_, _, findings := ParseFile("docker.nomad.hcl", []string{"members=2"}, nil)
	data, err := json.Marshal(findings)
	must.NoError(t, err)
	must.StrContains(t, string(data), `"severity":"warning"`)
	must.StrContains(t, string(data), `"path":"docker/container/train","range":{"file":"docker.nomad.hcl","line":`)
}

// An accepted name is one that a constraint with it can match: Nomad keeps it as a text.
func TestAcceptedNamesAreTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9._-]{1,8}(GiB|MHz|W|B)?`).Draw(t, "name")
		if CheckName(name) != nil {
			return
		}
		text, ok := psstructs.ParseAttribute(name).GetString()
		must.True(t, ok)
		must.Eq(t, name, text)
		must.False(t, strings.Contains(name, "/"))
	})
}

func TestShapeIgnoresTheOrderOfConstraints(t *testing.T) {
	model := &api.Constraint{LTarget: "${device.attr.model}", Operand: "=", RTarget: "H100"}
	memory := &api.Constraint{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "40 GiB"}
	shape := func(cs ...*api.Constraint) string {
		return (&Gang{Groups: []Group{{Name: "w", Count: 1, GPUs: 1, DeviceConstraints: cs}}}).Shape()
	}
	must.Eq(t, shape(model, memory), shape(memory, model))
	must.NotEq(t, shape(model), shape(memory))
}
