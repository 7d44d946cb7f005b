// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-device-muster is Nomad's device plugin of a GPU node; package driver/device says what it does. Nomad
// starts it from its plugin_dir.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"github.com/nomad-muster/muster/driver/device"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
)

func main() {
	plugins.ServeCtx(func(ctx context.Context, log hclog.Logger) any {
		return device.New(ctx, log, open)
	})
}

func open(library string) (device.Hardware, error) {
	l, err := nvml.Open(library)
	if err != nil {
		return nil, err // and not a Hardware that holds nil
	}
	return l, nil
}
