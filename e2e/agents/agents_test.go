// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package agents

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestPath(t *testing.T) {
	agent := Agent{Name: "nomad", Env: "MUSTER_TEST_AGENT"}

	t.Run("the variable wins", func(t *testing.T) {
		ready := fakeBinary(t, t.TempDir(), "other")
		t.Setenv(agent.Env, ready)
		path, err := agent.Path(t.Context(), t.TempDir())
		must.NoError(t, err)
		must.Eq(t, ready, path)
	})
	t.Run("a variable that names nothing is an error", func(t *testing.T) {
		t.Setenv(agent.Env, filepath.Join(t.TempDir(), "missing"))
		_, err := agent.Path(t.Context(), t.TempDir())
		must.ErrorContains(t, err, "MUSTER_TEST_AGENT names no file")
	})
	t.Run("a built binary is used again", func(t *testing.T) {
		out := t.TempDir()
		built := fakeBinary(t, out, "nomad")
		path, err := agent.Path(t.Context(), out)
		must.NoError(t, err)
		must.Eq(t, built, path)
	})
	t.Run("a build that fails says what to do", func(t *testing.T) {
		_, err := Agent{Name: "nomad", Package: "./nothing-here", Env: agent.Env}.Path(t.Context(), t.TempDir())
		must.ErrorContains(t, err, "may name a ready binary instead")
	})
}

func fakeBinary(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	return path
}
