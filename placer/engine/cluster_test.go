// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestUsable: a gang that needs a GPU which is only busy waits for it; one that needs a sick GPU may wait for ever.
func TestUsable(t *testing.T) {
	n := ledger.Node{Unmanaged: []string{"e"}, Machine: gpu.Machine{GPUs: []gpu.GPU{{UUID: "a"}, {UUID: "b"}, {UUID: "c"}, {UUID: "d"}, {UUID: "e"}}}}
	health := ledger.Health{GPUs: map[string]gpu.Health{
		"a": {State: gpu.Busy, Reason: "a shell"}, "b": {State: gpu.Unhealthy}, "c": {State: gpu.Lost}, "e": {State: gpu.Healthy},
	}}
	must.Eq(t, gpu.SetOf(0, 3), usable(n, health))
}
