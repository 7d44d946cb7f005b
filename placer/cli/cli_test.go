// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/hashicorp/cli"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) // when every command of these tests looks

func ago(d time.Duration) time.Time { return noon.Add(-d) }

func pointer[T any](v T) *T { return &v }

// TestOutput runs commands on a small cluster and compares what a person reads, exit code included.
func TestOutput(t *testing.T) {
	l := clusterLedger(t)
	datadriven.RunTest(t, "testdata/output", func(t *testing.T, d *datadriven.TestData) string {
		must.EqOp(t, "muster", d.Cmd)
		return runCommand(strings.Fields(d.Input), func(string) (*ledger.Ledger, error) { return l, nil })
	})
}

func TestOutput_EmptyLedger(t *testing.T) {
	l := ledger.New(ledger.NewMemory(), "global")
	open := func(string) (*ledger.Ledger, error) { return l, nil }
	must.EqOp(t, "No gangs\n", runCommand([]string{"gangs"}, open))
	must.EqOp(t, "No nodes: no device plugin has reported to this ledger yet\n", runCommand([]string{"nodes"}, open))
	must.EqOp(t, "{\n  \"gangs\": [],\n  \"refusals\": []\n}\n", runCommand([]string{"gangs", "-json"}, open))
	must.EqOp(t, "[]\n", runCommand([]string{"nodes", "-json"}, open))
}

func TestJSON_IsTheDocuments(t *testing.T) {
	l := clusterLedger(t)
	open := func(string) (*ledger.Ledger, error) { return l, nil }
	var list gangList
	must.NoError(t, json.Unmarshal([]byte(runCommand([]string{"gangs", "-json"}, open)), &list))
	must.Len(t, 3, list.Gangs)
	must.EqOp(t, "resnet50", list.Gangs[0].Name)
	var view gangView
	must.NoError(t, json.Unmarshal([]byte(runCommand([]string{"gang", "-json", "resnet50"}, open)), &view))
	must.EqOp(t, "alloc-0", view.Members[0].Claim.Allocation[:7])
	var nodes []nodeView
	must.NoError(t, json.Unmarshal([]byte(runCommand([]string{"nodes", "-json"}, open)), &nodes))
	must.EqOp(t, 2, nodes[1].Free)
}

func TestEveryCommandExplainsItself(t *testing.T) {
	for name, factory := range Commands(Meta{}) {
		command, err := factory()
		must.NoError(t, err)
		must.StrHasPrefix(t, "Usage: muster "+name, command.Help())
		must.NotEq(t, "", command.Synopsis())
		must.False(t, strings.HasSuffix(command.Synopsis(), "."))
	}
}

// runCommand returns what a command printed, errors marked by "! ", and its exit code when it is not 0.
func runCommand(args []string, open func(string) (*ledger.Ledger, error)) string {
	return runWith(context.Background(), args, Meta{Open: open}, nil)
}

// runWith is runCommand by somebody who types at a terminal; nil: there is none.
func runWith(ctx context.Context, args []string, meta Meta, typed io.Reader) string {
	var out, errs bytes.Buffer
	meta.UI = &cli.BasicUi{Reader: typed, Writer: &out, ErrorWriter: &errs}
	meta.Stdout, meta.Stderr, meta.Context, meta.By = &out, &errs, ctx, "alice@ops"
	meta.Now, meta.Terminal = func() time.Time { return noon }, func() bool { return typed != nil }
	code := run(args, &errs, meta)
	text := out.String()
	for line := range strings.Lines(errs.String()) {
		text += "! " + line
	}
	if code != 0 {
		text += fmt.Sprintf("exit code %d\n", code)
	}
	return text
}

