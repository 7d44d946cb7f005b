// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"slices"

	"github.com/nomad-muster/muster/placer/ledger"
)

// claimedByPlugin marks a claim that Reserve wrote, for a task of any driver but Muster's own.
const claimedByPlugin = "plugin"

// owns checks that an allocation is of the slot's owner. A child of a periodic or dispatched job counts as its parent,
// whose CreateIndex is not to be seen here; the placer compares that.
func owns(a allocation, s ledger.Slot) error {
	o := s.Owner
	switch {
	case a.namespace != o.Namespace || a.job != o.Job && a.parent != o.Job:
		return fmt.Errorf("slot %s belongs to job %s in namespace %s, not to job %s in namespace %s", slotName(s), o.Job, o.Namespace, a.job, a.namespace)
	case a.group != o.Group:
		return fmt.Errorf("slot %s belongs to group %s of job %s, not to group %s", slotName(s), o.Group, o.Job, a.group)
	case a.job == o.Job && a.jobCreated != 0 && a.jobCreated != o.CreateIndex:
		return fmt.Errorf("slot %s belongs to an earlier registration of job %s (create index %d, not %d)", slotName(s), o.Job, o.CreateIndex, a.jobCreated)
	}
	return nil
}

// holderOf finds the allocation that is about to start on instance IDs: of those that name exactly these and are not on
// their way out, the newest.
func holderOf(ids []string, allocs []allocation) (holder allocation, task string, found bool) {
	for _, a := range allocs {
		if a.ended || a.forgotten || a.stopping || found && a.created < holder.created {
			continue
		}
		for name, has := range a.instanceIDs {
			if sameSet(has, ids) {
				holder, task, found = a, name, true
			}
		}
	}
	return holder, task, found
}

// hasSucceeded says whether a task on these instance IDs has done its work. Nomad forgets that when the group has
// max_client_disconnect, and may place the member again: it must not run a second time beside the others.
func hasSucceeded(ids []string, allocs []allocation) bool {
	return slices.ContainsFunc(allocs, func(a allocation) bool {
		return a.succeeded && a.uses(func(id string) bool { return slices.Contains(ids, id) })
	})
}

// finished are the claims to end now, of those that no driver looks after: claims of an earlier boot, claims that Reserve
// wrote, and claims that a ledger that was set back has again although their driver has ended them, so that their slot is
// gone or another task's. A claim ends when its allocation has ended, or Nomad has forgotten it, and no process of its is
// on the GPUs. Ending the task of another driver
// whose slot closes is the placer's part, which has Nomad's rights for it.
func (w *world) finished(seen evidence) []ledger.SlotID {
	var done []ledger.SlotID
	for _, id := range sortedIDs(seen.claims) {
		claim := seen.claims[id]
		slot, known := w.table.Find(id)
		lost, replaced := w.unlisted[id]
		replaced = replaced && lost.Allocation != claim.Allocation
		if !replaced && w.processOn(slot.GPUs, seen) != (busy{}) {
			continue
		}
		ours := claim.By == claimedByPlugin || w.setBack != "" || !known || replaced
		if !w.holds(claim) || ours && seen.allocsErr == nil && seen.over(claim.Allocation) {
			done = append(done, id)
		}
	}
	return done
}

// over says that an allocation has ended, or that Nomad has forgotten it.
func (seen evidence) over(allocID string) bool {
	i := slices.IndexFunc(seen.allocs, func(a allocation) bool { return a.id == allocID })
	return i < 0 || seen.allocs[i].ended || seen.allocs[i].forgotten
}
