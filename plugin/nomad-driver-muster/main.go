// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-muster is Nomad's task driver for gangs; package driver says what it does. Nomad starts it from its
// plugin_dir. It starts itself again as `nomad-driver-muster supervise DIR`, the supervisor of one task.
package main

import (
	"context"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"github.com/nomad-muster/muster/driver"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
	"github.com/nomad-muster/muster/driver/launch"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == launch.SuperviseArgument {
		os.Exit(launch.Supervise(os.Args[2]))
	}
	plugins.ServeCtx(func(ctx context.Context, log hclog.Logger) any {
		return driver.New(ctx, log, driver.Dependencies{Ledger: driver.Connect, Hardware: open})
	})
}

func open(library string) (driver.Hardware, error) {
	l, err := nvml.Open(library)
	if err != nil {
		return nil, err // and not a Hardware that holds nil
	}
	return l, nil
}