// clusterLedger holds two nodes of two pairs each, a running gang, a waiting one, a closing one and a refusal.
func clusterLedger(t *testing.T) *ledger.Ledger {
	t.Helper()
	store := ledger.NewMemory()
	keys := ledger.NewKeys("global")
	session, err := store.CreateSession(context.Background(), ledger.SessionSpec{Name: "plugin"})
	must.NoError(t, err)
	put := func(key string, doc any) {
		value, err := json.Marshal(doc)
		must.NoError(t, err)
		op := ledger.Op{Verb: ledger.Set, Key: key, Value: value}
		if key == keys.Node("n1") {
			op = ledger.Op{Verb: ledger.Lock, Key: key, Value: value, Session: session}
		}
		_, err = store.Txn(context.Background(), []ledger.Op{op})
		must.NoError(t, err)
	}
	spec := func(count, gpus int) ledger.Spec {
		return ledger.Spec{
			Groups: []ledger.GroupSpec{{Group: "worker", Value: "g", Count: count, GPUs: gpus, Task: "train", Driver: "muster"}},
			Queue:  "default", NVLink: "preferred", Locality: "rack", RelaxAfterS: 600,
		}
	}
	for i, name := range []string{"n1", "n2"} {
		put(keys.Node(name), ledger.Node{
			Version: 1, Node: name, NodeID: "id-" + name, Topology: map[string]string{"rack": fmt.Sprintf("r%d", i+1)}, Machine: pairs(name),
		})
	}
	put(keys.Health("n2"), ledger.Health{Version: 1, GPUs: map[string]gpu.Health{
		"n2-0": {State: gpu.Lost, Reason: "fallen off the bus"},
	}})
	slot := func(rank int, state ledger.SlotState, reservation, gang string, gpus ...string) ledger.Slot {
		return ledger.Slot{
			Reservation: reservation, Rank: rank, Size: 2, Driver: "muster", GPUs: gpus, State: state,
			Owner: ledger.Owner{Gang: gang, Value: gang, Namespace: "default", Job: gang, Group: "worker", Task: "train"},
		}
	}
	put(keys.Slots("n1"), ledger.SlotTable{Version: 1, Epoch: "E1", Sequence: 4, Slots: []ledger.Slot{
		slot(0, ledger.SlotOpen, "r0001", "resnet50", "n1-0", "n1-1"), slot(1, ledger.SlotOpen, "r0001", "resnet50", "n1-2", "n1-3"),
	}})
	put(keys.Slots("n2"), ledger.SlotTable{Version: 1, Epoch: "E1", Sequence: 9, Slots: []ledger.Slot{
		slot(0, ledger.SlotClosing, "r0002", "gpt", "n2-1"),
	}})
	put(keys.Claim("n1", ledger.SlotID{Reservation: "r0001", Rank: 0}), ledger.Claim{Version: 1, Reservation: "r0001", Allocation: "alloc-0000-1111"})
	put(keys.Claim("n1", ledger.SlotID{Reservation: "r0001", Rank: 1}), ledger.Claim{Version: 1, Reservation: "r0001", Rank: 1, Allocation: "alloc-1111-1111"})
	put(keys.Run("resnet50", "r0001"), ledger.Run{Version: 1, Generation: 1, Phase: ledger.RunRunning, MasterAddr: "10.0.0.1", MasterPort: 20000})
	put(keys.Member("resnet50", "r0001", 0), ledger.Member{
		Version: 1, State: ledger.MemberRunning, Checkpoint: &ledger.Checkpoint{
			Count: 3, Requested: ago(95 * time.Second), Completed: pointer(ago(90 * time.Second)), TookMS: 1200, Entry: "step-300.pt",
		},
	})
	put(keys.Member("resnet50", "r0001", 1), ledger.Member{
		Version: 1, Rank: 1, State: ledger.MemberRunning,
		Checkpoint: &ledger.Checkpoint{Count: 3, Requested: ago(95 * time.Second), Problem: "no process catches SIGUSR1"},
	})
	put(keys.Gang("resnet50"), ledger.Gang{
		Version: 1, Name: "resnet50", Namespace: "default", Job: "resnet50", State: ledger.GangRunning, Spec: spec(2, 2),
		Submitted: ago(2 * time.Hour), Since: ago(100 * time.Minute), JobVersion: 1, Reservation: &ledger.Grant{
			ID: "r0001", At: ago(100 * time.Minute),
			Placements: []ledger.Placement{{Node: "n1", Address: "10.0.0.1", Group: "worker", Rank: 0, Members: 2, GPUs: 2}},
		},
	})
	put(keys.Gang("gpt"), ledger.Gang{
		Version: 1, Name: "gpt", Namespace: "research", Job: "gpt", State: ledger.GangClosing, Spec: spec(1, 1),
		Submitted: ago(time.Hour), Since: ago(5 * time.Second), After: ledger.GangWaiting,
		Why: &ledger.Reason{Code: "failed", Text: "rank 0 on n2 failed: exit code 1"},
		Reservation: &ledger.Grant{ID: "r0002", At: ago(time.Minute), Placements: []ledger.Placement{
			{Node: "n2", Address: "10.0.0.2", Group: "worker", Members: 1, GPUs: 1},
		}},
	})
	put(keys.Gang("bert"), ledger.Gang{
		Version: 1, Name: "bert", Namespace: "default", Job: "bert", State: ledger.GangWaiting, Spec: spec(2, 4),
		Submitted: ago(3 * time.Minute), Since: ago(3 * time.Minute),
		Why: &ledger.Reason{Code: "locality", Text: "needs 2 nodes with 4 free GPUs in one rack; r1 has 0, r2 has 0; relaxes to any in 7m"},
	})
	put(keys.Refusal("default", "web"), ledger.Refusal{
		Version: 1, Namespace: "default", Job: "web", Gang: "web", At: ago(49 * time.Hour),
		Why: ledger.Reason{Code: "spec", Text: `restart attempts must be 0; set restart { attempts = 0  mode = "fail" }`},
	})
	return ledger.New(store, "global")
}

// pairs is four GPUs joined by NVLink two by two.
func pairs(node string) gpu.Machine {
	m := gpu.Machine{Links: make([][]gpu.Link, 4)}
	for i := range 4 {
		m.GPUs = append(m.GPUs, gpu.GPU{UUID: fmt.Sprintf("%s-%d", node, i), Index: i, Model: "NVIDIA H100 NVL", NUMANode: -1})
		m.Links[i] = make([]gpu.Link, 4)
		for j := range 4 {
			if i != j {
				m.Links[i][j].PCIe = gpu.PathSYS
			}
		}
		m.Links[i][i^1].NVLinks, m.Links[i][i^1].NVLinkMBps = 12, 12*26562
	}
	return m
}
