// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package replay

// overtakes says whether a gang of the same queue that was submitted earlier still waits.
func (w *world) overtakes(l *life) bool {
	if !l.scored {
		return false
	}
	for i := range w.snapshot.Gangs {
		g := &w.snapshot.Gangs[i]
		if !g.Submitted.Before(l.job.Submitted) {
			return false
		}
		if g.Queue == l.job.Queue && w.byName[g.Name].phase == waiting {
			return true
		}
	}
	return false
}
