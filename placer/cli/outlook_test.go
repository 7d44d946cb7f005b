// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// TestOutlook shows gangs that wait, with all that is known of their wait.
func TestOutlook(t *testing.T) {
	l := ledger.New(ledger.NewMemory(), "global")
	meta := Meta{
		Open: func(string) (*ledger.Ledger, error) { return l, nil },
		Nomad: func(string) (*nomad.Client, error) {
			return nomad.NewClient(&nomad.Config{Address: "http://127.0.0.1:1"})
		},
	}
	datadriven.RunTest(t, "testdata/outlook", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "ledger" {
			put(t, l, d.Input)
			return ""
		}
		must.EqOp(t, "muster", d.Cmd)
		return runWith(t.Context(), strings.Fields(d.Input), meta, nil)
	})
}
