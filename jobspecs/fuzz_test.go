// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
	"github.com/shoenig/test/must"
)

// jobFiles are the good job files of the package.
func jobFiles(t testing.TB) map[string][]byte {
	files := map[string][]byte{}
	for _, pattern := range []string{"*.nomad.hcl", "testdata/*.nomad.hcl"} {
		paths, err := filepath.Glob(pattern)
		must.NoError(t, err)
		for _, path := range paths {
			body, err := os.ReadFile(path)
			must.NoError(t, err)
			files[path] = body
		}
	}
	return files
}

// FuzzParse feeds any bytes to the whole way from HCL to findings.
func FuzzParse(f *testing.F) {
	for _, body := range jobFiles(f) {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		lines := bytes.Count(body, []byte("\n")) + 1
		job, gang, findings := parse(&jobspec2.ParseConfig{Path: "fuzz.nomad.hcl", Body: body, Strict: true}, nil)
		if job == nil {
			must.True(t, findings.HasErrors(), must.Sprint("no job and no error"))
			return
		}
		for _, d := range findings {
			if d.Range != nil {
				must.Between(t, 1, d.Range.Line, lines)
			}
		}
		checkSane(t, gang, findings)
	})
}

// FuzzFromJob feeds any job of the API's JSON to the rules.
func FuzzFromJob(f *testing.F) {
	for path, body := range jobFiles(f) {
		job, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: path, Body: body, Strict: true})
		must.NoError(f, err)
		data, err := json.Marshal(job)
		must.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"TaskGroups":[null,{"Tasks":[null,{"Resources":{"Devices":[null,{"Name":"muster/gang","Constraints":[null]}]}}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var job api.Job
		if json.Unmarshal(data, &job) != nil {
			t.Skip("no job")
		}
		gang, findings := FromJob(&job)
		checkSane(t, gang, findings)
		_, again := FromJob(&job)
		must.Eq(t, findings.String(), again.String())
	})
}

// FuzzWith lays any knob over a gang, or under it: what is accepted is as good as what a job may say.
func FuzzWith(f *testing.F) {
	for knob, value := range map[string]string{
		"queue": "research.vision", "nvlink": "required", "locality": "rack", "relax_after": "auto", "comm": "none", "max_runtime": "12h", "priority": "80",
	} {
		f.Add(knob, value)
	}
	f.Add("relax_after", "never")
	f.Add("comm", "low")
	f.Fuzz(func(t *testing.T, knob, value string) {
		_, gang, _ := ParseFile("testdata/gang.nomad.hcl", nil, nil)
		for _, lay := range []func(map[string]string, ...Options) (*Gang, error){gang.With, gang.WithDefaults} {
			changed, err := lay(map[string]string{knob: value})
			if err == nil {
				checkSane(t, changed, nil)
				must.EqOp(t, gang.Shape(), changed.Shape())
			}
		}
	})
}

// checkSane checks what holds for every gang, good or bad.
func checkSane(t *testing.T, gang *Gang, findings Diagnostics) {
	if gang == nil {
		must.Len(t, 0, findings)
		return
	}
	must.Between(t, 0, gang.Size(), MaxMembers)
	must.Between(t, 0, gang.GPUs(), MaxMembers*MaxGPUsPerMember)
	must.NotEq(t, "", Describe(gang))
	for _, d := range findings {
		must.NotEq(t, "", d.Summary)
		must.NotEq(t, "", d.Detail)
	}
	if findings.HasErrors() {
		must.NotEq(t, "", findings.Refusal())
		return
	}
	must.NoError(t, CheckName(gang.Name))
	must.NoError(t, CheckName(gang.Queue))
	for _, group := range gang.Groups {
		must.Positive(t, group.Count)
		must.Positive(t, group.GPUs)
	}
}
