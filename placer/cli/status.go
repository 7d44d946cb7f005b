// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	nomadTimeout = 5 * time.Second // of what status asks Nomad; the rest is shown without it
	mostWaiting  = 5               // gangs that status names
)

// StatusCommand shows the whole on one screen.
type StatusCommand struct{ Meta }

// statusView is what `muster status -json` prints.
type statusView struct {
	Region      string           `json:"region"`
	Leader      string           `json:"leader"`                 // empty: none
	LeaderSince *time.Time       `json:"leader_since,omitempty"` // by the leader's own clock
	Epoch       string           `json:"epoch"`                  // empty: the ledger is new or was lost
	Rebuilding  []string         `json:"rebuilding"`             // nodes that are asked what they remember
	Newer       []string         `json:"newer"`                  // keys of documents of a newer version
	Nomad       nomadStatus      `json:"nomad"`
	Nodes       []nodeStatus     `json:"nodes"`
	GPUs        []modelStatus    `json:"gpus"`
	Gangs       map[string]int   `json:"gangs"`     // by state
	Waiting     []ledger.Gang    `json:"waiting"`   // those that have waited longest
	Proposals   []proposal       `json:"proposals"` // by the names of the gangs
	Refusals    []ledger.Refusal `json:"refusals"`
	Orders      []ledger.Order   `json:"orders"` // that no placer has taken yet
}

// proposal is what could be done for a gang that waits.
type proposal struct {
	Gang string      `json:"gang"`
	Move ledger.Move `json:"move"`
}

// nomadStatus is how Nomad answers this command.
type nomadStatus struct {
	Address string `json:"address"`
	Leader  string `json:"leader"`
	Problem string `json:"problem,omitempty"` // why it does not answer
}

// nodeStatus is one node in short.
type nodeStatus struct {
	Node  string `json:"node"`
	State string `json:"state"` // ready | silent | withheld | closed (by Nomad)
	Why   string `json:"why,omitempty"`
}

// modelStatus counts the GPUs of a model.
type modelStatus struct {
	Model     string `json:"model"`
	Total     int    `json:"total"`
	Free      int    `json:"free"`
	InSlots   int    `json:"in_slots"`
	Unhealthy int    `json:"unhealthy"`
	Unmanaged int    `json:"unmanaged"` // left to ordinary jobs, or in MIG mode
	Withheld  int    `json:"withheld"`  // free, but on a node that is not ready
}

// Synopsis is one line for the list of commands.
func (c *StatusCommand) Synopsis() string { return "Show the state of the whole cluster on one screen" }

