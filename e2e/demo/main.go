// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Command demo shows Muster's main job on this machine: real Nomad and Consul agents, made-up GPUs, and two gangs of which
// one waits for the other. It exits with 0 only if everything happened that it tells of.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nomad-muster/muster/e2e/agents"
	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/e2e/fakenvml"
)

// lifetime bounds the whole demonstration.
const lifetime = 5 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, lifetime)
	err := run(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\nError:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root, err := agents.Root()
	if err != nil {
		return err
	}
	fmt.Println("Muster on this machine: real Consul and Nomad agents, made-up GPUs.")
	fmt.Println("Building what is not built yet ...")
	if _, err := cluster.Build(ctx); err != nil {
		return err
	}
	n := newNarrator(os.Stdout)
	n.say("starting Consul, a Nomad server, three Nomad clients with eight GPUs each, and a placer")
	c, err := cluster.Start(ctx, cluster.Config{Name: "demo", Nodes: nodes()})
	if err != nil {
		return err
	}
	checkpoints, failed := c.SharedDir("checkpoints")
	if failed == nil {
		failed = demo{narrator: n, cluster: c, jobs: filepath.Join(root, "e2e", "demo"), checkpoints: checkpoints}.tell(ctx)
	}
	if failed != nil {
		fmt.Fprintln(os.Stderr, c.Tails())
	}
	n.say("ending all agents")
	if err := errors.Join(failed, c.Stop(failed != nil)); err != nil { //nolint:contextcheck // the clean-up outlives ctx
		return err
	}
	n.say("done: nothing is left on this machine")
	return nil
}

// nodes are the three machines of the demonstration, in two racks.
func nodes() []cluster.Node {
	var nodes []cluster.Node
	for i, rack := range []string{"r1", "r1", "r2"} {
		name := fmt.Sprintf("gpu-%d", i+1)
		nodes = append(nodes, cluster.Node{Name: name, Topology: map[string]string{"rack": rack}, Machine: fakenvml.HGX8(name)})
	}
	return nodes
}
