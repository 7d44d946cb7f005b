// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Command build makes the Nomad and Consul agents for the end-to-end tests, or says where they are already.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/nomad-muster/muster/e2e/agents"
)

func main() {
	out := flag.String("out", "bin", "folder for the binaries")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := build(ctx, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context, out string) error {
	for _, agent := range agents.All() {
		path, err := agent.Path(ctx, out)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", agent.Name, path)
	}
	return nil
}
