// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports of agents lie below the range from which the kernel takes ports for outgoing connections and apart from the
// one from which Nomad gives ports to tasks, so that a port that is free now is free when its agent binds it.
const (
	firstPort = 10000
	lastPort  = 19999
)

// ports gives out loopback ports, each once.
type ports struct{ next, left int }

func newPorts() *ports {
	return &ports{next: firstPort + rand.IntN(lastPort-firstPort), left: lastPort - firstPort + 1}
}

// take returns a port that is free for TCP and UDP.
func (p *ports) take() (int, error) {
	for p.left > 0 {
		port := p.next
		p.left--
		if p.next++; p.next > lastPort {
			p.next = firstPort
		}
		if free(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free loopback port between 10000 and 19999")
}

// takeThree returns the three ports of an agent: HTTP, RPC and Serf.
func (p *ports) takeThree() ([]int, error) {
	taken := make([]int, 3)
	for i := range taken {
		port, err := p.take()
		if err != nil {
			return nil, err
		}
		taken[i] = port
	}
	return taken, nil
}

func free(port int) bool {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	return udp.Close() == nil
}
