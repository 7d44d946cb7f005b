// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	nomad "github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// planAgent is a Nomad agent with two nodes and no jobs.
func planAgent(t *testing.T) *httptest.Server {
	t.Helper()
	node := func(name string) *structs.Node {
		return &structs.Node{
			ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: structs.NodeStatusReady,
			SchedulingEligibility: structs.NodeSchedulingEligible, ModifyIndex: 5,
			NodeResources: &structs.NodeResources{
				Cpu:    structs.NodeCpuResources{CpuShares: 10000, TotalCpuCores: 8},
				Memory: structs.NodeMemoryResources{MemoryMB: 64000}, Disk: structs.NodeDiskResources{DiskMB: 100000},
			},
			Drivers: map[string]*structs.DriverInfo{"muster": {Detected: true, Healthy: true}},
		}
	}
	answer := func(w http.ResponseWriter, value any) {
		w.Header().Set("X-Nomad-Index", "7")
		_ = json.NewEncoder(w).Encode(value)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, _ *http.Request) { answer(w, []any{}) })
	mux.HandleFunc("GET /v1/allocations", func(w http.ResponseWriter, _ *http.Request) { answer(w, []any{}) })
	mux.HandleFunc("GET /v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, []map[string]any{{"ID": "id-n1", "ModifyIndex": 5}, {"ID": "id-n2", "ModifyIndex": 5}})
	})
	mux.HandleFunc("GET /v1/node/{id}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, node(strings.TrimPrefix(r.PathValue("id"), "id-")))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// TestPlan asks about job files on a cluster of two nodes of four GPUs each, of which one is taken.
func TestPlan(t *testing.T) {
	store := ledger.NewMemory()
	l := ledger.New(store, "global")
	for _, name := range []string{"n1", "n2"} {
		session, err := store.CreateSession(t.Context(), ledger.NodeSession(name))
		must.NoError(t, err)
		must.NoError(t, l.PublishNode(t.Context(), session, ledger.Node{
			Version: 1, Node: name, NodeID: "id-" + name, Address: "10.0.0.1", MachineID: "m", BootID: "b", Machine: pairs(name),
		}))
	}
	server := planAgent(t)
	meta := Meta{
		Open:  func(string) (*ledger.Ledger, error) { return l, nil },
		Nomad: func(string) (*nomad.Client, error) { return nomad.NewClient(&nomad.Config{Address: server.URL}) },
	}
	datadriven.RunTest(t, "testdata/plan", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "ledger" {
			put(t, l, d.Input)
			return ""
		}
		must.EqOp(t, "muster", d.Cmd)
		return runWith(t.Context(), strings.Fields(d.Input), meta, nil)
	})
	s, err := l.Load(t.Context())
	must.NoError(t, err)
	must.MapNotContainsKey(t, s.Gangs, "train")
}