// Help is the whole usage.
func (c *StatusCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster status [options]

  Shows who leads, whether the ledger and Nomad are in order, which nodes can be
  used and why others can't, what becomes of the GPUs, which gangs have waited
  longest and why, and which jobs were refused.

  Nomad is found by the usual variables: NOMAD_ADDR, NOMAD_TOKEN and so on.
  Without the right node:read the states that Nomad gives nodes are left out.
` + readHelp)
}

// Run prints the status.
func (c *StatusCommand) Run(args []string) int {
	return c.show("status", c, args, 0, func(s ledger.Snapshot, region string, _ []string) (view, error) {
		v := viewStatus(s, region)
		v.askNomad(c.Meta, s)
		v.countGPUs(s)
		return v, nil
	})
}

// viewStatus is what the ledger alone says.
func viewStatus(s ledger.Snapshot, region string) *statusView {
	v := &statusView{
		Region: region, Leader: s.Leader, Epoch: s.EpochID, Rebuilding: []string{}, Newer: append([]string{}, s.Newer...),
		Nodes: []nodeStatus{}, GPUs: []modelStatus{}, Gangs: map[string]int{}, Waiting: []ledger.Gang{}, Proposals: []proposal{}, Orders: []ledger.Order{},
	}
	if s.Leader != "" && !s.LeaderSince.IsZero() {
		v.LeaderSince = &s.LeaderSince
	}
	for _, node := range slices.Sorted(maps.Keys(s.Nodes)) {
		at := nodeStatus{Node: node, State: "ready", Why: s.Withheld(node)}
		switch {
		case s.NodeSessions[node] == "":
			at.State, at.Why = "silent", strings.TrimPrefix(at.Why, "silent: ")
		case at.Why != "":
			at.State = "withheld"
		}
		v.Nodes = append(v.Nodes, at)
		if s.Tables[node].Doc.Rebuild {
			v.Rebuilding = append(v.Rebuilding, node)
		}
	}
	list := listGangs(s)
	v.Refusals = slices.DeleteFunc(list.Refusals, func(r ledger.Refusal) bool { return r.Ended }) // those are dealt with
	for _, g := range list.Gangs {
		v.Gangs[string(g.State)]++
		if g.State == ledger.GangWaiting {
			v.Waiting = append(v.Waiting, g)
			if g.Outlook != nil && g.Outlook.Move != nil {
				v.Proposals = append(v.Proposals, proposal{Gang: g.Name, Move: *g.Outlook.Move})
			}
		}
	}
	slices.SortFunc(v.Proposals, func(a, b proposal) int { return strings.Compare(a.Gang, b.Gang) })
	slices.SortStableFunc(v.Waiting, func(a, b ledger.Gang) int { return a.Since.Compare(b.Since) })
	v.Waiting = v.Waiting[:min(mostWaiting, len(v.Waiting))]
	for _, name := range slices.Sorted(maps.Keys(s.Orders)) {
		if o := s.Orders[name].Doc; o.Answer == nil {
			v.Orders = append(v.Orders, o)
		}
	}
	return v
}

// askNomad adds what Nomad says, if it answers.
func (v *statusView) askNomad(m Meta, s ledger.Snapshot) {
	client, err := m.Nomad(v.Region)
	if err != nil {
		v.Nomad.Problem = err.Error()
		return
	}
	ctx, cancel := context.WithTimeout(m.Context, nomadTimeout)
	defer cancel()
	v.Nomad.Address = client.Address()
	if _, err := client.Raw().Query("/v1/status/leader", &v.Nomad.Leader, (&nomad.QueryOptions{}).WithContext(ctx)); err != nil {
		v.Nomad.Problem = err.Error()
		return
	}
	stubs, _, err := client.Nodes().List((&nomad.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return // it needs a right that not everybody has
	}
	closed := map[string]string{}
	for _, n := range stubs {
		switch {
		case n.Drain:
			closed[n.ID] = "draining"
		case n.Status != nomad.NodeStatusReady:
			closed[n.ID] = n.Status
		case n.SchedulingEligibility != nomad.NodeSchedulingEligible:
			closed[n.ID] = n.SchedulingEligibility
		default:
			closed[n.ID] = ""
		}
	}
	for i := range v.Nodes {
		at := &v.Nodes[i]
		why, known := closed[s.Nodes[at.Node].Doc.NodeID]
		if !known {
			why = "not known"
		}
		if why != "" && at.State == "ready" {
			at.State, at.Why = "closed", "Nomad: "+why
		}
	}
}

// countGPUs counts by model what becomes of the GPUs.
func (v *statusView) countGPUs(s ledger.Snapshot) {
	models := map[string]*modelStatus{}
	for _, at := range v.Nodes {
		n := s.Nodes[at.Node].Doc
		taken := map[string]bool{}
		for _, slot := range s.Tables[at.Node].Doc.Slots {
			for _, uuid := range slot.GPUs {
				taken[uuid] = true
			}
		}
		for _, g := range n.Machine.GPUs {
			m := models[g.Model]
			if m == nil {
				m = &modelStatus{Model: g.Model}
				models[g.Model] = m
			}
			m.Total++
			health, listed := s.Health[at.Node].Doc.GPUs[g.UUID]
			switch {
			case taken[g.UUID]:
				m.InSlots++
			case g.MIG || slices.Contains(n.Unmanaged, g.UUID):
				m.Unmanaged++
			case listed && health.State != gpu.Healthy:
				m.Unhealthy++
			case at.State != "ready":
				m.Withheld++
			default:
				m.Free++
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		v.GPUs = append(v.GPUs, *models[name])
	}
}

func (v *statusView) text(now time.Time) string {
	parts := []string{table([][]string{
		{"Leader", "= " + v.leaderText(now)},
		{"Ledger", "= " + v.ledgerText()},
		{"Nomad", "= " + v.nomadText()},
		{"Nodes", "= " + v.nodesText()},
		{"Gangs", "= " + v.gangsText()},
	})}
	add := func(title string, rows [][]string) {
		if len(rows) > 1 {
			parts = append(parts, title+table(rows))
		}
	}
	add("", v.gpuRows())
	add("", v.closedNodeRows())
	add("Waiting longest:\n", waitingRows(v.Waiting, now))
	for _, p := range v.Proposals {
		parts = append(parts, fmt.Sprintf("Proposal for gang %s: %s", p.Gang, moveText(p.Move)))
	}
	add("Refused:\n", refusedRows(v.Refusals, now))
	for _, o := range v.Orders {
		parts = append(parts, fmt.Sprintf("Not taken yet: order to %s gang %s, given by %s %s ago", o.Kind, o.Gang, o.By, age(now, o.At)))
	}
	return strings.Join(parts, "\n\n")
}

func (v *statusView) leaderText(now time.Time) string {
	switch {
	case v.Leader == "":
		return "none: no placer leads, so nothing is decided"
	case v.LeaderSince == nil:
		return v.Leader
	}
	return fmt.Sprintf("%s for %s", v.Leader, age(now, *v.LeaderSince))
}

func (v *statusView) ledgerText() string {
	text := "region " + v.Region
	if v.Epoch != "" {
		text += ", epoch " + v.Epoch
	} else {
		text += "; no epoch: it is new or was lost, and nothing is granted"
	}
	if len(v.Rebuilding) > 0 {
		text += "; being rebuilt, these nodes have yet to say what they remember: " + strings.Join(v.Rebuilding, ", ")
	}
	if len(v.Newer) > 0 {
		text += fmt.Sprintf("; %s of a newer version of Muster, which this one leaves alone: %s",
			countOf(len(v.Newer), "document"), strings.Join(v.Newer, ", "))
	}
	return text
}

func (v *statusView) nomadText() string {
	switch {
	case v.Nomad.Problem != "":
		return strings.TrimPrefix(v.Nomad.Address+" ", " ") + "does not answer: " + v.Nomad.Problem
	case v.Nomad.Leader == "":
		return v.Nomad.Address + " answers, but no server leads"
	}
	return fmt.Sprintf("%s answers, server %s leads", v.Nomad.Address, v.Nomad.Leader)
}

func (v *statusView) nodesText() string {
	counts := map[string]int{}
	for _, at := range v.Nodes {
		counts[at.State]++
	}
	return countsText(len(v.Nodes), counts, []string{"ready", "silent", "withheld", "closed"})
}

func (v *statusView) gangsText() string {
	total := 0
	order := []string{"running", "reserved", "closing", "waiting", "finished", "failed"}
	for _, n := range v.Gangs {
		total += n
	}
	text := countsText(total, v.Gangs, order)
	if n := len(v.Refusals); n > 0 {
		text += "; " + countOf(n, "job") + " refused"
	}
	return text
}

// countsText is "3: 2 ready, 1 silent".
func countsText(total int, counts map[string]int, order []string) string {
	var parts []string
	for _, state := range order {
		if n := counts[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if total == 0 {
		return "none"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

func (v *statusView) gpuRows() [][]string {
	rows := [][]string{{"Model", "GPUs", "Free", "In slots", "Withheld", "Unhealthy", "Unmanaged"}}
	for _, m := range v.GPUs {
		row := []string{m.Model}
		for _, n := range []int{m.Total, m.Free, m.InSlots, m.Withheld, m.Unhealthy, m.Unmanaged} {
			row = append(row, strconv.Itoa(n))
		}
		rows = append(rows, row)
	}
	return rows
}

func (v *statusView) closedNodeRows() [][]string {
	rows := [][]string{{"Node", "State", "Why"}}
	for _, at := range v.Nodes {
		if at.State != "ready" {
			rows = append(rows, []string{at.Node, at.State, cmp.Or(at.Why, "-")})
		}
	}
	return rows
}

func waitingRows(gangs []ledger.Gang, now time.Time) [][]string {
	rows := [][]string{{"Gang", "For", "GPUs", "Queue", "Reason"}}
	for _, g := range gangs {
		rows = append(rows, []string{g.Name, age(now, g.Since), strconv.Itoa(g.Spec.GPUs()), g.Spec.Queue, waitText(g, now)})
	}
	return rows
}

func refusedRows(refusals []ledger.Refusal, now time.Time) [][]string {
	rows := [][]string{{"Job", "For", "Reason"}}
	for _, r := range refusals {
		rows = append(rows, []string{jobName(r.Namespace, r.Job), age(now, r.At), r.Why.Text})
	}
	return rows
}
