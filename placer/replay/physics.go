// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/model"
)

// Physics is how a simulated cluster differs from an ideal one. The zero value is an ideal one: distance costs nothing, and
// a gang that is ended loses nothing and goes on where it was.
type Physics struct {
	Slowdown   bool          `json:"slowdown"`     // a gang runs at the speed that its placement allows, see speed
	Checkpoint time.Duration `json:"checkpoint"`   // between two checkpoints of a gang; what an ended one has done since its last is lost
	Close      time.Duration `json:"close"`        // from an eviction until the GPUs are free
	Restart    time.Duration `json:"restart_cost"` // a gang that was ended makes no progress for so long after its next start
}

// DefaultPhysics is what `muster replay` assumes: a checkpoint every 30 minutes (Check-N-Run's interval), a minute to
// end a gang, and ten minutes to get going again (Meta's measured restarts take 5 to 20).
func DefaultPhysics() Physics {
	return Physics{Slowdown: true, Checkpoint: 30 * time.Minute, Close: time.Minute, Restart: 10 * time.Minute}
}

// speed is how fast a gang runs at a placement, as a part of its best; at most 1.
func (p Physics) speed(g model.Gang, members []model.Member, nodeOf func(name string) *model.Node) float64 {
	if !p.Slowdown || g.Comm == model.CommNone {
		return 1
	}
	nodes := make(map[string]bool, len(members))
	racks := make(map[string]bool, 1)
	for _, m := range members {
		nodes[m.Node] = true
		racks[strings.Join(nodeOf(m.Node).Path, "/")] = true
	}
	return relative(g.GPUs(), len(nodes), len(racks))
}

func relative(gpus, nodes, racks int) float64 {
	least := (gpus + 7) / 8
	spread := float64(nodes) / float64(least)
	speed := 1.0
	switch {
	case spread >= 4:
		speed = 0.654
	case spread >= 2:
		speed = 0.938
	}
	if nodes > 1 && gpus <= 8 {
		speed *= 0.854
	}
	if racks > 1 {
		speed *= 0.854
	}
	return speed
}
