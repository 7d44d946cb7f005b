// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package queues

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/hclopt"
	"github.com/nomad-muster/muster/placer/ledger"
)

// Bounds of what a file may say.
const (
	maxQueues  = 1000
	maxGPUs    = 1_000_000
	maxWeight  = 1000
	leastShare = 0.01
	mostDays   = 366 * 24 * time.Hour
)

// Load reads a queue file. Every fault of it is reported, one a line, as "file:line: what is wrong; what to do".
func Load(path string) (ledger.Queues, error) {
	text, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file
	if err != nil {
		return ledger.Queues{}, fmt.Errorf("reading the queue file: %w", err)
	}
	return Parse(path, text)
}

// Parse reads the text of a queue file; its name is for messages. The document that it gives has no version, author or
// time yet.
func Parse(file string, text []byte) (ledger.Queues, error) {
	parsed, diags := hclparse.NewParser().ParseHCL(text, file)
	if diags.HasErrors() {
		return ledger.Queues{}, hclopt.Errors(diags)
	}
	r := reader{places: map[string]hcl.Range{}, namespaces: map[string]string{}}
	r.file(parsed.Body)
	if err := hclopt.Errors(r.diags); err != nil {
		return ledger.Queues{}, err
	}
	return r.doc, nil
}

// reader collects what a file says, and what is wrong with it.
type reader struct {
	doc        ledger.Queues
	diags      hcl.Diagnostics
	places     map[string]hcl.Range // of the queues so far, by name
	namespaces map[string]string    // the queue that lists each
}

// parent is what a queue inherits from the one around it.
type parent struct {
	queue    *ledger.Queue // nil: it is at the top
	max      int           // 0: no limit
	priority *ledger.PriorityRange
	place    hcl.Range
}

func (r *reader) fault(at hcl.Range, mend, format string, args ...any) {
	r.diags = append(r.diags, hclopt.Fault(at, fmt.Sprintf(format, args...), mend))
}

func (r *reader) file(body hcl.Body) {
	content, diags := body.Content(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{
		{Type: "policy"}, {Type: "queue", LabelNames: []string{"name"}},
	}})
	r.diags = append(r.diags, diags...)
	if block := r.only(content.Blocks, "policy"); block != nil {
		r.policy(block.Body)
	}
	r.inside(content.Blocks, parent{})
}

// only is the one block of a type; a second one is a fault.
func (r *reader) only(blocks hcl.Blocks, kind string) *hcl.Block {
	of := blocks.OfType(kind)
	for _, second := range of[min(1, len(of)):] {
		r.fault(second.DefRange, "write all of it in one block", "there is a second %s block", kind)
	}
	if len(of) == 0 {
		return nil
	}
	return of[0]
}

func (r *reader) policy(body hcl.Body) {
	p := &r.doc.Policy
	var halfLife, minRuntime, ageBound time.Duration
	options := []hclopt.Option{
		{Name: "half_life", Set: hclopt.Duration(&halfLife, time.Minute, mostDays)},
		{Name: "min_runtime", Set: hclopt.Duration(&minRuntime, time.Second, mostDays)},
		{Name: "reclaim_above", Set: hclopt.Fraction(&p.ReclaimAbove, leastShare, 1)},
		{Name: "evictions", Set: hclopt.Number(&p.Evictions, 1, ledger.MaxEvicted)},
		{Name: "age_bound", Set: hclopt.Duration(&ageBound, time.Minute, mostDays)},
		{Name: "defragment", Set: hclopt.Flag(&p.Defragment)},
	}
	r.decode(body, options)
	p.HalfLifeS, p.MinRuntimeS, p.AgeBoundS = wholeSeconds(halfLife), wholeSeconds(minRuntime), wholeSeconds(ageBound)
}

func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// decode reads a body that holds options only, and gives their attributes.
func (r *reader) decode(body hcl.Body, options []hclopt.Option) hcl.Attributes {
	content, diags := body.Content(&hcl.BodySchema{Attributes: hclopt.Schema(options)})
	r.diags = append(r.diags, diags...)
	r.diags = append(r.diags, hclopt.Decode(content.Attributes, options)...)
	return content.Attributes
}

// inside reads the queues of a body, and gives the sum of their quotas.
func (r *reader) inside(blocks hcl.Blocks, around parent) (quotas int) {
	for _, block := range blocks.OfType("queue") {
		quotas += r.queue(block, around)
	}
	return quotas
}

// queue reads one queue with those inside it, and gives its quota.
func (r *reader) queue(block *hcl.Block, around parent) (quota int) {
	q := ledger.Queue{Name: block.Labels[0]}
	if !r.name(&q, block, around) {
		return 0
	}
	options := []hclopt.Option{
		{Name: "quota", Set: hclopt.Number(&q.Quota, 0, maxGPUs)},
		{Name: "max", Set: hclopt.Number(&q.Max, 1, maxGPUs)},
		{Name: "weight", Set: hclopt.Fraction(&q.Weight, leastShare, maxWeight)},
		{Name: "namespaces", Set: hclopt.Texts(&q.Namespaces, `["research"]`)},
		{Name: "preempt", Set: hclopt.Flag(&q.Preempt)},
	}
	content, diags := block.Body.Content(&hcl.BodySchema{Attributes: hclopt.Schema(options), Blocks: []hcl.BlockHeaderSchema{
		{Type: "priority"}, {Type: "defaults"}, {Type: "queue", LabelNames: []string{"name"}},
	}})
	r.diags = append(r.diags, diags...)
	r.diags = append(r.diags, hclopt.Decode(content.Attributes, options)...)
	at := func(option string) hcl.Range {
		if attribute := content.Attributes[option]; attribute != nil {
			return attribute.Range
		}
		return block.DefRange
	}
	r.limits(q, around, at)
	r.claim(q, at("namespaces"))
	if priority := r.only(content.Blocks, "priority"); priority != nil {
		q.Priority = r.priority(priority, q, around)
	}
	if defaults := r.only(content.Blocks, "defaults"); defaults != nil {
		q.Defaults = r.defaults(defaults.Body)
	}
	r.doc.Queues = append(r.doc.Queues, q)
	r.children(content.Blocks, q, around, at("quota"))
	return q.Quota
}

