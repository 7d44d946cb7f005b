// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// TestOrders runs the commands that order something, and the status, on a small cluster. "muster" is a command that
// nobody answers, "taken" one with a leading placer that does what it is told, "refused" one with a placer that has
// something against it; typed=... is what somebody types at the terminal.
func TestOrders(t *testing.T) {
	l := clusterLedger(t)
	server := httptest.NewServer(fakeAgent())
	t.Cleanup(server.Close)
	meta := Meta{
		Open:  func(string) (*ledger.Ledger, error) { return l, nil },
		Nomad: func(string) (*nomad.Client, error) { return nomad.NewClient(&nomad.Config{Address: server.URL}) },
	}
	datadriven.RunTest(t, "testdata/orders", func(t *testing.T, d *datadriven.TestData) string {
		var typed io.Reader
		if d.HasArg("typed") {
			var text string
			d.ScanArgs(t, "typed", &text)
			typed = strings.NewReader(text + "\n")
		}
		switch d.Cmd {
		case "muster":
		case "taken":
			defer startPlacer(t, l, carryOut(t, l))()
		case "refused":
			defer startPlacer(t, l, func(ledger.Order) string { return "the placer's reason" })()
		case "lost": // the ledger is like that
			put(t, l, d.Input)
			return ""
		default:
			t.Fatalf("unknown command %s", d.Cmd)
		}
		return strings.ReplaceAll(runWith(t.Context(), words(d.Input), meta, typed), server.URL, "http://nomad:4646")
	})
}

// words splits a command line at spaces outside of quotes.
func words(line string) []string {
	quoted := false
	parts := strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\n')
	})
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], `"`, "")
	}
	return parts
}

// fakeAgent is a Nomad agent with one node that is draining.
func fakeAgent() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/status/leader", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`"10.0.0.9:4647"`)) })
	mux.HandleFunc("/v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode([]nomad.NodeListStub{{ID: "id-n1", Status: "ready", SchedulingEligibility: "ineligible", Drain: true}})
	})
	return mux
}

// startPlacer is a leading placer that acts on orders alone: decide says what it has against one; empty: nothing, it has
// done it.
func startPlacer(t *testing.T, l *ledger.Ledger, decide func(ledger.Order) string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	leading := make(chan struct{})
	running.Go(func() {
		_ = l.Campaign(ctx, ledger.CandidateSpec{Name: "placer"}, func(ctx context.Context, lease ledger.Lease) error {
			close(leading)
			for after := uint64(0); ctx.Err() == nil; {
				s, err := l.Follow(ctx, after, time.Second)
				if err != nil {
					return err
				}
				after = s.Index
				for _, o := range s.Orders {
					if o.Doc.Answer != nil {
						continue
					}
					if text := decide(o.Doc); text != "" {
						o.Doc.Answer = &ledger.Answer{Text: text, At: noon}
						err = l.AnswerOrder(ctx, lease, o)
					} else {
						err = l.DeleteOrder(ctx, lease, o)
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	<-leading
	return func() { cancel(); running.Wait() }
}

// carryOut changes a gang's document as the engine would.
func carryOut(t *testing.T, l *ledger.Ledger) func(ledger.Order) string {
	return func(o ledger.Order) string {
		doc, err := l.GetGang(t.Context(), o.Gang)
		if err != nil {
			return err.Error()
		}
		g := doc.Doc
		switch o.Kind {
		case ledger.OrderSet:
			set := maps.Clone(g.Set)
			if set == nil {
				set = map[string]string{}
			}
			maps.Copy(set, o.Values)
			maps.DeleteFunc(set, func(_, value string) bool { return value == "" })
			g.Set = set
		case ledger.OrderPreempt:
			until := noon.Add(time.Duration(o.HoldS) * time.Second)
			g.HoldUntil, g.Why = &until, &ledger.Reason{Code: "preempted", Text: "preempted by an operator: " + o.Reason}
			g.Reservation = nil
			g.State = ledger.GangWaiting
		case ledger.OrderRelease:
			g.Reservation, g.State = nil, ledger.GangWaiting
		}
		value, err := json.Marshal(g)
		must.NoError(t, err)
		_, err = l.Store().Txn(t.Context(), []ledger.Op{{Verb: ledger.Set, Key: l.Keys().Gang(g.Name), Value: value}})
		must.NoError(t, err)
		return ""
	}
}

// put writes "key value" lines into the ledger.
func put(t *testing.T, l *ledger.Ledger, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		_, err := l.Store().Txn(t.Context(), []ledger.Op{{Verb: ledger.Set, Key: l.Keys().Root() + key, Value: []byte(value)}})
		must.NoError(t, err)
	}
}

// TestOrder_NobodyLeads: an order that nobody takes is withdrawn, so that it is not carried out hours later.
func TestOrder_NobodyLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := clusterLedger(t)
		out := runWith(t.Context(), []string{"preempt", "resnet50"}, Meta{Open: func(string) (*ledger.Ledger, error) { return l, nil }}, nil)
		must.EqOp(t, "! Error: no placer has taken the order within 20s, so it was withdrawn; 'muster status' tells whether one leads\nexit code 1\n", out)
		s, err := l.Load(t.Context())
		must.NoError(t, err)
		must.MapEmpty(t, s.Orders)
	})
}

// TestOrder_Interrupted: Ctrl-C takes the order back.
func TestOrder_Interrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := clusterLedger(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		out := runWith(ctx, []string{"set", "bert", "priority=80"}, Meta{Open: func(string) (*ledger.Ledger, error) { return l, nil }}, nil)
		must.EqOp(t, "! Error: interrupted; the order was withdrawn\nexit code 130\n", out)
		s, err := l.Load(t.Context())
		must.NoError(t, err)
		must.MapEmpty(t, s.Orders)
	})
}

// TestOrder_OneAtATime: a second operator is told of the first.
func TestOrder_OneAtATime(t *testing.T) {
	l := clusterLedger(t)
	_, err := l.PutOrder(t.Context(), ledger.Order{Gang: "bert", Kind: ledger.OrderSet, By: "bob@ops", At: ago(time.Minute)})
	must.NoError(t, err)
	out := runCommand([]string{"preempt", "bert"}, func(string) (*ledger.Ledger, error) { return l, nil })
	must.EqOp(t, "! Error: an order to set gang bert, given by bob@ops at 2026-11-29T11:59:00Z, is still pending; is a placer leading?\nexit code 1\n", out)
}
