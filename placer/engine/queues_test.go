// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/queues"
)

// applyQueues does what muster queue apply does with a file.
func (w *world) applyQueues(text string) {
	doc, err := queues.Parse("queues.hcl", []byte(text))
	must.NoError(w.t, err)
	have := w.load().Queues
	_, err = w.ledger.PutQueues(w.t.Context(), ledger.Versioned[ledger.Queues]{Doc: doc, Index: have.Index})
	must.NoError(w.t, err)
}

// specs prints what the ledger says that each gang is to be scheduled by.
func (w *world) specs() string {
	s := w.load()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Gangs)) {
		spec := s.Gangs[name].Doc.Spec
		fmt.Fprintf(&b, "%s: queue %s, nvlink %s, locality %s, relax %d", name, spec.Queue, spec.NVLink, spec.Locality, spec.RelaxAfterS)
		if spec.RelaxAuto {
			b.WriteString(" auto")
		}
		if spec.Comm != "" {
			fmt.Fprintf(&b, ", comm %s", spec.Comm)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// usedTime prints what was written about the use of queues.
func (w *world) usedTime() string {
	usage := w.load().Usage.Doc
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(usage.Queues)) {
		fmt.Fprintf(&b, "%s: %.0f GPU-seconds %s ago\n", name, usage.Queues[name], w.now.Sub(usage.At))
	}
	return b.String()
}
