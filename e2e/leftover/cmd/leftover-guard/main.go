// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Command leftover-guard sweeps a test cluster whose test process ended without cleaning up. See leftover.Guard.
package main

import (
	"fmt"
	"os"

	"github.com/nomad-muster/muster/e2e/leftover"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: leftover-guard MARK")
		os.Exit(2)
	}
	if err := leftover.Watch(os.Stdin, leftover.Mark(os.Args[1])); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
