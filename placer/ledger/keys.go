// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Keys makes the ledger's keys for one Nomad region, so that two Nomad clusters on one Consul never meet. Names that
// users choose are path-escaped: a node or job may hold any byte, and a prefix that ends in "/" must list no sibling.
type Keys struct{ root string }

// NewKeys makes the keys of one region ("global" is Nomad's default).
func NewKeys(region string) Keys { return Keys{root: "muster/" + escape(region) + "/"} }

// escape is path escaping that also covers "." and "..", which HTTP takes out of paths.
func escape(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Root is the prefix of everything, with its final slash.
func (k Keys) Root() string { return k.root }

// Leader is the key whose session lock makes a placer the leader.
func (k Keys) Leader() string { return k.root + "leader" }

// Epoch holds the random ID of this ledger.
func (k Keys) Epoch() string { return k.root + "epoch" }

// Nodes is the prefix of all inventories.
func (k Keys) Nodes() string { return k.root + "nodes/" }

// Node is one node's inventory.
func (k Keys) Node(node string) string { return k.Nodes() + escape(node) }

// Healths is the prefix of all nodes' GPU health.
func (k Keys) Healths() string { return k.root + "health/" }

// Health is the health of one node's GPUs.
func (k Keys) Health(node string) string { return k.Healths() + escape(node) }

// SlotTables is the prefix of all slot tables.
func (k Keys) SlotTables() string { return k.root + "slots/" }

// Slots is one node's slot table.
func (k Keys) Slots(node string) string { return k.SlotTables() + escape(node) }

// AllClaims is the prefix of all nodes' claims.
func (k Keys) AllClaims() string { return k.root + "claims/" }

// Claims is the prefix of one node's claims.
func (k Keys) Claims(node string) string { return k.AllClaims() + escape(node) + "/" }

// Claim is the claim on one slot of one node.
func (k Keys) Claim(node string, slot SlotID) string { return k.Claims(node) + slot.String() }

// Acks is the prefix of all nodes' acknowledgements.
func (k Keys) Acks() string { return k.root + "acks/" }

// Ack is one node's acknowledgement.
func (k Keys) Ack(node string) string { return k.Acks() + escape(node) }

// Gangs is the prefix of all gangs.
func (k Keys) Gangs() string { return k.root + "gangs/" }

// Gang is one gang's document.
func (k Keys) Gang(gang string) string { return k.Gangs() + escape(gang) }

// Refusals is the prefix of the jobs that intake refused.
func (k Keys) Refusals() string { return k.root + "refusals/" }

// Refusal says why one job was not admitted.
func (k Keys) Refusal(namespace, job string) string {
	return k.Refusals() + escape(namespace) + "/" + escape(job)
}

// Orders is the prefix of what operators have ordered: all that they need to write.
func (k Keys) Orders() string { return k.root + "orders/" }

// Order is what an operator has ordered about one gang.
func (k Keys) Order(gang string) string { return k.Orders() + escape(gang) }

// Queues holds all queues, as an operator has applied them.
func (k Keys) Queues() string { return k.root + "queues" }

// Usage holds the GPU time that each queue has used.
func (k Keys) Usage() string { return k.root + "usage" }

// RunTime is how long gangs of one job name in one queue have run.
func (k Keys) RunTime(id RunTimeID) string {
	return k.root + "runtimes/" + escape(id.Queue) + "/" + escape(id.Namespace) + "/" + escape(id.Job)
}

// AllRuns is the prefix of all runs.
func (k Keys) AllRuns() string { return k.root + "runs/" }

// Run is one start of a gang on a reservation.
func (k Keys) Run(gang, reservation string) string {
	return k.AllRuns() + escape(gang) + "/" + reservation
}

// Members is the prefix of a run's members.
func (k Keys) Members(gang, reservation string) string { return k.Run(gang, reservation) + "/members/" }

// Member is one member of a run.
func (k Keys) Member(gang, reservation string, rank int) string {
	return k.Members(gang, reservation) + strconv.Itoa(rank)
}

// SlotID names one slot for ever: reservation IDs are never used twice. Its text form, "<reservation>.<rank>", is part
// of keys.
type SlotID struct {
	Reservation string
	Rank        int
}

// String is "<reservation>.<rank>".
func (s SlotID) String() string { return s.Reservation + "." + strconv.Itoa(s.Rank) }

// ParseSlotID reads what String wrote.
func ParseSlotID(text string) (SlotID, error) {
	reservation, rankText, ok := strings.Cut(text, ".")
	if ok && reservation != "" {
		if rank, err := strconv.Atoi(rankText); err == nil && rank >= 0 {
			return SlotID{Reservation: reservation, Rank: rank}, nil
		}
	}
	return SlotID{}, fmt.Errorf("slot name %q is not <reservation>.<rank>", text)
}

// InstanceID is the ID under which the device plugin offers one GPU of a slot, "<GPU UUID>@<reservation>". Nomad takes
// it as opaque; an allocation that lists it says by itself which reservation it stands on.
func InstanceID(gpuUUID, reservation string) string { return gpuUUID + "@" + reservation }

// ParseInstanceID splits what InstanceID joined; ok is false for an ID that is not of a slot.
func ParseInstanceID(id string) (gpuUUID, reservation string, ok bool) {
	gpuUUID, reservation, ok = strings.Cut(id, "@")
	return gpuUUID, reservation, ok && gpuUUID != "" && reservation != ""
}