// children reads the queues inside another.
func (r *reader) children(blocks hcl.Blocks, q ledger.Queue, around parent, quota hcl.Range) {
	within := parent{queue: &q, max: around.max, priority: around.priority, place: quota}
	if q.Max > 0 {
		within.max = q.Max
	}
	if q.Priority != nil {
		within.priority = q.Priority
	}
	if sum := r.inside(blocks, within); sum > q.Quota {
		r.fault(quota, fmt.Sprintf("raise it to at least %d, or lower theirs", sum),
			"the quotas of the queues inside %s come to %d, more than its own of %d", q.Name, sum, q.Quota)
	}
}

// name gives a queue its full name, unless it can have none: then what is inside it can't have one either.
func (r *reader) name(q *ledger.Queue, block *hcl.Block, around parent) bool {
	label := q.Name
	if around.queue != nil {
		q.Name = around.queue.Name + "." + label
	}
	at := block.DefRange
	if len(block.LabelRanges) > 0 {
		at = block.LabelRanges[0]
	}
	first, second := r.places[q.Name]
	switch err := jobspecs.CheckName(label); {
	case strings.Contains(label, "."):
		r.fault(at, "write the queue inside the block of its parent", "a queue's own name holds no dot, but %q does", label)
	case err != nil:
		r.fault(at, "choose another name", "%q can't name a queue: %s", label, err)
	case jobspecs.CheckName(q.Name) != nil:
		r.fault(at, "shorten the names, or nest less", "the full name %s can't name a queue: %s", q.Name, jobspecs.CheckName(q.Name))
	case second:
		r.fault(at, "write all of it in one block", "there is another queue %s in line %d", q.Name, first.Start.Line)
	case len(r.places) == maxQueues:
		r.fault(at, "make some of them one", "there are more than %d queues", maxQueues)
	default:
		r.places[q.Name] = at
		return true
	}
	return false
}

// limits checks quota and limit of a queue against each other and against those around it.
func (r *reader) limits(q ledger.Queue, around parent, at func(option string) hcl.Range) {
	switch {
	case q.Max > 0 && q.Max < q.Quota:
		r.fault(at("max"), "raise it, or lower the quota", "the max of queue %s is %d, less than its quota of %d", q.Name, q.Max, q.Quota)
	case around.max > 0 && q.Max > around.max:
		r.fault(at("max"), "lower it, or raise the other", "the max of queue %s is %d, more than the %d of those around it", q.Name, q.Max, around.max)
	}
	if around.queue != nil && q.Quota > around.queue.Quota {
		r.fault(at("quota"), "lower it, or raise the other",
			"the quota of queue %s is %d, more than the %d of %s around it", q.Name, q.Quota, around.queue.Quota, around.queue.Name)
	}
}

// claim notes the namespaces of a queue. Each has one queue that its jobs go to by themselves.
func (r *reader) claim(q ledger.Queue, at hcl.Range) {
	for _, namespace := range q.Namespaces {
		switch other, taken := r.namespaces[namespace]; {
		case namespace == "":
			r.fault(at, "remove it", "queue %s lists a namespace without a name", q.Name)
		case taken && other == q.Name:
			r.fault(at, "remove one", "queue %s lists namespace %s twice", q.Name, namespace)
		case taken:
			r.fault(at, "remove it from one of them; a queue inside another without a list of its own takes the other's namespaces",
				"namespace %s is listed by queue %s and by queue %s", namespace, other, q.Name)
		default:
			r.namespaces[namespace] = q.Name
		}
	}
}

func (r *reader) priority(block *hcl.Block, q ledger.Queue, around parent) *ledger.PriorityRange {
	p := ledger.PriorityRange{Min: 1, Max: jobspecs.MaxPriority}
	outer := p
	if around.priority != nil {
		p, outer = *around.priority, *around.priority
	}
	r.decode(block.Body, []hclopt.Option{
		{Name: "min", Set: hclopt.Number(&p.Min, 1, jobspecs.MaxPriority)},
		{Name: "max", Set: hclopt.Number(&p.Max, 1, jobspecs.MaxPriority)},
	})
	switch {
	case p.Min > p.Max:
		r.fault(block.DefRange, "swap them", "queue %s takes no priority at all: min %d is above max %d", q.Name, p.Min, p.Max)
	case p.Min < outer.Min || p.Max > outer.Max:
		r.fault(block.DefRange, "stay within that range",
			"queue %s takes priorities from %d to %d, but those around it only from %d to %d", q.Name, p.Min, p.Max, outer.Min, outer.Max)
	}
	return &p
}

// defaults are what a job's meta could say, by the same rules.
func (r *reader) defaults(body hcl.Body) ledger.QueueDefaults {
	var d ledger.QueueDefaults
	options := []hclopt.Option{
		{Name: "nvlink", Set: hclopt.Text(&d.NVLink)},
		{Name: "locality", Set: hclopt.Text(&d.Locality)},
		{Name: "relax_after", Set: hclopt.Text(&d.RelaxAfter)},
	}
	attributes := r.decode(body, options)
	for option, value := range Knobs(d) {
		if _, err := (&jobspecs.Gang{}).With(map[string]string{option: value}); err != nil {
			r.fault(attributes[option].Expr.Range(), "", "%s", err)
		}
	}
	return d
}
