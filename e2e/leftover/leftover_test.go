// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package leftover

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestSweep(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mark := newMark(t)
	must.NoError(t, os.MkdirAll(filepath.Join(mark.Dir(), "deep"), 0o755))
	victim := exec.Command("sleep", "60")
	victim.Env = []string{EnvVar + "=" + string(mark)}
	must.NoError(t, victim.Start())
	bystander := exec.Command("sleep", "60")
	bystander.Env = []string{}
	must.NoError(t, bystander.Start())
	t.Cleanup(func() {
		must.NoError(t, bystander.Process.Kill())
		_ = bystander.Wait()
	})
	must.SliceContains(t, mark.Processes(), victim.Process.Pid)

	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	must.NoError(t, mark.Sweep(ctx))

	must.Error(t, <-ended)
	must.SliceEmpty(t, mark.Processes())
	_, err := os.Stat(mark.Dir())
	must.ErrorIs(t, err, os.ErrNotExist)
	must.True(t, allAlive(bystander.Process.Pid), must.Sprint("a process without the mark was ended"))
}

func TestSweepRefusesOtherNames(t *testing.T) {
	for name, mark := range map[string]Mark{
		"empty":        "",
		"only prefix":  Prefix,
		"another name": "nomad",
		"a path":       Prefix + "12345678/../..",
	} {
		t.Run(name, func(t *testing.T) {
			must.ErrorContains(t, mark.Sweep(t.Context()), "not the mark of a test cluster")
		})
	}
}

func TestWatch(t *testing.T) {
	t.Run("told that nothing is left, it touches nothing", func(t *testing.T) {
		mark := newMark(t)
		must.NoError(t, os.MkdirAll(mark.Dir(), 0o755))
		t.Cleanup(func() { os.RemoveAll(mark.Dir()) })
		must.NoError(t, Watch(strings.NewReader(done), mark))
		_, err := os.Stat(mark.Dir())
		must.NoError(t, err)
	})
	t.Run("left alone, it sweeps", func(t *testing.T) {
		mark := newMark(t)
		must.NoError(t, os.MkdirAll(mark.Dir(), 0o755))
		must.NoError(t, Watch(strings.NewReader(""), mark))
		_, err := os.Stat(mark.Dir())
		must.ErrorIs(t, err, os.ErrNotExist)
	})
}

func newMark(t *testing.T) Mark {
	t.Helper()
	digits := make([]byte, 4)
	_, err := rand.Read(digits)
	must.NoError(t, err)
	return Mark(Prefix + hex.EncodeToString(digits))
}

func allAlive(pids ...int) bool {
	for _, pid := range pids {
		if parent(pid) == 0 {
			return false
		}
	}
	return true
}
