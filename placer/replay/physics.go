// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

import "time"

// Physics is how a simulated cluster differs from an ideal one. The zero value is an ideal one: distance costs nothing, and
// a gang that is ended loses nothing and goes on where it was.
type Physics struct {
	Slowdown   bool          `json:"slowdown"`     // a gang runs at the speed that its placement allows: package locality
	Checkpoint time.Duration `json:"checkpoint"`   // between two checkpoints of a gang; what an ended one has done since its last is lost
	Close      time.Duration `json:"close"`        // from an eviction until the GPUs are free
	Restart    time.Duration `json:"restart_cost"` // a gang that was ended makes no progress for so long after its next start
}

// DefaultPhysics is what `muster replay` assumes: a checkpoint every 30 minutes (Check-N-Run's interval), a minute to
// end a gang, and ten minutes to get going again (Meta's measured restarts take 5 to 20).
func DefaultPhysics() Physics {
	return Physics{Slowdown: true, Checkpoint: 30 * time.Minute, Close: time.Minute, Restart: 10 * time.Minute}
}
