// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package queues

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

const example = "queues.example.hcl"

func TestExampleShowsEveryOption(t *testing.T) {
	doc, err := Load(example)
	must.NoError(t, err)
	must.Len(t, 4, doc.Queues)

	file, diags := hclparse.NewParser().ParseHCLFile(example)
	must.False(t, diags.HasErrors())
	body, isNative := file.Body.(*hclsyntax.Body)
	must.True(t, isNative)
	shown := map[string]bool{}
	var walk func(*hclsyntax.Body, string)
	walk = func(body *hclsyntax.Body, within string) {
		for name := range body.Attributes {
			shown[within+name] = true
		}
		for _, block := range body.Blocks {
			walk(block.Body, block.Type+".")
		}
	}
	walk(body, "")
	for _, option := range []string{
		"policy.half_life", "policy.min_runtime", "policy.reclaim_above", "policy.evictions", "policy.age_bound", "policy.defragment",
		"queue.quota", "queue.max", "queue.weight", "queue.namespaces", "queue.preempt", "priority.min", "priority.max",
		"defaults.nvlink", "defaults.locality", "defaults.relax_after",
	} {
		must.True(t, shown[option], must.Sprint(option))
	}
}

func TestLoadWithoutFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.hcl"))
	must.ErrorIs(t, err, os.ErrNotExist)
}

// FuzzParse feeds any text to the reader: it never panics, and what it accepts keeps the rules.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(example)
	must.NoError(f, err)
	f.Add(string(text))
	f.Add("queue \"a\" {\n  quota = 8\n  max = 9\n  queue \"b\" {\n    quota = 8\n    namespaces = [\"x\"]\n  }\n}\n")
	f.Add("queue \"a\" {\n  priority {\n    min = 3\n  }\n  defaults {\n    locality = \"rack\"\n  }\n}\npolicy {\n  half_life = \"1h\"\n}")
	f.Add("queue \"a\" {\n  weight = 1e400\n  quota = 1/0\n  namespaces = [for x in [\"a\"]: x]\n}")
	f.Fuzz(func(t *testing.T, text string) {
		doc, err := Parse("q.hcl", []byte(text))
		if err != nil {
			must.StrHasPrefix(t, "q.hcl:", err.Error())
			return
		}
		checkDocument(t, doc)
	})
}

// checkDocument holds a document to what the reader promises.
func checkDocument(t *testing.T, doc ledger.Queues) {
	seen, namespaces, inside := map[string]ledger.Queue{}, map[string]bool{}, map[string]int{}
	for _, q := range doc.Queues {
		_, twice := seen[q.Name]
		must.False(t, twice)
		seen[q.Name] = q
		must.True(t, q.Max == 0 || q.Max >= q.Quota)
		for _, n := range q.Namespaces {
			must.False(t, namespaces[n])
			namespaces[n] = true
		}
		if parent := Parent(q.Name); parent != "" {
			_, before := seen[parent]
			must.True(t, before)
			inside[parent] += q.Quota
		}
	}
	for name, quota := range inside {
		must.LessEq(t, seen[name].Quota, quota)
	}
	tree := New(doc)
	for name := range seen {
		r := tree.Priorities(name)
		must.LessEq(t, r.Max, r.Min)
	}
}
