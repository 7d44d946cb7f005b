// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
)

// GangCommand shows one gang: its state, why, and every member.
type GangCommand struct{ Meta }

// gangView is what `muster gang NAME -json` prints.
type gangView struct {
	Gang    ledger.Gang  `json:"gang"`
	Run     *ledger.Run  `json:"run,omitempty"`
	Members []memberView `json:"members"`
	// Refused are other jobs that have asked for the gang's name.
	Refused []ledger.Refusal `json:"refused,omitempty"`
}

// memberView is one member: its slot, who claimed it and how it runs.
type memberView struct {
	Rank   int            `json:"rank"`
	Group  string         `json:"group"`
	Node   string         `json:"node"`
	GPUs   []string       `json:"gpus"` // UUIDs
	Slot   string         `json:"slot"` // open | closing | gone
	Claim  *ledger.Claim  `json:"claim,omitempty"`
	Member *ledger.Member `json:"member,omitempty"`
	index  []string       // GPU indexes on the node, for people
}

// Synopsis is one line for the list of commands.
func (c *GangCommand) Synopsis() string { return "Show one gang and its members" }

// Help is the whole usage.
func (c *GangCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster gang [options] <name>

  Shows a gang: its state and the reason for it, where its members are, and
  their last checkpoints.
` + readHelp)
}

// Run prints the gang.
func (c *GangCommand) Run(args []string) int {
	return c.show("gang", c, args, 1, func(s ledger.Snapshot, _ string, names []string) (view, error) {
		doc, ok := s.Gangs[names[0]]
		if !ok {
			return nil, noGang(s, names[0])
		}
		return viewGang(s, doc.Doc), nil
	})
}

// noGang says why there is no such gang: a job that asked for it was refused, or nobody knows of it.
func noGang(s ledger.Snapshot, name string) error {
	for _, r := range listGangs(s).Refusals {
		if r.Gang == name || r.Job == name {
			return fmt.Errorf("no gang named %q: job %s %s", name, jobName(r.Namespace, r.Job), refusedText(r))
		}
	}
	return fmt.Errorf("no gang named %q; 'muster gangs' lists all", name)
}

// refusedText is "was refused: ...", for a job that may have been stopped for it.
func refusedText(r ledger.Refusal) string {
	if r.Ended {
		return "was refused and stopped: " + r.Why.Text
	}
	return "was refused: " + r.Why.Text
}

// viewGang joins what the ledger's documents say about one gang.
func viewGang(s ledger.Snapshot, g ledger.Gang) gangView {
	view := gangView{Gang: g, Members: []memberView{}}
	for _, r := range listGangs(s).Refusals {
		if r.Gang == g.Name && (r.Namespace != g.Namespace || r.Job != g.Job) {
			view.Refused = append(view.Refused, r)
		}
	}
	if g.Reservation == nil {
		return view
	}
	run, hasRun := s.Runs[ledger.RunID{Gang: g.Name, Reservation: g.Reservation.ID}]
	if hasRun && run.Run.Index > 0 {
		view.Run = &run.Run.Doc
	}
	for _, p := range g.Reservation.Placements {
		for i := range p.Members {
			m := memberView{Rank: p.Rank + i, Group: p.Group, Node: p.Node, Slot: "gone", GPUs: []string{}}
			id := ledger.SlotID{Reservation: g.Reservation.ID, Rank: m.Rank}
			if slot, ok := s.Tables[p.Node].Doc.Find(id); ok {
				m.Slot, m.GPUs = string(slot.State), slot.GPUs
				m.index = gpuIndexes(s.Nodes[p.Node].Doc, slot.GPUs)
			}
			if claim, ok := s.Claims[p.Node][id]; ok {
				m.Claim = &claim.Doc
			}
			if member, ok := run.Members[m.Rank]; ok {
				m.Member = &member.Doc
			}
			view.Members = append(view.Members, m)
		}
	}
	slices.SortFunc(view.Members, func(a, b memberView) int { return a.Rank - b.Rank })
	return view
}

// gpuIndexes names GPUs by their index on the node, as nvidia-smi does, or by UUID where the inventory lacks them.
func gpuIndexes(node ledger.Node, uuids []string) []string {
	names := make([]string, 0, len(uuids))
	for _, uuid := range uuids {
		name := uuid
		for _, g := range node.Machine.GPUs {
			if g.UUID == uuid {
				name = strconv.Itoa(g.Index)
			}
		}
		names = append(names, name)
	}
	return names
}

func (v gangView) text(now time.Time) string {
	g := v.Gang
	rows := [][]string{
		{"Gang", "= " + g.Name},
		{"Job", fmt.Sprintf("= %s (version %d)", jobName(g.Namespace, g.Job), g.JobVersion)},
		{"State", fmt.Sprintf("= %s for %s%s", g.State, age(now, g.Since), next(g))},
		{"Members", fmt.Sprintf("= %s GPUs, %d in all", shape(g.Spec), g.Spec.GPUs())},
		{"Wants", "= " + wants(g.Spec)},
		{"Submitted", "= " + age(now, g.Submitted) + " ago"},
	}
	if len(g.Set) > 0 {
		rows = append(rows, []string{"Set", "= " + knobText(g.Set) + ", in place of what the job says"})
	}
	if g.HoldUntil != nil && g.HoldUntil.After(now) {
		rows = append(rows, []string{"Held", "= by an operator for " + age(*g.HoldUntil, now) + " more"})
	}
	if g.Why != nil {
		rows = append(rows, []string{"Reason", "= " + g.Why.Text})
	}
	rows = append(rows, outlookRows(g, now)...)
	if g.Failures > 0 {
		rows = append(rows, []string{"Failures", fmt.Sprintf("= %d in a row", g.Failures)})
	}
	if r := g.Reservation; r != nil {
		rows = append(rows, []string{"Reservation", fmt.Sprintf("= %s, granted %s ago", r.ID, age(now, r.At))})
	}
	if v.Run != nil {
		rows = append(rows, []string{"Run", fmt.Sprintf("= generation %d, %s, master %s:%d",
			v.Run.Generation, v.Run.Phase, v.Run.MasterAddr, v.Run.MasterPort)})
	}
	if r := g.LastRun; r != nil {
		rows = append(rows, []string{"Last run", fmt.Sprintf("= %s %s ago: %s", r.Result, age(now, r.Ended), r.Reason.Text)})
	}
	for _, r := range v.Refused {
		rows = append(rows, []string{"Beside it", fmt.Sprintf("= job %s %s", jobName(r.Namespace, r.Job), refusedText(r))})
	}
	text := table(rows)
	if len(v.Members) == 0 {
		return text
	}
	members := [][]string{{"Rank", "Group", "Node", "GPUs", "Slot", "Allocation", "Member", "Last checkpoint"}}
	for _, m := range v.Members {
		members = append(members, []string{
			strconv.Itoa(m.Rank), m.Group, m.Node, dash(strings.Join(m.index, ",")), m.Slot,
			m.allocation(), m.state(), m.checkpoint(now),
		})
	}
	return text + "\n\n" + table(members)
}

// next says what a closing gang will be when its nodes have acknowledged, and who gets what it holds.
func next(g ledger.Gang) string {
	switch {
	case g.FreedFor != "":
		return fmt.Sprintf(", then %s; gang %s gets its GPUs", g.After, g.FreedFor)
	case g.State != ledger.GangClosing:
		return ""
	case g.After == "":
		return ", then gone"
	default:
		return fmt.Sprintf(", then %s", g.After)
	}
}

// wants says the scheduling knobs in words.
func wants(s ledger.Spec) string {
	text := fmt.Sprintf("NVLink %s, locality %s", s.NVLink, s.Locality)
	switch {
	case s.Locality == "any":
	case s.RelaxAuto:
		text += ", wider when waiting costs more than the slower run"
	case s.RelaxAfterS < 0:
		text += ", never wider"
	default:
		text += ", one level wider every " + jobspecs.ShortDuration(time.Duration(s.RelaxAfterS)*time.Second)
	}
	if s.Comm != "" {
		text += ", comm " + s.Comm
	}
	if s.MaxRuntimeS > 0 {
		text += ", max_runtime " + jobspecs.ShortDuration(time.Duration(s.MaxRuntimeS)*time.Second)
	}
	return text
}

func (m memberView) allocation() string {
	if m.Claim == nil {
		return "-"
	}
	return m.Claim.Allocation[:min(8, len(m.Claim.Allocation))]
}

func (m memberView) state() string {
	switch {
	case m.Member == nil && m.Claim != nil:
		return "claimed"
	case m.Member == nil:
		return "-"
	case m.Member.Why != "":
		return fmt.Sprintf("%s: %s", m.Member.State, m.Member.Why)
	default:
		return string(m.Member.State)
	}
}

func (m memberView) checkpoint(now time.Time) string {
	if m.Member == nil || m.Member.Checkpoint == nil {
		return "-"
	}
	c := m.Member.Checkpoint
	switch {
	case c.Problem != "":
		return fmt.Sprintf("%d: %s", c.Count, c.Problem)
	case c.Completed == nil:
		return fmt.Sprintf("%d: asked for %s ago", c.Count, age(now, c.Requested))
	default:
		took := time.Duration(c.TookMS) * time.Millisecond
		return fmt.Sprintf("%d: %s, %s ago, took %s", c.Count, dash(c.Entry), age(now, *c.Completed), took)
	}
}
