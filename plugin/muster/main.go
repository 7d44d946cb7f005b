// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Command muster is the placer service and the command line of Muster.
package main

import (
	"os"

	"github.com/nomad-muster/muster/placer/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
