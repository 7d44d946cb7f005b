// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package queues

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nomad-muster/muster/placer/ledger"
)

// TestScripts runs testdata/: parse reads a queue file and prints the document or the faults; may asks the last one that
// was read about jobs, one "queue namespace priority" a line, where queue - is none named.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var doc, before ledger.Queues
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "parse":
				next, err := Parse("q.hcl", []byte(d.Input))
				if err != nil {
					return err.Error()
				}
				before, doc = doc, next
				return compact(t, doc)
			case "changes":
				return strings.Join(append(Changes(before, doc), ""), "\n")
			case "may":
				return may(t, New(doc), d.Input)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

// compact is the document, one queue a line.
func compact(t *testing.T, doc ledger.Queues) string {
	var out bytes.Buffer
	line := func(v any) {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
		out.WriteByte('\n')
	}
	if doc.Policy != (ledger.Policy{}) {
		line(doc.Policy)
	}
	for _, q := range doc.Queues {
		line(q)
	}
	if out.Len() == 0 {
		return "no queues"
	}
	return out.String()
}

func may(t *testing.T, tree Tree, input string) string {
	var out bytes.Buffer
	for line := range bytes.Lines([]byte(input)) {
		var queue, namespace string
		var priority int
		if _, err := fmt.Sscan(string(line), &queue, &namespace, &priority); err != nil {
			t.Fatalf("%q: %s", line, err)
		}
		if queue == "-" {
			queue = tree.Home(namespace)
		}
		verdict := tree.Refusal(queue, namespace, priority)
		if verdict == "" {
			verdict = fmt.Sprintf("welcome, %v", tree.Defaults(queue))
		}
		fmt.Fprintf(&out, "%s: %s\n", queue, verdict)
	}
	return out.String()
}
