// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/replay"
)

// TestReplay runs the small trace of package replay and files that are written down with the command: "file NAME" makes
// one, "muster" runs a command, and "policies" lists those that the last report tells of. In commands DIR stands for the
// directory of those files.
func TestReplay(t *testing.T) {
	dir := t.TempDir()
	place := strings.NewReplacer("DIR", dir, "SMALL", filepath.Join("..", "replay", "testdata", "small"))
	datadriven.RunTest(t, "testdata/replay", func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		switch d.Cmd {
		case "file":
			must.NoError(t, os.WriteFile(filepath.Join(dir, d.CmdArgs[0].Key), []byte(d.Input+"\n"), 0o600))
			return ""
		case "policies":
			return strings.Join(reported(t, filepath.Join(dir, d.CmdArgs[0].Key)), "\n") + "\n"
		}
		must.EqOp(t, "muster", d.Cmd)
		return strings.ReplaceAll(runWith(t.Context(), strings.Fields(place.Replace(d.Input)), Meta{}, nil), dir, "DIR")
	})
}

// reported returns the policies that both files of a report tell of.
func reported(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "replay.json"))
	must.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(dir, "replay.html"))
	must.NoError(t, err)
	var results []replay.Result
	must.NoError(t, json.Unmarshal(text, &results))
	var policies []string
	for _, r := range results {
		must.StrContains(t, string(page), r.Policy)
		policies = append(policies, r.Policy)
	}
	return policies
}
