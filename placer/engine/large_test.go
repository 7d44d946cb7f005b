// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// largeWorld is a cluster of some nodes with long names.
func largeWorld(t *testing.T, nodes int) *world {
	w := newWorld(t)
	for i := range nodes {
		w.addNode(fmt.Sprintf("gpu-node-%03d.row7.rack12.example.com", i), "r1", 8)
	}
	w.settle()
	w.ack()
	return w
}

// TestTooLargeJob: a job that the ledger can't hold is refused, and no other job suffers from it.
func TestTooLargeJob(t *testing.T) {
	w := largeWorld(t, 1)
	var groups []string
	for i := range 200 {
		groups = append(groups, fmt.Sprintf("group-with-a-long-name-%d", i))
	}
	w.happen([]string{"job", "a-huge", "gpus=1", "groups=" + strings.Join(groups, ",")})
	w.happen([]string{"job", "plain", "gpus=8"})
	w.settle()
	s := w.load()
	must.Eq(t, WhyTooLarge, s.Refusals["default/a-huge"].Doc.Why.Code)
	must.Eq(t, ledger.GangReserved, s.Gangs["plain"].Doc.State)
}

// TestWidestGangCloses: whatever there is to say about the end of a gang of 126 nodes, it can be written down.
func TestWidestGangCloses(t *testing.T) {
	cases := map[string]func(w *world){
		"no member was placed": func(w *world) { w.now = w.now.Add(2 * time.Minute) },
		"a member failed with a long story": func(w *world) {
			w.place()
			w.claim("wide")
			w.happen([]string{"member", "wide", "rank=7", "state=failed", "why=" + strings.Repeat(`<a "long" story> `, 2000)})
		},
		"Nomad tells a long story": func(w *world) {
			w.place()
			for rank := range w.slotsOf("wide") {
				w.end("wide", rank, "failed", nomad.Task{Failed: true, Message: strings.Repeat("\x01", 9000)})
			}
		},
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			w := largeWorld(t, 126)
			w.happen([]string{"job", "wide", "gpus=8", "count=126"})
			w.settle()
			must.Eq(t, ledger.GangReserved, w.load().Gangs["wide"].Doc.State)
			end(w)
			w.settle()
			must.Eq(t, ledger.GangClosing, w.load().Gangs["wide"].Doc.State)
		})
	}
}

// TestUnwritableRefusal: a refusal that can't be written holds nobody else back.
func TestUnwritableRefusal(t *testing.T) {
	w := largeWorld(t, 1)
	key := w.ledger.Keys().Refusal("default", "bad")
	_, err := w.store.Txn(t.Context(), []ledger.Op{{Verb: ledger.Set, Key: key, Value: []byte(`{"version":99}`)}})
	must.NoError(t, err)
	w.happen([]string{"job", "bad", "gpus=8", "restart=delay"})
	w.happen([]string{"job", "good", "gpus=8"})
	w.settle()
	must.Eq(t, ledger.GangReserved, w.load().Gangs["good"].Doc.State)
}
