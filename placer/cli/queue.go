// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/queues"
)

// QueueListCommand lists queues with what they use.
type QueueListCommand struct{ Meta }

// queueList is what `muster queue list -json` prints.
type queueList struct {
	Queues    []queueView   `json:"queues"`
	Policy    ledger.Policy `json:"policy"`
	By        string        `json:"by,omitempty"`
	AppliedAt time.Time     `json:"applied_at,omitzero"` // zero: no queues were applied
	UsageAt   time.Time     `json:"usage_at,omitzero"`   // the moment that used GPU time is of
	HalfLifeS int64         `json:"half_life_s"`
}

// queueView is a queue with what it and all queues inside use.
type queueView struct {
	ledger.Queue
	Listed       bool    `json:"listed"` // it is in the file that was applied
	Used         int     `json:"used"`   // GPUs held, those that are being given back included
	Borrowed     int     `json:"borrowed"`
	WaitingGangs int     `json:"waiting_gangs"`
	WaitingGPUs  int     `json:"waiting_gpus"`
	GPUSeconds   float64 `json:"gpu_seconds"`     // used so far, decayed by the half-life
	Lately       float64 `json:"lately"`          // GPUs that steady use of them comes to
	Share        float64 `json:"share,omitempty"` // Lately, as a part of the quota; 0: it has none
}

// Synopsis is one line for the list of commands.
func (c *QueueListCommand) Synopsis() string { return "List queues and what they use" }

// Help is the whole usage.
func (c *QueueListCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster queue list [options]

  Lists every queue. All figures are GPUs, and count the queues inside it as well:
  Used are those that its gangs hold, Borrowed what is above its quota, Waiting
  what its waiting gangs ask for. Lately is how many it has held on average, where
  use counts half as much for each half-life that has passed since, and Share the
  part of its quota that this is. Queues that stay within their quota with their
  next gang go first, the one that has the least of it before the others; then those
  that borrow, by what they have above their quota for their weight. What a queue
  has is half of Used plus half of Lately.
` + readHelp)
}

// Run prints the list.
func (c *QueueListCommand) Run(args []string) int {
	return c.show("queue list", c, args, 0, func(s ledger.Snapshot, _ string, _ []string) (view, error) { return listQueues(s) })
}

// listQueues are the queues in the order of the file, then "default", then those that gangs are in although they are not
// there.
func listQueues(s ledger.Snapshot) (queueList, error) {
	if err := readable(s); err != nil {
		return queueList{}, err
	}
	doc := s.Queues.Doc
	tree := queues.New(doc)
	halfLife := cmp.Or(time.Duration(s.Usage.Doc.HalfLifeS)*time.Second, tree.HalfLife()) // the former until use is written again
	list := queueList{
		Queues: []queueView{}, Policy: doc.Policy, By: doc.By, AppliedAt: doc.At, UsageAt: s.Usage.Doc.At,
		HalfLifeS: int64(halfLife / time.Second),
	}
	add := func(q ledger.Queue, listed bool) {
		if !slices.ContainsFunc(list.Queues, func(v queueView) bool { return v.Name == q.Name }) {
			list.Queues = append(list.Queues, queueView{Queue: q, Listed: listed})
		}
	}
	for _, q := range tree.Listed() {
		add(q, true)
	}
	add(ledger.Queue{Name: jobspecs.DefaultQueue}, false)
	var strange []string
	for _, g := range s.Gangs {
		if holds(g.Doc) > 0 || g.Doc.State == ledger.GangWaiting {
			strange = append(strange, g.Doc.Spec.Queue)
		}
	}
	slices.Sort(strange)
	for _, name := range strange {
		add(ledger.Queue{Name: name}, false)
	}
	for i := range list.Queues {
		list.Queues[i].count(s, halfLife)
	}
	return list, nil
}

// readable says in words that the queues can't be read, if so.
func readable(s ledger.Snapshot) error {
	if at := slices.IndexFunc(s.Newer, func(key string) bool { return strings.HasSuffix(key, "/queues") }); at >= 0 {
		return fmt.Errorf("%s was written by a newer version of Muster; upgrade this one", s.Newer[at])
	}
	return nil
}

// holds are the GPUs that a gang's reservation has.
func holds(g ledger.Gang) int {
	n := 0
	if g.Reservation != nil {
		for _, p := range g.Reservation.Placements {
			n += p.Members * p.GPUs
		}
	}
	return n
}

// count fills in what the queue and all inside it use and wait for.
func (v *queueView) count(s ledger.Snapshot, halfLife time.Duration) {
	within := func(queue string) bool { return queue == v.Name || strings.HasPrefix(queue, v.Name+".") }
	for _, g := range s.Gangs {
		if !within(g.Doc.Spec.Queue) {
			continue
		}
		v.Used += holds(g.Doc)
		if g.Doc.State == ledger.GangWaiting {
			v.WaitingGangs++
			v.WaitingGPUs += g.Doc.Spec.GPUs()
		}
	}
	for queue, used := range s.Usage.Doc.Queues {
		if within(queue) {
			v.GPUSeconds += used
		}
	}
	v.GPUSeconds = math.Round(v.GPUSeconds*1000) / 1000 // so that the order of adding up does not show
	v.Borrowed = max(0, v.Used-v.Quota)
	v.Lately = v.GPUSeconds * math.Ln2 / halfLife.Seconds()
	if v.Quota > 0 {
		v.Share = v.Lately / float64(v.Quota)
	}
}

func (l queueList) text(now time.Time) string {
	rows := [][]string{{"Queue", "Quota", "Max", "Used", "Borrowed", "Waiting", "Lately", "Share"}}
	var gone []string
	for _, v := range l.Queues {
		rows = append(rows, v.row())
		if !v.Listed && !l.AppliedAt.IsZero() && v.Name != jobspecs.DefaultQueue {
			gone = append(gone, v.Name)
		}
	}
	text := table(rows)
	for _, name := range gone {
		text += fmt.Sprintf("\nThere is no queue %s any more: what runs in it goes on, what waits in it does not start", name)
	}
	return text + "\n\n" + l.footer(now)
}

func (v queueView) row() []string {
	row := []string{
		v.Name, strconv.Itoa(v.Quota), strconv.Itoa(v.Max), strconv.Itoa(v.Used), strconv.Itoa(v.Borrowed),
		v.waiting(), fmt.Sprintf("%.1f", v.Lately), "-",
	}
	if v.Max == 0 {
		row[2] = "-"
	}
	if v.Quota > 0 {
		row[7] = fmt.Sprintf("%.0f %%", v.Share*100)
	}
	return row
}

// waiting is "24 (3 gangs)".
func (v queueView) waiting() string {
	switch v.WaitingGangs {
	case 0:
		return "0"
	case 1:
		return fmt.Sprintf("%d (1 gang)", v.WaitingGPUs)
	}
	return fmt.Sprintf("%d (%d gangs)", v.WaitingGPUs, v.WaitingGangs)
}

// footer says where queues and figures come from.
func (l queueList) footer(now time.Time) string {
	if l.AppliedAt.IsZero() {
		return "No queues were applied: all gangs are in one queue without quota or limit"
	}
	text := fmt.Sprintf("Applied by %s %s ago", l.By, age(now, l.AppliedAt))
	if !l.UsageAt.IsZero() {
		half := jobspecs.ShortDuration(time.Duration(l.HalfLifeS) * time.Second)
		text += fmt.Sprintf("; use lately as of %s ago, with a half-life of %s", age(now, l.UsageAt), half)
	}
	return text
}
