// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// TestScripts runs the stories in testdata. Each "do" is a list of things that happen at once, followed by what the
// leader did about them; "show" prints the ledger.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t)
		w.settle()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "do":
				for line := range strings.Lines(d.Input) {
					w.happen(words(line))
				}
				return w.settle()
			case "show":
				return w.show()
			case "waits":
				return w.waits()
			case "queues":
				w.applyQueues(d.Input)
				return w.settle()
			case "specs":
				return w.specs()
			case "used":
				return w.usedTime()
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

// words splits a line at spaces outside of quotes, and drops the quotes.
func words(line string) []string {
	quoted := false
	parts := strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\n')
	})
	for i, part := range parts {
		parts[i] = strings.ReplaceAll(part, `"`, "")
	}
	return parts
}

// event is one line of a "do": a word, a name, and options.
type event struct {
	w       *world
	name    string
	options map[string]string
}

func (e event) text(key, byDefault string) string {
	if value, set := e.options[key]; set {
		return value
	}
	return byDefault
}

func (e event) number(key string, byDefault int) int {
	n, err := strconv.Atoi(e.text(key, strconv.Itoa(byDefault)))
	must.NoError(e.w.t, err)
	return n
}

func (e event) job() nomad.JobID {
	return nomad.JobID{Namespace: e.text("namespace", "default"), ID: e.name}
}

func (w *world) happen(words []string) {
	e := event{w: w, options: map[string]string{}}
	for _, word := range words[1:] {
		if key, value, is := strings.Cut(word, "="); is {
			e.options[key] = value
		} else {
			e.name = word
		}
	}
	events := map[string]func(event){
		"node":   func(e event) { w.addNode(e.name, e.text("rack", "r1"), e.number("gpus", 8)) },
		"job":    func(e event) { w.submit(e.spec()) },
		"stop":   func(e event) { w.stop(e.job()) },
		"purge":  func(e event) { w.purge(e.job()) },
		"status": func(e event) { *w.jobs[e.job()].Status = e.text("is", "dead") },
		"place":  func(event) { w.place() },
		"claim":  func(e event) { w.claim(e.name, e.ranks()...) },
		"run": func(e event) {
			w.runAgain(e.name, e.number("generation", 1), ledger.RunPhase(e.text("phase", "running")), e.text("why", ""))
		},
		"member": func(e event) { e.member() },
		"end":    func(e event) { e.end() },
		"vanish": func(e event) { e.vanish() },
		"alloc":  func(e event) { e.alloc() },
		"ack":    func(e event) { w.ack(e.name, e.text("forgotten", "")) },
		"undrain": func(e event) {
			w.nodes[e.name].DrainStrategy, w.nodes[e.name].ModifyIndex = nil, w.next()
		},
		"drain": func(e event) {
			w.nodes[e.name].DrainStrategy = &structs.DrainStrategy{}
			w.nodes[e.name].ModifyIndex = w.next()
		},
		"state":    func(e event) { w.nodes[e.name].Status = e.text("is", "down") },
		"silent":   func(e event) { e.silence() },
		"away":     func(e event) { e.away() },
		"back":     func(e event) { e.back() },
		"rights":   func(e event) { w.rights, w.allowed = e.text("is", ""), e.number("after", 0) },
		"budget":   func(e event) { w.leader.Rules.MaxFailures = e.number("is", 0) },
		"outage":   func(e event) { w.stale = e.text("is", "nomad does not answer") },
		"makeroom": func(event) { w.decide = makeRoom },
		"recover":  func(event) { w.stale = "" },
		"wait":     func(e event) { e.wait() },
		"elect":    func(e event) { e.elect() },
		"load":     func(e event) { e.load() },
		"beside":   func(e event) { e.beside() },
		"sweep":    func(e event) { e.sweep() },
		"epoch":    func(event) { e.loseEpoch() },
		"order":    func(e event) { e.order() },

		"save":     func(event) { w.saved = w.store.Save() },
		"restore":  func(event) { w.restore() },
		"lose":     func(event) { w.lose() },
		"reassert": func(event) { w.reassert() },
	}
	do := events[words[0]]
	if do == nil {
		w.t.Fatalf("nothing is called %q", words[0])
		return
	}
	do(e)
}

