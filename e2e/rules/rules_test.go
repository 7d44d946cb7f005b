// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package rules turns the project's own rules into failing tests: which package may import which, the header of every
// file, one comment for every package, and how long a file may be.
package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const (
	module       = "github.com/nomad-muster/muster/"
	header       = "// Copyright (c) The Muster Authors\n// SPDX-License-Identifier: MPL-2.0\n"
	maxFileLines = 600
)

// source is one Go file of the project.
type source struct {
	path string // from the root, with slashes
	text string
	file *ast.File
}

func (s source) pkg() string  { return path.Dir(s.path) }
func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// sources parses every Go file of the project.
func sources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	must.NoError(t, err)
	var all []source
	for _, top := range []string{"driver", "placer", "jobspecs", "plugin", "e2e"} {
		must.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && entry.Name() == ".run" {
				return filepath.SkipDir
			}
			if !strings.HasSuffix(name, ".go") {
				return nil
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(root, name)
			all = append(all, source{path: filepath.ToSlash(relative), text: string(text), file: file})
			return err
		}))
	}
	must.Positive(t, len(all))
	return all
}

// allowed says what of ours a package may import besides itself and what is below it. A package that is not listed may
// import anything. The longest prefix counts.
func allowed() map[string][]string {
	node := []string{
		"driver/gpu", "driver/gpu/nvml", "driver/version", "driver/launch", "driver/launch/proc", "driver/gang",
		"driver/checkpoint", "driver/pluginconf", "placer/ledger",
	}
	return map[string][]string{
		"driver":            node,
		"driver/device":     {"driver/gpu", "driver/gpu/nvml", "driver/version", "driver/pluginconf", "placer/ledger"},
		"driver/gpu":        {},
		"driver/gpu/nvml":   {"driver/gpu"},
		"driver/launch":     {},
		"driver/checkpoint": {"driver/launch/proc"},
		"driver/gang":       {"placer/ledger"},
		"driver/version":    {},
		"jobspecs":          {},
		"placer/ledger":     {"driver/gpu"},
		"placer/model":      {"driver/gpu"},
		"placer/policy":     {"placer/model", "driver/gpu"},
		"placer/nomad":      {"placer/model", "placer/ledger", "jobspecs", "driver/gpu"},
		"placer/engine":     {"placer/model", "placer/ledger", "placer/nomad", "placer/queues", "jobspecs", "driver/gpu"},
		"placer/queues":     {"placer/model", "placer/ledger", "placer/hclopt", "jobspecs"},
		"placer/config":     {"placer/hclopt"},
		"placer/hclopt":     {},
	}
}

func TestImportDirections(t *testing.T) {
	rules := allowed()
	for _, s := range sources(t) {
		rule := s.pkg()
		for rule != "." && rules[rule] == nil {
			rule = path.Dir(rule)
		}
		if rule == "." || s.isTest() {
			continue
		}
		for _, spec := range s.file.Imports {
			name, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			if !ours || name == rule || strings.HasPrefix(name, rule+"/") && rule != "driver" || name == s.pkg() {
				continue
			}
			must.True(t, slices.Contains(rules[rule], name), must.Sprintf("%s imports %s; package %s may import %v", s.path, name, rule, rules[rule]))
		}
	}
}

// TestDecisionsArePure keeps clocks, networks, logs and chance out of the packages that decide.
func TestDecisionsArePure(t *testing.T) {
	impure := []string{"context", "log", "log/slog", "net", "net/http", "os", "math/rand", "math/rand/v2", "crypto/rand"}
	pure := []string{"placer/policy", "placer/policy/fit", "placer/policy/order", "placer/model", "driver/gpu"}
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || !slices.Contains(pure, s.pkg()) {
			continue
		}
		seen[s.pkg()] = true
		for _, spec := range s.file.Imports {
			name := strings.Trim(spec.Path.Value, `"`)
			must.False(t, slices.Contains(impure, name), must.Sprintf("%s imports %s", s.path, name))
		}
		must.StrNotContains(t, s.text, "time.Now(", must.Sprint(s.path))
	}
	must.MapLen(t, len(pure), seen, must.Sprint("a package of the list is gone"))
}

func TestEveryFileHasTheHeaderAndIsShort(t *testing.T) {
	for _, s := range sources(t) {
		must.StrHasPrefix(t, header, s.text, must.Sprint(s.path))
		must.LessEq(t, maxFileLines, strings.Count(s.text, "\n"), must.Sprint(s.path))
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string]int{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.file.Name.Name, "_test") {
			continue
		}
		if _, known := comments[s.pkg()]; !known {
			comments[s.pkg()] = 0
		}
		if s.file.Doc != nil {
			comments[s.pkg()]++
		}
	}
	for pkg, count := range comments {
		must.EqOp(t, 1, count, must.Sprintf("package %s has %d package comments", pkg, count))
	}
}
