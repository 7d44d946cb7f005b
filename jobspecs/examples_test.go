// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// Each example is read without a finding, with its defaults and with other sizes.
func TestExamples(t *testing.T) {
	cases := map[string]struct {
		file, want string
		vars       []string
	}{
		"one GPU": {
			file: "one-gpu", want: "gang one-gpu: 1 member x 1 GPU, checkpoint every 10s",
		},
		"torchrun": {
			file: "torchrun", want: "gang torchrun: 2 members x 8 GPUs = 16, anywhere, checkpoint every 15m",
		},
		"torchrun in a rack": {
			file: "torchrun", vars: []string{"gang=resnet50", "members=4", "locality=rack", "interval=1h"},
			want: "gang resnet50: 4 members x 8 GPUs = 32, in one rack, checkpoint every 1h",
		},
		"MPI": {
			file: "mpi", want: "gang mpi: 2 members x 4 GPUs = 8, anywhere, no checkpoints",
		},
		"docker": {
			file: "docker", want: "gang docker: 1 member x 1 GPU, SIGUSR1 before a stop",
		},
		"launcher and workers": {
			file: "launcher-workers", vars: []string{"workers=8", "gpus=8"},
			want: "gang pool: 1 x 1 + 8 x 8 = 65 GPUs, anywhere, launcher: checkpoint every 1m, worker: no checkpoints",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job, gang, findings := ParseFile(c.file+".nomad.hcl", c.vars, nil)
			must.Eq(t, "", findings.String())
			must.NotNil(t, job)
			must.Eq(t, c.want, Describe(gang))
		})
	}
}

// A docker gang of several members works, but without barriers, and validate says so.
func TestDockerGangOfSeveralIsWarnedAbout(t *testing.T) {
	_, gang, findings := ParseFile("docker.nomad.hcl", []string{"members=2"}, nil)
	must.False(t, findings.HasErrors())
	must.Len(t, 1, findings)
	must.StrContains(t, findings[0].Summary, "the docker driver has no barrier")
	must.Eq(t, 2, gang.Size())
}

func TestAllExamplesAreTested(t *testing.T) {
	files, err := filepath.Glob("*.nomad.hcl")
	must.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f, ".nomad.hcl"))
	}
	must.Eq(t, []string{"docker", "launcher-workers", "mpi", "one-gpu", "torchrun"}, names)
}
