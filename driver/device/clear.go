// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// evidence is what was seen for the question whether GPUs are in use. A part that could not be asked proves nothing.
type evidence struct {
	processes map[string][]gpu.Process // by GPU UUID; a GPU that is missing here could not be asked
	names     map[int]string           // of processes, for people
	claims    map[ledger.SlotID]ledger.Claim
	allocs    []allocation
	claimsErr error // why there are no claims
	allocsErr error // why there are no allocations
}

// busy is what keeps GPUs from being free: by whom, so that a log can tell whether that changes, and in words. The zero
// value: nothing does.
type busy struct{ by, text string }

// noAnswer stands for the user of a GPU that nobody can name.
const noAnswer = "NVML"

// maxBusyBytes is how much of the text others get to read.
const maxBusyBytes = 120

// inUse says what keeps a slot's GPUs from being free. They are when no claim of this boot holds the slot, NVML sees no
// process on them, and no allocation that names the reservation is open by its client's word. Processes on a slot that no
// task ever got are not its gang's, which shall not wait for them: see leave.
func (w *world) inUse(s ledger.Slot, seen evidence) busy {
	if b := w.processOn(s.GPUs, seen); b.by == noAnswer || b != (busy{}) && w.served[s.ID()] {
		return b
	}
	if seen.claimsErr != nil {
		return busy{"claims", "the claims can't be read: " + seen.claimsErr.Error()}
	}
	if claim, ok := seen.claims[s.ID()]; ok && w.holds(claim) {
		return busy{"claim " + claim.Allocation, fmt.Sprintf("task %s of allocation %s still has its claim", claim.Task, claim.Allocation)}
	}
	if seen.allocsErr != nil {
		return busy{"agent", seen.allocsErr.Error()}
	}
	for _, a := range seen.allocs {
		if !a.ended && !a.forgotten && a.uses(w.instanceOf(s)) {
			return busy{"allocation " + a.id, fmt.Sprintf("allocation %s has not ended", a.id)}
		}
	}
	return busy{}
}

// instanceOf says whether an instance ID is of the slot.
func (w *world) instanceOf(s ledger.Slot) func(id string) bool {
	ids := make(map[string]bool, len(s.GPUs))
	for _, uuid := range s.GPUs {
		ids[ledger.InstanceID(uuid, s.Reservation)] = true
	}
	return func(id string) bool { return ids[id] }
}

// processOn names the processes on GPUs, if NVML sees any. A GPU that has fallen off the bus has no users that NVML
// could name, and is not given to anybody either.
func (w *world) processOn(uuids []string, seen evidence) busy {
	for _, uuid := range uuids {
		processes, asked := seen.processes[uuid]
		if !asked && w.discovered && w.trouble == "" && w.healthOf(uuid).State == gpu.Lost {
			continue
		}
		if !asked {
			return busy{noAnswer, fmt.Sprintf("NVML does not say who uses GPU %s", uuid)}
		}
		if len(processes) > 0 {
			by := "process " + strconv.Itoa(processes[0].PID) // the lowest; the others may come and go
			return busy{by, fmt.Sprintf("GPU %s is used by %s", uuid, describeProcesses(processes, seen.names))}
		}
	}
	return busy{}
}

// describeProcesses names a few processes.
func describeProcesses(processes []gpu.Process, names map[int]string) string {
	const most = 4
	var words []string
	for i, p := range processes {
		if i == most {
			words = append(words, fmt.Sprintf("%d more", len(processes)-most))
			break
		}
		word := fmt.Sprintf("process %d", p.PID)
		if name := names[p.PID]; name != "" {
			word += " (" + name + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// ack is what this node tells the placer. Cleared slots stay listed until they leave the table.
func (w *world) ack() ledger.Ack {
	a := ledger.Ack{Version: ledger.Version, Epoch: w.table.Epoch, Sequence: w.table.Sequence, BootID: w.self.bootID}
	if w.asked != nil {
		a.Epoch, a.Sequence, a.Remembered = w.asked.Epoch, w.asked.Sequence, w.remembered()
	}
	for _, id := range sortedIDs(w.cleared) {
		a.Clear = append(a.Clear, id.String())
	}
	for id, b := range w.kept {
		if a.Busy == nil {
			a.Busy = make(map[string]string, len(w.kept))
		}
		a.Busy[id.String()] = shorten(b.text, maxBusyBytes)
	}
	return a
}

// shorten cuts a text that is longer than so many bytes, between two characters.
func shorten(text string, most int) string {
	const ellipsis = "…"
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	end := most - len(ellipsis)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

// closing lists the slots whose GPUs are waited for.
func (w *world) closing() []ledger.Slot {
	var slots []ledger.Slot
	for _, s := range w.table.Slots {
		if s.State == ledger.SlotClosing && !w.cleared[s.ID()] {
			slots = append(slots, s)
		}
	}
	return slots
}
