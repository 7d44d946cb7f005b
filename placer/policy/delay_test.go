// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

// TestNobodyIsDelayed: where run times are stated and nobody goes before those that were submitted earlier, the gang that a
// place is kept for starts at its planned start or earlier, whatever starts meanwhile.
func TestNobodyIsDelayed(t *testing.T) {
	topology := gpu.NewTopology(machine(4, "switch"))
	kept, passed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			w.snapshot.Nodes = append(w.snapshot.Nodes, model.Node{
				Name: fmt.Sprintf("n%d", i), Topology: topology, Usable: gpu.FirstN(4), Free: gpu.FirstN(4), MemoryMB: 8,
			})
		}
		promised := map[string]time.Time{}
		var decider policy.Decider
		for minute := range 40 {
			now := epoch.Add(time.Duration(minute) * time.Minute)
			for i := len(w.snapshot.Running) - 1; i >= 0; i-- {
				if r := w.snapshot.Running[i]; !r.Started.Add(r.MaxRuntime).After(now) {
					w.free(r.Name)
				}
			}
			if minute < 20 && rapid.Bool().Draw(t, "comes") {
				w.snapshot.Gangs = append(w.snapshot.Gangs, model.Gang{
					Name: fmt.Sprintf("g%02d", minute), Submitted: now, WaitingSince: now, Locality: model.LocalityAny,
					MaxRuntime: time.Duration(rapid.IntRange(1, 15).Draw(t, "minutes")) * time.Minute,
					Groups: []model.Group{{
						Name: "w", Count: rapid.IntRange(1, 3).Draw(t, "count"), GPUs: rapid.IntRange(1, 4).Draw(t, "gpus"),
						MemoryMB: rapid.Int64Range(0, 4).Draw(t, "memory"),
					}},
				})
			}
			d := decider.Decide(w.snapshot, now)
			for _, wait := range d.Waits {
				if at, some := promised[wait.Gang]; some {
					must.True(t, now.Before(at), must.Sprintf("%s was to start at %s and waits at %s: %s", wait.Gang, at, now, wait.Reason.Text))
				}
				if wait.Planned != nil && wait.Planned.Sure {
					if _, some := promised[wait.Gang]; !some {
						promised[wait.Gang] = wait.Planned.At
						kept++
					}
					passed += len(d.Grants)
				}
			}
			for _, grant := range d.Grants {
				w.take(grant, now)
			}
		}
	})
	t.Logf("%d places kept, %d gangs started meanwhile", kept, passed)
}
