// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"

	"github.com/nomad-muster/muster/placer/ledger"
)

// standing is how a gang's job stands to it.
type standing int

const (
	unknown standing = iota // Nomad has not said; nothing follows
	owns                    // the job asks for this gang, or was stopped by us and will again
	stopped                 // the job was stopped; it may be run again
	left                    // the job does not ask for this gang any more, or is gone
)

// owner says how a gang's job stands to it, with the reason in words when the gang has lost it.
func (s step) owner(g ledger.Gang) (w want, how standing, why string) {
	id := jobOf(g)
	if text, gone := s.Nomad.Gone[id]; gone {
		return want{}, left, text
	}
	w, asks := s.wants[id]
	switch {
	case s.Nomad.Jobs[id] == nil:
		return w, unknown, ""
	case !asks:
		return w, left, fmt.Sprintf("job %s does not ask for GPUs of a gang any more", g.Job)
	case w.job.CreateIndex != g.CreateIndex:
		return w, left, fmt.Sprintf("job %s was purged and registered anew", g.Job)
	case g.Reset != nil && w.job.StoppedForReset(g.Reset.FromVersion):
		return w, owns, ""
	case w.job.Stopped:
		return w, stopped, fmt.Sprintf("job %s was stopped", g.Job)
	case w.job.Version != g.JobVersion && w.refused != nil:
		return w, left, fmt.Sprintf("job %s was edited and can't be admitted: %s", g.Job, w.refused.Text)
	case w.job.Version != g.JobVersion && w.name != g.Name:
		return w, left, fmt.Sprintf("job %s asks for gang %s now", g.Job, w.name)
	}
	return w, owns, ""
}
