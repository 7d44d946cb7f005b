// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// TestQueues runs the commands about queues on a small cluster: "file" writes queues.hcl, "ledger" puts documents under
// keys, "muster" runs a command.
func TestQueues(t *testing.T) {
	script, err := filepath.Abs("testdata/queues")
	must.NoError(t, err)
	t.Chdir(t.TempDir())
	l := clusterLedger(t)
	meta := Meta{Open: func(string) (*ledger.Ledger, error) { return l, nil }}
	datadriven.RunTest(t, script, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "file":
			must.NoError(t, os.WriteFile("queues.hcl", []byte(d.Input), 0o600))
			return ""
		case "ledger":
			put(t, l, d.Input)
			return ""
		case "muster":
			return runWith(t.Context(), words(d.Input), meta, strings.NewReader(""))
		}
		t.Fatalf("unknown command %s", d.Cmd)
		return ""
	})
}