// spec makes a job that meets the contract.
func (e event) spec() *api.Job {
	gang := e.text("gang", e.name)
	job := api.NewBatchJob(e.name, e.name, "global", e.number("priority", 50))
	job.Datacenters = []string{e.text("datacenter", "dc1")}
	if parent, set := e.options["parent"]; set {
		job.ParentID = &parent
	}
	job.Namespace = new(string)
	*job.Namespace = e.text("namespace", "default")
	for _, name := range strings.Split(e.text("groups", "worker"), ",") {
		value := gang
		if e.text("groups", "") != "" {
			value = gang + "/" + name
		}
		driver := e.text("driver", "muster")
		task := api.NewTask("main", driver)
		task.SetConfig("command", "train")
		count, gpus := e.number("count", 1), uint64(e.number("gpus", 8))
		cpu, memory := 100, e.number("memory", 300)
		task.Require(&api.Resources{CPU: &cpu, MemoryMB: &memory, Devices: []*api.RequestedDevice{{
			Name: "muster/gang", Count: &gpus,
			Constraints: []*api.Constraint{{LTarget: "${device.attr.gang}", RTarget: value, Operand: "="}},
		}}})
		if _, set := e.options["bare"]; set {
			task.Resources.Devices[0].Constraints = nil
		}
		group := api.NewTaskGroup(name, count).AddTask(task)
		attempts, unlimited, mode, delay, constant, disconnect := 0, true, e.text("restart", "fail"), 5*time.Second, "constant", 15*time.Minute
		group.RestartPolicy = &api.RestartPolicy{Attempts: &attempts, Mode: &mode}
		group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: &attempts, Unlimited: &unlimited, Delay: &delay, DelayFunction: &constant}
		group.Disconnect = &api.DisconnectStrategy{LostAfter: &disconnect}
		if port := e.number("port", 0); port > 0 {
			group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: port}}}}
		}
		if _, set := e.options["distinct"]; set {
			group.Constrain(api.NewConstraint("", "distinct_hosts", "true"))
		}
		for _, key := range []string{"queue", "locality", "relax_after", "nvlink", "comm"} {
			if value, set := e.options[key]; set {
				group.SetMeta("muster_"+key, value)
			}
		}
		if value, set := e.options["checkpoint"]; set {
			group.SetMeta("muster_checkpoint_signal", value)
		}
		job.AddTaskGroup(group)
	}
	return job
}

// order is what an operator's command writes.
func (e event) order() {
	o := ledger.Order{
		Gang: e.name, Kind: ledger.OrderKind(e.text("to", "preempt")), Reason: e.text("why", ""), HoldS: int64(e.number("hold", 0)),
		Reservation: e.text("reservation", ""), By: "operator",
	}
	for _, pair := range words(e.text("knobs", "")) {
		if o.Values == nil {
			o.Values = map[string]string{}
		}
		knob, value, _ := strings.Cut(pair, ":")
		o.Values[knob] = value
	}
	_, err := e.w.ledger.PutOrder(e.w.t.Context(), o)
	must.NoError(e.w.t, err)
}

func (e event) ranks() []int {
	text, set := e.options["ranks"]
	if !set {
		return nil
	}
	var ranks []int
	for _, part := range strings.Split(text, ",") {
		n, err := strconv.Atoi(part)
		must.NoError(e.w.t, err)
		ranks = append(ranks, n)
	}
	return ranks
}

func (e event) member() {
	_, lost := e.options["lost"]
	m := ledger.Member{State: ledger.MemberState(e.text("state", "running")), Why: e.text("why", ""), Generation: e.number("generation", 1), Lost: lost}
	if _, set := e.options["exit"]; set {
		code := e.number("exit", 0)
		m.ExitCode = &code
	}
	e.w.member(e.w.slotsOf(e.name)[e.number("rank", 0)], m)
}

func (e event) end() {
	task := nomad.Task{Message: e.text("why", "")}
	client := e.text("client", structs.AllocClientStatusFailed)
	if _, set := e.options["exit"]; set {
		code := e.number("exit", 0)
		task.Exit = &code
	}
	task.Failed = client == structs.AllocClientStatusFailed
	for _, rank := range e.ranks() {
		e.w.end(e.name, rank, client, task)
	}
}

// alloc changes what Nomad says about a member's living allocation.
func (e event) alloc() {
	a := e.w.holder(e.w.slotsOf(e.name)[e.number("rank", 0)])
	if a == nil {
		e.w.t.Fatalf("no allocation stands on that rank of %s", e.name)
		return
	}
	a.Client, a.Desired = e.text("client", a.Client), e.text("desired", a.Desired)
	a.Message = e.text("why", "")
	if restarts := e.number("restarts", 0); restarts > 0 {
		a.Tasks = map[string]nomad.Task{"main": {Restarts: restarts}}
	}
}

