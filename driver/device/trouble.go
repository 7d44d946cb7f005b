// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"maps"

	"github.com/nomad-muster/muster/placer/ledger"
)

// settleTrouble keeps what is noted about slots and strangers in step with the table.
func (w *world) settleTrouble(present map[ledger.SlotID]bool) {
	for _, claims := range []map[ledger.SlotID]ledger.Claim{w.claims, w.unlisted} {
		for id := range claims {
			if present[id] {
				w.serve(id)
			}
		}
	}
	w.served = keep(w.served, func(id ledger.SlotID) bool { return present[id] })
	w.kept = keep(w.kept, func(id ledger.SlotID) bool {
		s, _ := w.table.Find(id)
		return s.State == ledger.SlotClosing && !w.cleared[id]
	})
	w.unattended = keep(w.unattended, func(id ledger.SlotID) bool { return w.outage && present[id] })
	free := map[string]bool{}
	for _, uuid := range w.freeGPUs() {
		free[uuid] = true
	}
	w.strangers = keep(w.strangers, func(uuid string) bool { return free[uuid] })
}

// serve notes that a task may start on a slot.
func (w *world) serve(id ledger.SlotID) {
	if !w.served[id] {
		served := map[ledger.SlotID]bool{id: true}
		maps.Copy(served, w.served)
		w.served = served
	}
}

// keeps notes and logs what keeps a closing slot, when that is something else than before.
func (a *acknowledger) keeps(s ledger.Slot, b busy) {
	id := s.ID()
	if w, _ := a.world.get(); w.kept[id].by == b.by {
		return
	}
	a.log.Info("closing slot is not clear yet", "slot", slotName(s), "reservation", s.Reservation, "because", b.text)
	a.world.update(func(w *world) {
		kept := map[ledger.SlotID]busy{}
		maps.Copy(kept, w.kept)
		kept[id] = b
		w.kept = kept
	})
}
