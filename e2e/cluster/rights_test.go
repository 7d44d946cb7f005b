// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// TestConsulPoliciesAreLeast checks, on a real Consul, that each part can do its work in the ledger with its policy, and
// that it can't any more when any one rule is taken out.
func TestConsulPoliciesAreLeast(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real agent; not in -short mode")
	}
	c := startConsulOnly(t)
	filled := fillLedger(t, c)
	for part, work := range map[string]func(context.Context, *ledger.Ledger) error{
		"placer": leadOnce,
		"device": filled.asDevice,
		"driver": filled.asDriver,
		"user": func(ctx context.Context, book *ledger.Ledger) error {
			_, err := book.GetGang(ctx, filled.gang)
			return err
		},
		"operator": func(ctx context.Context, book *ledger.Ledger) error {
			_, err := book.GetGang(ctx, filled.gang)
			order, putErr := book.PutOrder(ctx, ledger.Order{Version: ledger.Version, Gang: filled.gang, Kind: ledger.OrderPreempt})
			withdrawn, withdrawErr := book.WithdrawOrder(ctx, order)
			if !withdrawn {
				err = errors.Join(err, errors.New("the order is not withdrawn"))
			}
			return errors.Join(err, putErr, withdrawErr, applyQueues(ctx, book))
		},
	} {
		rules, err := Policy("consul-" + part)
		must.NoError(t, err)
		if part == "operator" { // has the policy of users besides
			users, err := Policy("consul-user")
			must.NoError(t, err)
			rules += "\n\n" + users
		}
		blocks := ruleBlocks(rules)
		t.Run(part, func(t *testing.T) {
			must.NoError(t, try(t, c, time.Minute, blocks, work))
			for i, block := range blocks {
				less := slices.Delete(slices.Clone(blocks), i, i+1)
				must.Error(t, try(t, c, 5*time.Second, less, work), must.Sprintf("nothing needs this rule:\n%s", block))
			}
		})
	}
}

// startConsulOnly is a cluster of which only Consul runs.
func startConsulOnly(t *testing.T) *Cluster {
	binaries, err := Build(t.Context())
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	c, err := prepare(Config{Name: "policies", ACL: true}, binaries)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Stop(t.Failed())) })
	must.NoError(t, c.startConsul(ctx))
	must.NoError(t, c.awaitConsul(ctx, c.consulAddr))
	return c
}

// ruleBlocks are the rules of a policy's text, each with its braces.
func ruleBlocks(text string) []string {
	var blocks []string
	for _, block := range strings.Split(text, "\n\n") {
		if strings.Contains(block, "{") {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// try does a part's work with a token that has these rules. Some of it tries again and again when it is refused.
func try(t *testing.T, c *Cluster, within time.Duration, blocks []string, work func(context.Context, *ledger.Ledger) error) error {
	t.Helper()
	rules := onThisAgent(strings.Join(blocks, "\n\n"), "n1")
	name, err := newUUID()
	must.NoError(t, err)
	policy, _, err := c.Consul.ACL().PolicyCreate(&consul.ACLPolicy{Name: name, Rules: rules}, nil)
	must.NoError(t, err)
	token, _, err := c.Consul.ACL().TokenCreate(&consul.ACLToken{Policies: []*consul.ACLLink{{ID: policy.ID}}}, nil)
	must.NoError(t, err)
	client, err := consul.NewClient(&consul.Config{Address: c.consulAddr, Token: token.SecretID})
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return work(ctx, ledger.New(ledger.NewConsul(client), Region))
}

// leadOnce leads and hands over at once. The parts of a leader's work all lie below one prefix.
func leadOnce(ctx context.Context, book *ledger.Ledger) error {
	return book.Campaign(ctx, ledger.CandidateSpec{Name: "tested"}, func(ctx context.Context, lease ledger.Lease) error {
		_, err := book.NewEpoch(ctx, lease)
		return err
	})
}

// applyQueues puts the queues that are there in place of themselves.
func applyQueues(ctx context.Context, book *ledger.Ledger) error {
	applied, err := book.GetQueues(ctx)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	_, err = book.PutQueues(ctx, applied)
	return err
}

// filled is a ledger with one open slot on node n1.
type filled struct {
	gang string
	slot ledger.SlotID
	boot string
}

func fillLedger(t *testing.T, c *Cluster) filled {
	t.Helper()
	f := filled{gang: "tested", slot: ledger.SlotID{Reservation: "res1"}, boot: "boot1"}
	slot := ledger.Slot{
		Reservation: f.slot.Reservation, Size: 1, Owner: ledger.Owner{Gang: f.gang, Value: f.gang}, GPUs: []string{"GPU-1"},
		State: ledger.SlotOpen, BootID: f.boot,
	}
	change := ledger.Change{
		Gang:   &ledger.Versioned[ledger.Gang]{Doc: ledger.Gang{Version: ledger.Version, Name: f.gang}},
		Tables: map[string]ledger.Versioned[ledger.SlotTable]{"n1": {Doc: ledger.SlotTable{Version: ledger.Version, Sequence: 1, Slots: []ledger.Slot{slot}}}},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.NoError(t, c.Ledger.Campaign(ctx, ledger.CandidateSpec{Name: "filler"}, func(ctx context.Context, lease ledger.Lease) error {
		_, err := c.Ledger.Commit(ctx, lease, change)
		return err
	}))
	return f
}

// asDevice is what a device plugin does on its node.
func (f filled) asDevice(ctx context.Context, book *ledger.Ledger) error {
	session, err := book.Store().CreateSession(ctx, ledger.NodeSession("n1"))
	if err != nil {
		return err
	}
	_, tableErr := book.WatchTable(ctx, "n1", 0, 0)
	_, gangErr := book.GetGang(ctx, f.gang)
	return errors.Join(tableErr, gangErr,
		book.PublishNode(ctx, session, ledger.Node{Version: ledger.Version, Node: "n1", MachineID: "machine1"}),
		book.PublishHealth(ctx, "n1", ledger.Health{Version: ledger.Version}),
		book.PublishAck(ctx, "n1", ledger.Ack{Version: ledger.Version, Sequence: 1}),
		f.claimAndEnd(ctx, book, "plugin"))
}

// asDriver is what a task driver does for rank 0 of a gang.
func (f filled) asDriver(ctx context.Context, book *ledger.Ledger) error {
	_, tableErr := book.WatchTable(ctx, "n1", 0, 0)
	_, gangErr := book.GetGang(ctx, f.gang)
	member := ledger.Member{Version: ledger.Version, Node: "n1", State: ledger.MemberArrived}
	return errors.Join(tableErr, gangErr, book.PutMember(ctx, f.gang, f.slot.Reservation, member), f.claimAndEnd(ctx, book, "driver"))
}

func (f filled) claimAndEnd(ctx context.Context, book *ledger.Ledger, by string) error {
	claim := ledger.Claim{Version: ledger.Version, Reservation: f.slot.Reservation, Allocation: "alloc-" + by, BootID: f.boot, By: by}
	if _, err := book.Claim(ctx, "n1", claim, func(ledger.Slot) error { return nil }); err != nil {
		return err
	}
	return book.Unclaim(ctx, "n1", f.slot, claim.Allocation)
}