// vanish lets a claim go although Nomad has heard of no end.
func (e event) vanish() {
	at := e.w.slotsOf(e.name)[e.number("rank", 0)]
	a := e.w.holder(at)
	if a == nil {
		e.w.t.Fatalf("no allocation stands on that rank of %s", e.name)
		return
	}
	must.NoError(e.w.t, e.w.ledger.Unclaim(e.w.t.Context(), at.node, at.slot.ID(), a.ID))
}

// elect starts a new term, of another placer if it is to know nothing of the ledger's past.
func (e event) elect() {
	if _, set := e.options["newcomer"]; set {
		e.w.leader.snapshot = ledger.Snapshot{}
	}
	e.w.elect()
}

func (e event) silence() {
	must.NoError(e.w.t, e.w.store.DestroySession(e.w.t.Context(), e.w.load().NodeSessions[e.name]))
}

// back lets a node's device plugin make a session again, maybe as another boot or another client of Nomad's.
func (e event) back() {
	w, node := e.w, e.name
	doc := w.plugins[node].inventory // the ledger may have lost it
	doc.BootID, doc.NodeID = e.text("boot", doc.BootID), e.text("id", doc.NodeID)
	if old := w.nodes[node]; old.ID != doc.NodeID {
		next := *old
		next.ID, next.ModifyIndex = doc.NodeID, w.next()
		old.Status = structs.NodeStatusDown // it is heard of no more
		w.nodes["old "+node], w.nodes[node] = old, &next
	}
	w.nodes[node].Status = structs.NodeStatusReady
	session, err := w.store.CreateSession(w.t.Context(), ledger.NodeSession(node))
	must.NoError(w.t, err)
	must.NoError(w.t, w.ledger.PublishNode(w.t.Context(), session, doc))
	w.plugins[node].inventory = doc
}

// away lets Nomad lose a node, whose living allocations it calls unknown then.
func (e event) away() {
	e.silence()
	node := e.w.nodes[e.name]
	node.Status, node.ModifyIndex = structs.NodeStatusDisconnected, e.w.next()
	for _, a := range e.w.allocs {
		if a.NodeID == node.ID && !a.Terminal() {
			a.Client = structs.AllocClientStatusUnknown
		}
	}
}

func (e event) wait() {
	d, err := time.ParseDuration(e.name)
	must.NoError(e.w.t, err)
	e.w.now = e.w.now.Add(d)
}

// load puts an ordinary allocation on a node.
func (e event) load() {
	w := e.w
	w.allocs = append(w.allocs, &nomad.Alloc{
		ID: fmt.Sprintf("ordinary-%d", w.next()), Job: nomad.JobID{Namespace: "default", ID: "ordinary"}, NodeID: "id-" + e.name,
		Client: structs.AllocClientStatusRunning, Desired: structs.AllocDesiredStatusRun, Created: w.index, Slots: e.slots(),
		Resources: &structs.AllocatedResources{Tasks: map[string]*structs.AllocatedTaskResources{
			"x": {Memory: structs.AllocatedMemoryResources{MemoryMB: int64(e.number("memory", 0))}},
		}},
	})
}

// beside puts an allocation of a job on a node that is of no gang's group.
func (e event) beside() {
	w := e.w
	w.allocs = append(w.allocs, &nomad.Alloc{
		ID: fmt.Sprintf("beside-%d", w.next()), Job: e.job(), Group: e.text("group", "db"), NodeID: "id-elsewhere",
		Client: structs.AllocClientStatusRunning, Desired: structs.AllocDesiredStatusRun, Created: w.index,
	})
}

// sweep lets a node's driver end whatever stands on closing slots.
func (e event) sweep() {
	w := e.w
	s := w.load()
	for _, slot := range s.Tables[e.name].Doc.Slots {
		if slot.State != ledger.SlotClosing {
			continue
		}
		if claim, some := s.Claims[e.name][slot.ID()]; some {
			must.NoError(w.t, w.ledger.Unclaim(w.t.Context(), e.name, slot.ID(), claim.Doc.Allocation))
		}
		if a := w.living(slot.ID()); a != nil {
			a.Client = structs.AllocClientStatusComplete
		}
	}
}

func (e event) slots() []ledger.SlotID {
	text, set := e.options["slot"]
	if !set {
		return nil
	}
	id, err := ledger.ParseSlotID(text)
	must.NoError(e.w.t, err)
	return []ledger.SlotID{id}
}

