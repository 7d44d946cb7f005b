// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestWith(t *testing.T) {
	gang := Gang{
		Name: "a", Priority: 50, Queue: DefaultQueue, NVLink: NVLinkPreferred, Locality: LocalityAny, RelaxAfter: DefaultRelaxAfter,
		RelaxNever: true, Groups: []Group{{Name: "worker", Count: 2, GPUs: 4}},
	}
	before := gang
	changed, err := gang.With(map[string]string{
		"queue": "research", "nvlink": "required", "locality": "rack", "relax_after": "5m", "comm": "low", "max_runtime": "12h", "priority": "80",
	}, Options{Levels: []string{"rack"}})
	must.NoError(t, err)
	must.Eq(t, before, gang)
	must.Eq(t, &Gang{
		Name: "a", Priority: 80, Queue: "research", NVLink: NVLinkRequired, Locality: "rack", RelaxAfter: 5 * time.Minute,
		Comm: CommLow, MaxRuntime: 12 * time.Hour, Groups: gang.Groups,
		Stated: []string{"comm", "locality", "max_runtime", "nvlink", "queue", "relax_after"},
	}, changed)
	must.EqOp(t, gang.Shape(), changed.Shape(), must.Sprint("no knob takes a gang from its slots"))

	same, err := gang.With(nil)
	must.NoError(t, err)
	must.Eq(t, &gang, same)
}

func TestWithDefaults(t *testing.T) {
	gang := Gang{Locality: LocalityAny, RelaxAfter: DefaultRelaxAfter}
	said, err := gang.With(map[string]string{"locality": "node", "relax_after": "auto"})
	must.NoError(t, err)
	must.True(t, said.RelaxAuto)
	must.True(t, said.States("locality") && !said.States("nvlink") && !gang.States("locality"))

	defaults := map[string]string{"locality": "rack", "nvlink": "required", "relax_after": "never"}
	got, err := said.WithDefaults(defaults)
	must.NoError(t, err)
	must.Eq(t, &Gang{Locality: LocalityNode, RelaxAuto: true, NVLink: NVLinkRequired, Stated: []string{"locality", "relax_after"}}, got)

	got, err = gang.WithDefaults(defaults)
	must.NoError(t, err)
	must.Eq(t, &Gang{Locality: "rack", RelaxNever: true, NVLink: NVLinkRequired}, got)

	_, err = gang.WithDefaults(defaults, Options{Levels: []string{"zone"}})
	must.ErrorContains(t, err, `locality = "rack" is no level of this cluster`)
}

func TestWith_Refuses(t *testing.T) {
	for name, tc := range map[string]struct{ knob, value, want string }{
		"a queue with a space":            {"queue", "my team", `queue = "my team" names no queue: ` + CheckName("my team").Error() + `; write a queue's name, or remove the key for the queue "default"`},
		"a level that is not there":       {"locality", "rak", `locality = "rak" is no level of this cluster; did you mean rack? write one of node, rack, any`},
		"a word for a duration":           {"relax_after", "soon", `relax_after = "soon" is neither a duration nor auto nor never; write a duration such as "10m", or "auto", or "never"`},
		"no time at all":                  {"max_runtime", "0s", `max_runtime = "0s" is too short; write at least "1s"`},
		"a run time of more than a year":  {"max_runtime", "8760h0m1s", `max_runtime = "8760h0m1s" is more than a year; write at most "8760h", or remove the key`},
		"a step of more than a year":      {"relax_after", "2562047h", `relax_after = "2562047h" is more than a year; write at most "8760h", or "never"`},
		"a priority that Nomad has not":   {"priority", "99999", `priority = "99999" is not a priority; write a number from 1 to 32766`},
		"a word for a priority":           {"priority", "high", `priority = "high" is not a priority; write a number from 1 to 32766`},
		"nvlink by yes":                   {"nvlink", "yes", `nvlink = "yes" is not a value of it; write "required" or "preferred"`},
		"communication by a number":       {"comm", "3", `comm = "3" is not a value of it; write "none", "low" or "high", or remove the key if it is not known`},
		"a slip":                          {"localty", "rack", `"localty" is no knob that can be set; did you mean locality?`},
		"the key of meta":                 {"muster_queue", "q", `"muster_queue" is no knob that can be set; known are queue, nvlink, locality, relax_after, comm, max_runtime, priority`},
		"a signal that slots are made of": {"checkpoint_signal", "SIGUSR2", `"checkpoint_signal" is no knob that can be set; known are queue, nvlink, locality, relax_after, comm, max_runtime, priority`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := (&Gang{}).With(map[string]string{tc.knob: tc.value}, Options{Levels: []string{"rack"}})
			must.EqError(t, err, tc.want)
		})
	}
}
