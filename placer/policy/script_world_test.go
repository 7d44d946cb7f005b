// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy"
)

func (w *world) queue(t *testing.T, words []string) {
	t.Helper()
	q := model.Queue{Name: words[0]}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "quota":
			q.Quota = int(number(t, value))
		case "max":
			q.Max = int(number(t, value))
		case "weight":
			q.Weight = float64(number(t, value))
		case "preempt":
			q.Preempt = true
		case "gpuhours":
			q.GPUSeconds = 3600 * float64(number(t, value))
		default:
			t.Fatalf("no queue option %q", key)
		}
	}
	w.snapshot.Queues = append(w.snapshot.Queues, q)
}

func (w *world) setting(t *testing.T, key, value string) {
	t.Helper()
	s := &w.snapshot.Settings
	switch key {
	case "halflife":
		s.HalfLife = duration(t, value)
	case "minruntime":
		s.MinRuntime = duration(t, value)
	case "above":
		above, err := strconv.ParseFloat(value, 64)
		must.NoError(t, err)
		s.ReclaimAbove = above
	case "evictions":
		s.Evictions = int(number(t, value))
	case "agebound":
		s.AgeBound = duration(t, value)
	case "defragment":
		s.Defragment = value == "yes"
	case "maxnodes":
		s.MaxNodes = int(number(t, value))
	default:
		t.Fatalf("no setting %q", key)
	}
}

// decide carries the decision out and prints it.
func (w *world) decide(now time.Time) string {
	decision := policy.Decide(w.snapshot, now)
	var out strings.Builder
	for _, grant := range decision.Grants {
		w.take(grant, now)
		fmt.Fprintf(&out, "%s: start (%s)\n", grant.Gang, grant.Level)
		for _, m := range grant.Members {
			fmt.Fprintf(&out, "  %d %s on %s GPUs %s\n", m.Rank, m.Group, m.Node, m.GPUs)
		}
	}
	for _, e := range decision.Evictions {
		victim := w.running(e.Gang)
		victim.Closing, victim.FreedFor = true, e.For
		fmt.Fprintf(&out, "%s: evicted for %s, loses %.0f GPU s, %s: %s\n", e.Gang, e.For, e.LostGPUSeconds, e.Reason.Code, e.Reason.Text)
	}
	for _, m := range decision.Moves {
		fmt.Fprintf(&out, "%s: could start if %s moved; %.0f GPU s are lost, %.0f saved\n",
			m.For, strings.Join(m.Gangs, ", "), m.LostGPUSeconds, m.SavedGPUSeconds)
	}
	for _, wait := range decision.Waits {
		w.gangOf(wait.Gang).Earmarks = wait.Earmarks
		w.printWait(&out, wait)
	}
	return out.String()
}

func (w *world) printWait(out *strings.Builder, wait model.Wait) {
	cause := ""
	if len(w.snapshot.Queues) > 0 {
		cause = " [" + string(wait.Cause) + "]"
	}
	fmt.Fprintf(out, "%s: wait %d, %s: %s%s\n", wait.Gang, wait.Position, wait.Reason.Code, wait.Reason.Text, cause)
	if !wait.RelaxAt.IsZero() {
		fmt.Fprintf(out, "  relaxes at %s\n", wait.RelaxAt.Sub(epoch))
	}
	if p := wait.Planned; p != nil {
		when := "some time"
		if !p.At.IsZero() {
			when = "at " + p.At.Sub(epoch).String()
		}
		if p.Sure {
			when += " at the latest"
		}
		fmt.Fprintf(out, "  planned %s on %s\n", when, strings.Join(p.Nodes, ", "))
	}
	for _, mark := range wait.Earmarks {
		fmt.Fprintf(out, "  earmarked GPUs %s of %s\n", mark.GPUs, mark.Node)
	}
}

func (w *world) gangOf(name string) *model.Gang {
	return &w.snapshot.Gangs[slices.IndexFunc(w.snapshot.Gangs, func(g model.Gang) bool { return g.Name == name })]
}

func (w *world) running(name string) *model.Running {
	return &w.snapshot.Running[slices.IndexFunc(w.snapshot.Running, func(r model.Running) bool { return r.Name == name })]
}

// take starts a gang that was granted.
func (w *world) take(grant model.Grant, now time.Time) {
	gang := *w.gangOf(grant.Gang)
	gang.Earmarks = nil
	w.snapshot.Gangs = slices.DeleteFunc(w.snapshot.Gangs, func(g model.Gang) bool { return g.Name == grant.Gang })
	r := model.Running{Gang: gang, Members: grant.Members, Level: grant.Level, Granted: now, Started: now}
	w.snapshot.Running = append(w.snapshot.Running, r)
	w.use(r, 1)
}

func (w *world) use(r model.Running, sign int64) {
	for _, m := range r.Members {
		node := slices.IndexFunc(w.snapshot.Nodes, func(n model.Node) bool { return n.Name == m.Node })
		group := slices.IndexFunc(r.Groups, func(g model.Group) bool { return g.Name == m.Group })
		n, g := &w.snapshot.Nodes[node], r.Groups[group]
		n.Free ^= m.GPUs
		n.CPUMHz -= sign * g.CPUMHz
		n.MemoryMB -= sign * g.MemoryMB
		n.DiskMB -= sign * g.DiskMB
	}
}

func (w *world) free(name string) {
	w.use(*w.running(name), -1)
	w.snapshot.Running = slices.DeleteFunc(w.snapshot.Running, func(r model.Running) bool { return r.Name == name })
}

// happened notes that an evicted gang is gone, or that a checkpoint was finished.
func (w *world) happened(what, name string, at time.Time) {
	r := w.running(name)
	if what == "saved" {
		r.Saved = at
		return
	}
	gang := r.Gang
	w.free(name)
	gang.Evicted = append(slices.Clone(gang.Evicted), at)
	gang.WaitingSince = at
	w.snapshot.Gangs = append(w.snapshot.Gangs, gang)
}
