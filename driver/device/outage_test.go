// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"testing"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

func TestWithoutMember(t *testing.T) {
	s := foreign(slot("r1", 1, 0, 1))
	claim := claimOn(s, claimedByPlugin, "a1")
	earlierBoot := claim
	earlierBoot.BootID = "boot-0"
	of := func(id string, change func(*allocation)) []allocation {
		a := allocation{id: id, instanceIDs: map[string][]string{"train": instanceIDs(s)}}
		if change != nil {
			change(&a)
		}
		return []allocation{a}
	}
	cases := map[string]struct {
		slot   ledger.Slot
		claims []ledger.Claim
		allocs []allocation
		want   bool
	}{
		"nobody has claimed it":                      {slot: s, want: true},
		"who waits to claim it will not get there":   {slot: s, allocs: of("a2", nil), want: true},
		"its member lives":                           {slot: s, claims: []ledger.Claim{claim}, allocs: of("a1", nil)},
		"its member is being stopped":                {slot: s, claims: []ledger.Claim{claim}, allocs: of("a1", func(a *allocation) { a.stopping = true })},
		"its member has ended":                       {slot: s, claims: []ledger.Claim{claim}, allocs: of("a1", func(a *allocation) { a.ended = true }), want: true},
		"its node was lost, which proves nothing":    {slot: s, claims: []ledger.Claim{claim}, allocs: of("a1", func(a *allocation) { a.forgotten = true })},
		"Nomad does not know it, or does not answer": {slot: s, claims: []ledger.Claim{claim}},
		"its claim is of another boot":               {slot: s, claims: []ledger.Claim{earlierBoot}, want: true},
		"the muster driver waits by itself":          {slot: slot("r1", 1, 0, 1)},
		"a closing slot is not offered anyway":       {slot: closing(s, "stopped")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(4, c.slot)
			w.claims = claims(c.claims...)
			must.Eq(t, c.want, w.withoutMember(c.allocs)[c.slot.ID()])
		})
	}
}

// TestAMemberEndsWhileConsulIsAway: its slot is offered again when Consul is back, and others' slots throughout.
func TestAMemberEndsWhileConsulIsAway(t *testing.T) {
	n := newNode(t, 6).start()
	ends, lives, patient := foreign(slot("r1", 0, 0, 1)), foreign(slot("r1", 1, 2, 3)), gangNamed(slot("r2", 0, 4), "other")
	placed := []*nomadapi.Allocation{place("a0", ends, nomadapi.AllocClientStatusRunning), place("a1", lives, nomadapi.AllocClientStatusRunning)}
	n.agent.set(func(f *fakeAgent) { f.allocs = placed })
	n.grant(1, ends, lives, patient)
	all := []string{"muster/gang/other.0", "muster/gang/train.0", "muster/gang/train.1"}
	n.offers.become(all...)
	for _, s := range []ledger.Slot{ends, lives} {
		_, err := n.plugin.Reserve(instanceIDs(s))
		must.NoError(t, err)
	}
	eventually(t, "the claims are known", func() bool {
		w, _ := n.plugin.engine.world.get()
		return w.claimed(ends.ID()) && w.claimed(lives.ID())
	})

	n.outage(true)
	n.store.SetBack(n.store.Save()) // ends the blocking queries
	eventually(t, "it is logged", func() bool { return n.log.count("the ledger can't be reached") == 1 })
	n.agent.set(func(f *fakeAgent) { f.allocs[0].ClientStatus = nomadapi.AllocClientStatusFailed })
	n.offers.become("muster/gang/other.0", "muster/gang/train.1")
	_, err := n.plugin.Reserve(instanceIDs(ends))
	must.EqError(t, err, "slot train.0 is not offered: Consul does not answer, so that no task can be started on it")

	// The same after a restart in the middle of the outage.
	n.restart()
	n.offers.become("muster/gang/other.0", "muster/gang/train.1")
	n.outage(false)
	n.offers.become(all...)
	eventually(t, "the claim ends", func() bool {
		return read[ledger.Claim](n, n.books.Keys().Claim(thisNode, ends.ID())) == ledger.Claim{}
	})
}
