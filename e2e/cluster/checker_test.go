// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// TestCheckerSees makes each thing that must never be, and checks that the checker says so.
func TestCheckerSees(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*moment)
		problem string // empty: all is well
	}{
		"a gang that runs whole": {change: func(*moment) {}},
		"a gang in the middle of its start": {
			change: func(m *moment) { m.holders = m.holders[:1]; m.now = m.holders[0].Started + 500*time.Millisecond },
		},
		"a member that has ended before the others": {
			change: func(m *moment) { m.again = m.holders[1:] },
		},
		"a gang that runs in part": {
			change:  func(m *moment) { m.holders = m.holders[:1] },
			problem: "runs in part: 1 of 2 members",
		},
		"processes that start apart": {
			change:  func(m *moment) { m.holders[1].Started += startSpread + 100*time.Millisecond },
			problem: "started 20.13s apart",
		},
		"two gangs on one GPU": {
			change: func(m *moment) {
				m.holders = append(m.holders, TaskProcess{Node: "n1", Gang: "b", Run: "r9/1", Rank: 0, Minors: []int{0}})
			},
			problem: "GPU n1/nvidia0 has processes of a rank 0 (r1/1) and of b rank 0 (r9/1)",
		},
		"two gangs on one GPU, one after the other": {
			change: func(m *moment) {
				second := TaskProcess{PID: 1, Node: "n1", Gang: "b", Run: "r9/1", Rank: 0, Minors: []int{0}}
				m.holders, m.ended = append(m.holders, second), map[int]bool{1: true}
			},
		},
		"a process before all have arrived": {
			change:  func(m *moment) { m.snapshot.Runs = runs(ledger.Run{Generation: 1, Phase: ledger.RunGathering}) },
			problem: "process of a rank 0 (r1/1) runs while generation 1 of its gang still gathers",
		},
		"a process of the generation before": {
			change: func(m *moment) { m.snapshot.Runs = runs(ledger.Run{Generation: 2, Phase: ledger.RunGathering}) },
		},
		"two generations of one rank": {
			change: func(m *moment) {
				second := m.holders[0]
				second.Run = "r1/2"
				m.holders = append(m.holders, second)
			},
			problem: "has processes of",
		},
		"two generations of a gang": {
			change: func(m *moment) {
				started, alive := startTime(os.Getpid())
				must.True(t, alive)
				m.holders[0].PID, m.holders[0].Started, m.holders[0].Minors = os.Getpid(), started, nil
				m.holders[1].Run = "r1/2"
			},
			problem: "rank 0 is of generation 1 and runs beside generation 2",
		},
		"a GPU outside the slot": {
			change:  func(m *moment) { m.holders[0].Minors = []int{1} },
			problem: "holds n1/nvidia1, which is not in its slot",
		},
		"a GPU in two slots": {
			change: func(m *moment) {
				table := m.snapshot.Tables["n1"]
				table.Doc.Slots = append(table.Doc.Slots, slot("r2", 0, "n1-0"))
				m.snapshot.Tables["n1"] = table
			},
			problem: "GPU n1-0 of n1 is in the slots r1.0 and r2.0",
		},
		"a slot without its gang": {
			change:  func(m *moment) { delete(m.snapshot.Gangs, "a") },
			problem: "slot r1.0 on n1 has no owner",
		},
		"a gang granted in part": {
			change:  func(m *moment) { m.snapshot.Tables["n2"] = ledger.Versioned[ledger.SlotTable]{} },
			problem: "gang a has 1 of its 2 slots",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := wholeGang()
			c.change(m)
			checker := &Checker{
				violations: map[string]bool{}, runs: map[string]*runWatch{}, holds: func(h TaskProcess, _ int) bool { return !m.ended[h.PID] },
			}
			checker.checkProcesses(m.holders)
			checker.sample(m.snapshot, m.holders, m.now)
			if m.again != nil {
				checker.sample(m.snapshot, m.again, m.now+time.Minute)
			}
			seen := strings.Join(checker.report.Violations, "\n")
			if c.problem == "" {
				must.Eq(t, "", seen)
			} else {
				must.StrContains(t, seen, c.problem)
			}
		})
	}
}

// moment is what one sample sees.
type moment struct {
	snapshot ledger.Snapshot
	holders  []TaskProcess
	now      time.Duration
	again    []TaskProcess // in a second sample; nil: there is none
	ended    map[int]bool  // processes that were seen and have ended
}

// runs is what the ledger says of the run of wholeGang.
func runs(run ledger.Run) map[ledger.RunID]ledger.RunState {
	return map[ledger.RunID]ledger.RunState{{Gang: "a", Reservation: "r1"}: {Run: ledger.Versioned[ledger.Run]{Doc: run}}}
}

// wholeGang is a gang of two members with one GPU each, on two nodes, that runs.
func wholeGang() *moment {
	snapshot := ledger.Snapshot{
		Nodes: map[string]ledger.Versioned[ledger.Node]{}, Tables: map[string]ledger.Versioned[ledger.SlotTable]{},
		Gangs: map[string]ledger.Versioned[ledger.Gang]{"a": {Doc: ledger.Gang{
			Name: "a", State: ledger.GangRunning, Reservation: &ledger.Grant{ID: "r1"},
			Spec: ledger.Spec{Groups: []ledger.GroupSpec{{Count: 2, GPUs: 1}}},
		}}},
	}
	for rank, node := range []string{"n1", "n2"} {
		snapshot.Nodes[node] = ledger.Versioned[ledger.Node]{Doc: ledger.Node{Machine: gpu.Machine{GPUs: []gpu.GPU{
			{UUID: node + "-0", Minor: 0}, {UUID: node + "-1", Minor: 1},
		}}}}
		snapshot.Tables[node] = ledger.Versioned[ledger.SlotTable]{Doc: ledger.SlotTable{Slots: []ledger.Slot{slot("r1", rank, node+"-0")}}}
	}
	return &moment{
		snapshot: snapshot, now: time.Hour,
		holders: []TaskProcess{
			{Node: "n1", Gang: "a", Run: "r1/1", Rank: 0, Minors: []int{0}, Started: 50 * time.Minute},
			{Node: "n2", Gang: "a", Run: "r1/1", Rank: 1, Minors: []int{0}, Started: 50*time.Minute + 30*time.Millisecond},
		},
	}
}

func slot(reservation string, rank int, gpu string) ledger.Slot {
	return ledger.Slot{
		Reservation: reservation, Rank: rank, Size: 2, GPUs: []string{gpu}, Driver: "muster", State: ledger.SlotOpen,
		Owner: ledger.Owner{Gang: "a"},
	}
}

func TestGPUMinor(t *testing.T) {
	for path, want := range map[string]int{
		"/dev/nvidia0": 0, "/tmp/x/n1/dev/nvidia12": 12, "/dev/nvidiactl": -1, "/dev/nvidia-uvm": -1, "/dev/null": -1, "socket:[12]": -1,
	} {
		minor, ok := gpuMinor(path)
		if want < 0 {
			must.False(t, ok, must.Sprint(path))
		} else {
			must.True(t, ok, must.Sprint(path))
			must.Eq(t, want, minor)
		}
	}
}
