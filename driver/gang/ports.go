// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"syscall"
)

// The ports of a run: three in a row (Megatron's restarts use the two after the master's), below the kernel's ephemeral
// range, so that no connection takes one between the check and the process's own listening.
const (
	portsPerRun = 3
	firstPort   = 20000
	lastPort    = 32000
)

// FreePorts finds three free ports in a row on an address and returns the first. It tries preferred first if that is not
// 0, then goes round from a place that depends on the seat, so that gangs of one node rarely meet.
func FreePorts(seat Seat, generation, preferred int) (int, error) {
	if preferred > 0 && free(seat.Address, preferred) == nil {
		return preferred, nil
	}
	places := (lastPort - firstPort) / portsPerRun
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%s %d", seat.Slot(), generation)
	start := int(hash.Sum32()) % places
	var err error
	for i := range places {
		port := firstPort + (start+i)%places*portsPerRun
		if err = free(seat.Address, port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row on %s between %d and %d: %w", portsPerRun, seat.Address, firstPort, lastPort, err)
}

// free binds all ports of a run at once. An address that is not this machine's own (behind a translation of addresses)
// is checked as any address.
func free(address string, port int) error {
	for i := range portsPerRun {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port+i)))
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			listener, err = net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port+i)))
		}
		if err != nil {
			return err
		}
		defer listener.Close()
	}
	return nil
}
