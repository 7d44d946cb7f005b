// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// ReleaseCommand shows what keeps closing slots from being free, and takes them out by force.
type ReleaseCommand struct{ Meta }

// releaseView is what `muster release GANG -json` prints.
type releaseView struct {
	Gang  *ledger.Gang `json:"gang"` // null: it is gone, and has left slots behind
	Slots []keptSlot   `json:"slots"`
	name  string
}

// keptSlot is one closing slot and what keeps it.
type keptSlot struct {
	Slot   ledger.Slot `json:"slot"`
	Node   string      `json:"node"`
	Silent bool        `json:"silent"` // the node's device plugin holds no session
	// Unheard says that the node has not answered the leading placer since that took the lead.
	Unheard bool   `json:"unheard"`
	Left    bool   `json:"left"` // no gang holds it any more
	Why     string `json:"why"`  // empty: nothing, it goes by itself
	index   []string
}

// Synopsis is one line for the list of commands.
func (c *ReleaseCommand) Synopsis() string {
	return "Show what keeps closing slots, and release them by force"
}

// Help is the whole usage.
func (c *ReleaseCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster release [options] <gang>

  Lists the closing slots of a gang, those that it has left behind on silent
  nodes among them, with what keeps each from being free: in the words of its
  node the processes on its GPUs, or what the ledger lacks.

  Slots go by themselves as soon as their nodes say that nothing uses them. With
  -force they go although a node does not: look at the list first. Whoever gets
  these GPUs next shares them with what is still there. A node that does not
  answer is granted nothing before it does; what it still has of the gang then
  comes back as closing.

Release Options:

  -force
    Take the slots out after a question on the terminal.

  -yes
    Don't ask. Needed where there is no terminal.

  -json
    Print JSON.
` + orderHelp)
}

// Run lists, and releases if told to.
func (c *ReleaseCommand) Run(args []string) int {
	var read readFlags
	var force, yes bool
	fs := c.flags("release")
	read.add(fs)
	fs.BoolVar(&force, "force", false, "")
	fs.BoolVar(&yes, "yes", false, "")
	if !c.parse(fs, args, c) {
		return exitFailed
	}
	if fs.NArg() != 1 {
		return c.wrongUse("release", "one name")
	}
	snapshot, err := c.load(read.region)
	if err != nil {
		return c.fail(err)
	}
	v, err := viewRelease(snapshot, fs.Arg(0))
	if err != nil {
		return c.fail(err)
	}
	if read.json {
		c.printJSON(v)
	} else {
		c.UI.Output(v.text(c.Now()))
	}
	if !force || len(v.Slots) == 0 {
		return exitDone
	}
	if err := c.agreed(v, yes, read.json); err != nil {
		return c.fail(err)
	}
	l, err := c.Open(read.region)
	if err != nil {
		return c.fail(err)
	}
	return c.release(l, v, read.json)
}

// agreed asks whether the slots may really go.
func (c *ReleaseCommand) agreed(v releaseView, yes, asJSON bool) error {
	switch {
	case yes:
		return nil
	case asJSON:
		return errors.New("a program that reads JSON can't be asked: add -yes")
	case !c.Terminal():
		return errors.New("nobody can be asked here: add -yes")
	}
	answer, err := c.UI.Ask(fmt.Sprintf("\nRelease %s of gang %s although something may still use the GPUs? Only \"yes\" does it:", countOf(len(v.Slots), "slot"), v.name))
	switch {
	case err != nil:
		return fmt.Errorf("asking: %w", err)
	case strings.TrimSpace(answer) != "yes":
		return errors.New("nothing was released")
	}
	return nil
}

// release orders it for each reservation that was shown.
func (c *ReleaseCommand) release(l *ledger.Ledger, v releaseView, asJSON bool) int {
	reservations := map[string]bool{}
	for _, kept := range v.Slots {
		reservations[kept.Slot.Reservation] = true
	}
	for _, reservation := range slices.Sorted(maps.Keys(reservations)) {
		order := ledger.Order{Gang: v.name, Kind: ledger.OrderRelease, Reservation: reservation}
		if err := c.give(l, order); err != nil {
			return c.fail(err)
		}
	}
	if !asJSON {
		c.UI.Output(fmt.Sprintf("Released: %s of gang %s", countOf(len(v.Slots), "slot"), v.name) + v.unheard())
	}
	return exitDone
}

// viewRelease gathers a gang's closing slots.
func viewRelease(s ledger.Snapshot, name string) (releaseView, error) {
	v := releaseView{name: name, Slots: []keptSlot{}}
	g, known := s.Gangs[name]
	if known {
		v.Gang = &g.Doc
	}
	for node, table := range s.Tables {
		for _, slot := range table.Doc.Slots {
			if slot.Owner.Gang != name || slot.State != ledger.SlotClosing {
				continue
			}
			v.Slots = append(v.Slots, keptSlot{
				Slot: slot, Node: node, Silent: s.NodeSessions[node] == "", Unheard: s.Unheard(node), Why: s.Keeps(node, slot),
				Left:  g.Doc.Reservation == nil || g.Doc.Reservation.ID != slot.Reservation,
				index: gpuIndexes(s.Nodes[node].Doc, slot.GPUs),
			})
		}
	}
	slices.SortFunc(v.Slots, func(a, b keptSlot) int {
		return cmp.Or(cmp.Compare(a.Slot.Reservation, b.Slot.Reservation), cmp.Compare(a.Slot.Rank, b.Slot.Rank))
	})
	if !known && len(v.Slots) == 0 {
		return v, fmt.Errorf("no gang named %q, and no slot of one; 'muster gangs' lists all", name)
	}
	return v, nil
}

func (v releaseView) text(now time.Time) string {
	head := fmt.Sprintf("Gang %s is gone, but has left slots behind", v.name)
	if g := v.Gang; g != nil {
		head = fmt.Sprintf("Gang %s is %s for %s", g.Name, g.State, age(now, g.Since))
		if g.Why != nil {
			head += ": " + g.Why.Text
		}
	}
	if len(v.Slots) == 0 {
		head += "\nNo slot of it is closing"
		if v.Gang.Reservation != nil {
			head += fmt.Sprintf("; 'muster preempt %s' takes its GPUs", v.name)
		}
		return head
	}
	rows := [][]string{{"Slot", "Node", "GPUs", "What keeps it"}}
	for _, kept := range v.Slots {
		rows = append(rows, []string{kept.Slot.ID().String(), kept.Node, dash(strings.Join(kept.index, ",")), kept.why()})
	}
	return head + "\n\n" + table(rows)
}

// unheard says what a release leaves open on nodes that have not answered; empty: nothing.
func (v releaseView) unheard() string {
	nodes := map[string]bool{}
	for _, kept := range v.Slots {
		if kept.Unheard {
			nodes[kept.Node] = true
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return "\nNothing is granted on " + strings.Join(slices.Sorted(maps.Keys(nodes)), ", ") +
		" before the leading placer has an answer; what is still there of the gang then comes back as closing"
}

// why is what keeps a slot, in words.
func (k keptSlot) why() string {
	text := cmp.Or(k.Why, "nothing: it goes by itself")
	if k.Silent {
		text += "; the node is silent, this is the last that is known"
	}
	if k.Unheard {
		text += "; the node has not answered the leading placer"
	}
	if k.Left {
		text += "; left behind, no gang holds it"
	}
	return text
}

// countOf is "1 slot" or "2 slots".
func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
