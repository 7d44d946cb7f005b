// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/placer/ledger"
)

// readyWithin is how long an agent may take to start on a busy machine.
const readyWithin = 3 * time.Minute

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func (c *Cluster) startConsul(context.Context) error {
	ports, err := c.ports.takeThree()
	if err != nil {
		return err
	}
	if c.config.ACL {
		if c.tokens.management.Consul, err = newUUID(); err != nil {
			return err
		}
	}
	config, err := c.configure("consul", "consul", map[string]any{
		"Dir": filepath.Join(c.Dir(), "consul"), "HTTP": ports[0], "Server": ports[1], "Serf": ports[2], "Token": c.tokens.management.Consul,
	})
	if err != nil {
		return err
	}
	c.consulAddr = loopback(ports[0])
	return c.newProcess("consul", c.binaries.Consul, []string{"agent", "-config-file", config}, nil).Start()
}

// awaitServers waits for both servers: each takes its time to elect itself, and they need not do so one after the other.
func (c *Cluster) awaitServers(ctx context.Context) error {
	if err := c.awaitConsul(ctx, c.consulAddr); err != nil {
		return err
	}
	return c.awaitNomad(ctx, c.nomadAddr)
}

// awaitConsul waits until Consul has a leader and this agent is registered, which sessions need.
func (c *Cluster) awaitConsul(ctx context.Context, address string) error {
	client, err := consul.NewClient(&consul.Config{Address: address, Token: c.tokens.management.Consul})
	if err != nil {
		return fmt.Errorf("client of Consul: %w", err)
	}
	c.consulAddr, c.Consul = address, client
	c.Ledger = ledger.New(ledger.NewConsul(client), Region)
	return c.await(ctx, "Consul to lead and to know itself", func(ctx context.Context) (bool, string) {
		nodes, _, err := client.Catalog().Nodes((&consul.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		return err == nil && len(nodes) > 0, fmt.Sprint(err)
	})
}

func (c *Cluster) startServer(context.Context) error {
	ports, err := c.ports.takeThree()
	if err != nil {
		return err
	}
	config, err := c.configure("server", "nomad-server", map[string]any{
		"Dir": filepath.Join(c.Dir(), "server"), "HTTP": ports[0], "RPC": ports[1], "Serf": ports[2], "Consul": c.consulAddr,
		"ACL": c.config.ACL, "Heartbeat": c.config.Limits.Heartbeat,
	})
	if err != nil {
		return err
	}
	c.nomadRPC, c.nomadAddr = loopback(ports[1]), "http://"+loopback(ports[0])
	return c.newProcess("nomad-server", c.binaries.Nomad, []string{"agent", "-config", config}, nil).Start()
}

func (c *Cluster) awaitNomad(ctx context.Context, address string) error {
	client, err := nomad.NewClient(&nomad.Config{Address: address, Region: Region})
	if err != nil {
		return fmt.Errorf("client of Nomad: %w", err)
	}
	c.nomadAddr, c.Nomad = address, client
	return c.await(ctx, "Nomad's server to lead", func(context.Context) (bool, string) {
		leader, err := client.Status().Leader()
		return err == nil && leader != "", fmt.Sprintf("leader %q, %v", leader, err)
	})
}

// startPlacers starts every placer; the first to get the lock leads.
func (c *Cluster) startPlacers(context.Context) error {
	for i := range c.config.Placers {
		name := "placer" + strconv.Itoa(i+1)
		config, err := c.configure("placer", name, map[string]any{
			"Name": name, "Consul": c.consulAddr, "Nomad": c.nomadAddr, "ConsulToken": c.tokens.placer.Consul, "NomadToken": c.tokens.placer.Nomad,
			"Limits": c.config.Limits,
		})
		if err != nil {
			return err
		}
		placer := c.newProcess(name, c.binaries.Muster, []string{"placer", "-config", config}, nil)
		if err := placer.Start(); err != nil {
			return err
		}
		c.Placers = append(c.Placers, placer)
	}
	return nil
}

// Leader returns the placer that leads now; nil while none does.
func (c *Cluster) Leader(ctx context.Context) (*Process, error) {
	snapshot, err := c.Ledger.Load(ctx)
	if err != nil {
		return nil, err
	}
	for _, placer := range c.Placers {
		if placer.Name == snapshot.Leader {
			return placer, nil
		}
	}
	return nil, nil
}

// awaitReady waits until a placer leads, every node is in the ledger and may be used, and Nomad can run tasks of the
// muster driver on every client.
func (c *Cluster) awaitReady(ctx context.Context) error {
	if err := c.await(ctx, "a leading placer and all nodes in the ledger", c.ledgerReady); err != nil {
		return err
	}
	return c.await(ctx, "healthy Nomad clients with the muster driver", c.clientsReady)
}

func (c *Cluster) ledgerReady(ctx context.Context) (bool, string) {
	snapshot, err := c.Ledger.Load(ctx)
	if err != nil {
		return false, err.Error()
	}
	if snapshot.Leader == "" {
		return false, "no placer leads"
	}
	for _, node := range c.config.Nodes {
		switch doc := snapshot.Nodes[node.Name].Doc; {
		case doc.Node == "":
			return false, "node " + node.Name + " is not in the ledger"
		case doc.Problem != "":
			return false, "node " + node.Name + ": " + doc.Problem
		case snapshot.Tables[node.Name].Index == 0:
			return false, "node " + node.Name + " has no slot table yet"
		}
	}
	return true, ""
}

func (c *Cluster) clientsReady(ctx context.Context) (bool, string) {
	nodes, _, err := c.Nomad.Nodes().List((&nomad.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return false, err.Error()
	}
	ready := 0
	for _, node := range nodes {
		if info := node.Drivers["muster"]; info != nil && info.Healthy && node.Status == "ready" {
			ready++
		}
	}
	return ready == len(c.config.Nodes), fmt.Sprintf("%d of %d", ready, len(c.config.Nodes))
}