func (e event) loseEpoch() {
	_, err := e.w.store.Txn(e.w.t.Context(), []ledger.Op{{Verb: ledger.Delete, Key: e.w.ledger.Keys().Epoch()}})
	must.NoError(e.w.t, err)
}

// waits prints what is known of each gang's wait.
func (w *world) waits() string {
	var b strings.Builder
	gangs := w.load().Gangs
	for _, name := range slices.Sorted(maps.Keys(gangs)) {
		g := gangs[name].Doc
		d := g.Delay.At(w.now)
		fmt.Fprintf(&b, "%s: waited %s in all: fair share %dms, fragmentation %dms, own %dms", name, d.Total(), d.FairShareMS, d.FragmentationMS, d.OwnMS)
		if d.Cause != "" {
			fmt.Fprintf(&b, "; now %s", d.Cause)
		}
		if o := g.Outlook; o != nil {
			fmt.Fprintf(&b, "; position %d", o.Position)
			if p := o.Planned; p != nil {
				in := "some day"
				if !p.At.IsZero() {
					in = "in " + p.At.Sub(w.now).String()
				}
				fmt.Fprintf(&b, ", planned %s on %v, sure %t", in, p.Nodes, p.Sure)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// show prints gangs, slots and refusals.
func (w *world) show() string {
	s := w.load()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Gangs)) {
		g := s.Gangs[name].Doc
		fmt.Fprintf(&b, "gang %s: %s", name, g.State)
		if g.After != "" {
			fmt.Fprintf(&b, " then %s", g.After)
		}
		if r := g.Reservation; r != nil {
			fmt.Fprintf(&b, ", reservation %s port %d", r.ID, r.MasterPort)
			for _, p := range r.Placements {
				fmt.Fprintf(&b, ", ranks %d-%d on %s", p.Rank, p.Rank+p.Members-1, p.Node)
			}
		}
		if g.FreedFor != "" {
			fmt.Fprintf(&b, ", for %s", g.FreedFor)
		}
		for _, e := range g.Earmarks {
			fmt.Fprintf(&b, ", earmarked %s on %s for %s", e.GPUs, e.Node, w.now.Sub(*g.EarmarkedAt))
		}
		if len(g.Evicted) > 0 {
			fmt.Fprintf(&b, ", evicted %d times, last %s ago", len(g.Evicted), w.now.Sub(g.Evicted[len(g.Evicted)-1]))
		}
		if g.Attempts > 0 {
			fmt.Fprintf(&b, ", attempts %d", g.Attempts)
		}
		if g.Failures > 0 {
			fmt.Fprintf(&b, ", failures %d", g.Failures)
		}
		if g.Reset != nil {
			fmt.Fprintf(&b, ", reset from version %d", g.Reset.FromVersion)
		}
		if g.NotBefore != nil {
			fmt.Fprintf(&b, ", not before +%s", g.NotBefore.Sub(w.now))
		}
		if g.HoldUntil != nil {
			fmt.Fprintf(&b, ", held +%s", g.HoldUntil.Sub(w.now))
		}
		if len(g.Set) > 0 {
			fmt.Fprintf(&b, ", set %s (queue %s, priority %d, locality %s, relax %d)",
				knobText(g.Set), g.Spec.Queue, g.Spec.Priority, g.Spec.Locality, g.Spec.RelaxAfterS)
		}
		if len(g.Avoid) > 0 {
			fmt.Fprintf(&b, ", avoid %v", g.Avoid)
		}
		if g.Why != nil {
			fmt.Fprintf(&b, ", %s: %s", g.Why.Code, g.Why.Text)
		}
		b.WriteByte('\n')
	}
	for _, node := range slices.Sorted(maps.Keys(s.Tables)) {
		for _, slot := range s.Tables[node].Doc.Slots {
			fmt.Fprintf(&b, "slot %s on %s: %s, %d GPUs\n", slot.ID(), node, slot.State, len(slot.GPUs))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.Orders)) {
		fmt.Fprintf(&b, "order %s %s", s.Orders[key].Doc.Kind, key)
		if a := s.Orders[key].Doc.Answer; a != nil {
			fmt.Fprintf(&b, ": %s", a.Text)
		}
		b.WriteByte('\n')
	}
	for _, key := range slices.Sorted(maps.Keys(s.Refusals)) {
		fmt.Fprintf(&b, "refusal %s: %s\n", key, s.Refusals[key].Doc.Why.Text)
	}
	for _, run := range slices.SortedFunc(maps.Keys(s.Runs), compareRuns) {
		fmt.Fprintf(&b, "run %s/%s\n", run.Gang, run.Reservation)
	}
	return b.String()
}
