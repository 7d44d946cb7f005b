// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

func TestNodes_SayWhatIsWrongWithGPUs(t *testing.T) {
	list := listNodes(ledger.Snapshot{
		Nodes:        map[string]ledger.Versioned[ledger.Node]{"n1": {Doc: ledger.Node{Node: "n1", Machine: pairs("n1")}}},
		NodeSessions: map[string]string{"n1": "session"},
		Health: map[string]ledger.Versioned[ledger.Health]{"n1": {Doc: ledger.Health{GPUs: map[string]gpu.Health{
			"n1-0": {State: gpu.Healthy},
			"n1-1": {State: gpu.Busy, Reason: "no task has it, but it is used by process 123 (python3)", Since: ago(2 * time.Minute)},
			"n1-2": {State: gpu.Lost, Reason: "NVML does not list it any more"},
			"n1-3": {State: gpu.Busy, Reason: "no task has it, but it is used by process 7 (bash)", Since: ago(3 * time.Hour)},
		}}}},
	})
	must.Eq(t, `
Node  Place  Model            GPUs  Islands  Free  Gangs  State
n1    -      NVIDIA H100 NVL  4     2+2      1     -      1 lost, 2 busy
GPU 1 of n1 is busy for 2m00s: no task has it, but it is used by process 123 (python3)
GPU 2 of n1 is lost: NVML does not list it any more
GPU 3 of n1 is busy for 3h00m: no task has it, but it is used by process 7 (bash)`, "\n"+strings.TrimRight(list.text(noon), "\n"))
}
