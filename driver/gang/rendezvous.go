// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/placer/ledger"
)

// Environment is what the run adds to a member's environment, over what the device plugin gave it: torchrun reads the
// PET_ variables as its own flags. RANK, LOCAL_RANK and WORLD_SIZE are never set: they would make each launcher take
// itself for a single worker.
func Environment(run ledger.Run, hostsFile string) map[string]string {
	port := strconv.Itoa(run.MasterPort)
	return map[string]string{
		"MUSTER_MASTER_ADDR": run.MasterAddr,
		"MUSTER_MASTER_PORT": port,
		"MUSTER_GENERATION":  strconv.Itoa(run.Generation),
		"MUSTER_HOSTS_FILE":  hostsFile,
		"PET_MASTER_ADDR":    run.MasterAddr,
		"PET_MASTER_PORT":    port,
	}
}

// Hosts is the text of the hosts file: one line for each member in rank order, in the form that mpirun and DeepSpeed
// read, with the rest as a comment for people.
func Hosts(placements []ledger.Placement) string {
	ordered := slices.SortedFunc(slices.Values(placements), func(a, b ledger.Placement) int { return cmp.Compare(a.Rank, b.Rank) })
	var text strings.Builder
	for _, p := range ordered {
		for i := range p.Members {
			fmt.Fprintf(&text, "%s slots=%d # rank=%d node=%s group=%s\n", p.Address, p.GPUs, p.Rank+i, p.Node, p.Group)
		}
	}
	return text.String()
}

// NodeOf finds where a rank is; empty when the placements do not say.
func NodeOf(placements []ledger.Placement, rank int) (node, address string) {
	for _, p := range placements {
		if rank >= p.Rank && rank < p.Rank+p.Members {
			return p.Node, p.Address
		}
	}
	return "", ""
}

// Waiting says in words whom a gang waits for at its entry barrier.
func Waiting(seat Seat, missing []int, placements []ledger.Placement) string {
	const most = 4
	var names []string
	for _, rank := range missing[:min(len(missing), most)] {
		name := fmt.Sprintf("rank %d", rank)
		if node, _ := NodeOf(placements, rank); node != "" {
			name += " on node " + node
		}
		names = append(names, name)
	}
	text := strings.Join(names, ", ")
	switch {
	case len(missing) >= maxMissing:
		text += " and others"
	case len(missing) > most:
		text += fmt.Sprintf(" and %d more", len(missing)-most)
	}
	return fmt.Sprintf("gang %s waits for %s (%d members in all)", seat.Gang, text, seat.Size)
}
