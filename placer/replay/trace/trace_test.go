// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package trace_test

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/replay/trace"
)

func TestRead(t *testing.T) {
	at := time.Unix(1_500_000_000, 0).UTC()
	cases := map[string]struct {
		text string
		want []trace.Job
		err  string
	}{
		"Philly: sorted by submission, more than 8 GPUs in any split": {
			text: "job,vc,submit_unix,num_gpus,duration_s,passed,source\n7,6214e9,1500000060,16,30,1,pcs\n8,ed69ec,1500000000,8,20,0,pcs\n",
			want: []trace.Job{
				{Name: "8", Queue: "vc-ed69ec", Submitted: at, GPUs: 8, MemberGPUs: 8, Duration: 20 * time.Second},
				{Name: "7", Queue: "vc-6214e9", Submitted: at.Add(time.Minute), GPUs: 16, MemberGPUs: 1, Duration: 30 * time.Second},
			},
		},
		"Muri: milliseconds, one queue": {
			text: "job_id,num_gpu,submit_time,iterations,duration\n0,2,1500,9,2500\n",
			want: []trace.Job{
				{Name: "0", Queue: "default", Submitted: time.UnixMilli(1500).UTC(), GPUs: 2, MemberGPUs: 2, Duration: 2500 * time.Millisecond},
			},
		},
		"our own, with comments and optional columns": {
			text: "# a trace\njob,queue,submitted,gpus,duration_s,member_gpus,user,comm,priority,max_runtime_s\n" +
				"a,,2017-07-14T02:40:00Z,16,60,4,ann,low,70,90\n",
			want: []trace.Job{{
				Name: "a", Queue: "default", User: "ann", Submitted: at, GPUs: 16, MemberGPUs: 4, Duration: time.Minute,
				MaxRuntime: 90 * time.Second, Priority: 70, Comm: model.CommLow,
			}},
		},
		"an unknown header":  {text: "a,b\n1,2\n", err: "trace: unknown format: columns a, b; Muster's own format has job, queue, submitted, gpus, duration_s"},
		"an empty file":      {text: "", err: "trace: the file is empty"},
		"a job twice":        {text: "job_id,num_gpu,submit_time,duration\n0,1,0,1\n0,1,0,1\n", err: `trace: line 3: job "0" is there twice`},
		"a number in words":  {text: "job_id,num_gpu,submit_time,duration\n0,one,0,1\n", err: `trace: line 2: num_gpu is "one", not a whole number`},
		"members that don't": {text: "job,queue,submitted,gpus,duration_s,member_gpus\na,q,2017-07-14T02:40:00Z,6,1,4\n", err: `trace: line 2: job "a" asks for 6 GPUs by members of 4`},
		"an unknown comm":    {text: "job,queue,submitted,gpus,duration_s,comm\na,q,2017-07-14T02:40:00Z,6,1,loud\n", err: `trace: line 2: comm is "loud", not none, low or high`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			jobs, err := trace.Read(strings.NewReader(c.text))
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				return
			}
			must.NoError(t, err)
			must.Eq(t, c.want, jobs)
			var zipped bytes.Buffer
			w := gzip.NewWriter(&zipped)
			_, err = w.Write([]byte(c.text))
			must.NoError(t, err)
			must.NoError(t, w.Close())
			again, err := trace.Read(&zipped)
			must.NoError(t, err)
			must.Eq(t, c.want, again)
		})
	}
}

func TestReadCluster(t *testing.T) {
	var list strings.Builder
	list.WriteString("machineId, number of GPUs, single GPU mem\n")
	for i := range 50 {
		list.WriteString("m" + string(rune('A'+i)) + "," + []string{"2", "8"}[i%2] + ", 12GB\n")
	}
	nodes, err := trace.ReadCluster(strings.NewReader(list.String()))
	must.NoError(t, err)
	must.Len(t, 50, nodes)
	racks := make(map[string]int)
	for _, n := range nodes {
		racks[n.Path[0]]++
		must.Eq(t, n.Usable, n.Free)
	}
	must.Eq(t, map[string]int{"2x00": 24, "2x01": 1, "8x00": 24, "8x01": 1}, racks)

	nodes, err = trace.ReadCluster(strings.NewReader("node,gpus,rack\nb,4,r2\na,8,r1\n"))
	must.NoError(t, err)
	must.Eq(t, []string{"a", "b"}, []string{nodes[0].Name, nodes[1].Name})

	for text, want := range map[string]string{
		"node,gpus,rack\na,4,r\na,4,r\n": `machine "a" is there twice`,
		"node,gpus,rack\na,0,r\n":        "line 2: a machine needs a name and 1 to 64 GPUs",
		"node,gpus\na,4\n":               "unknown format",
		"node,gpus,rack\n":               "cluster: no machines below the header",
	} {
		_, err := trace.ReadCluster(strings.NewReader(text))
		must.ErrorContains(t, err, want)
	}
}
