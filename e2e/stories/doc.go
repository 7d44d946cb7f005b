// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package stories holds what users of Muster live through, each told as a test on real Nomad and Consul agents with
// made-up GPUs, and each beginning with `nomad job run` of an HCL file. The stories need root and some minutes; with
// MUSTER_SOAK=1 the long ones are told in full.
package stories
