// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package cluster runs a whole Muster cluster on one machine: real Consul and Nomad agents and placers on loopback
// ports, with a client agent for every made-up GPU machine. It starts and ends programs, runs the same commands as a
// user, and reports what is really running on which made-up GPU; it decides nothing and asserts nothing beyond the
// invariants that Checker watches. It needs root, as Nomad clients do. The end-to-end stories and the demonstration
// import it.
package cluster
