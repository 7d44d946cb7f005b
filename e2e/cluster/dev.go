// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"strconv"
)

// startDevConsul starts `consul agent -dev`, as a person does who tries things out.
func (c *Cluster) startDevConsul(ctx context.Context) error {
	ports, err := c.ports.takeThree()
	if err != nil {
		return err
	}
	args := []string{
		"agent", "-dev", "-node=consul", "-bind=127.0.0.1", "-http-port=" + strconv.Itoa(ports[0]), "-server-port=" + strconv.Itoa(ports[1]),
		"-serf-lan-port=" + strconv.Itoa(ports[2]), "-serf-wan-port=-1", "-dns-port=-1", "-grpc-port=-1", "-grpc-tls-port=-1", "-log-level=info",
	}
	if err := c.newProcess("consul", c.binaries.Consul, args, nil).Start(); err != nil {
		return err
	}
	return c.awaitConsul(ctx, loopback(ports[0]))
}

// startDevNomad starts `nomad agent -dev` with the first node's plugins: server and client in one.
func (c *Cluster) startDevNomad(ctx context.Context) error {
	client, err := c.newClient(ctx, 0, c.config.Nodes[0])
	if err != nil {
		return err
	}
	client.args = append(client.args, "-dev")
	if err := client.Start(); err != nil {
		return err
	}
	c.Clients = append(c.Clients, client)
	return c.awaitNomad(ctx, client.HTTP)
}
