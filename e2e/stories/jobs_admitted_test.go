// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/jobspecs"
)

// TestJobsAreAdmitted checks, without any agent, that the placer would admit the jobs of the stories and of the
// demonstration.
func TestJobsAreAdmitted(t *testing.T) {
	gang := []string{"gang=tested", "count=2", "gpus=8", "program=/bin/true", `args=["-for", "1s"]`}
	for path, vars := range map[string][]string{
		filepath.Join("jobs", "gang.nomad.hcl"):           append(gang, "nodes=n1|n2", "locality=rack", "relax_after=20s"),
		filepath.Join("jobs", "restart.nomad.hcl"):        append(gang, "driver=raw_exec", "template=x"),
		filepath.Join("jobs", "checkpoint.nomad.hcl"):     append(gang, "checkpoint_path=/tmp/x", "checkpoint_interval=5s"),
		filepath.Join("jobs", "groups.nomad.hcl"):         {"gang=tested", "first=1", "second=8", "program=/bin/true", "nodes=n1|n2"},
		filepath.Join("..", "demo", "pretrain.nomad.hcl"): {"program=/bin/true"},
		filepath.Join("..", "demo", "finetune.nomad.hcl"): {"program=/bin/true", "checkpoints=/tmp/x"},
		examples("torchrun.nomad.hcl"):                    {"members=2", "gpus=2"},
		examples("mpi.nomad.hcl"):                         {"members=2", "gpus=2", `program=["/bin/true"]`},
		examples("docker.nomad.hcl"):                      {"members=2", "gpus=2", "image=x:1"},
		examples("launcher-workers.nomad.hcl"):            {"workers=2"},
		examples("one-gpu.nomad.hcl"):                     {"steps=12"},
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			_, found, problems := jobspecs.ParseFile(path, vars, nil, jobspecs.Options{Levels: []string{"zone", "rack"}})
			must.False(t, problems.HasErrors(), must.Sprint(problems))
			must.NotNil(t, found)
		})
	}
}
