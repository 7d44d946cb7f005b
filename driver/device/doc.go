// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package device is Nomad's device plugin of a GPU node: it publishes what GPUs the node has, offers every open slot of
// the node to Nomad as one device group, decides at Reserve whether a start may use a slot, and acknowledges closing
// slots when nothing uses their GPUs any more. It never decides who gets GPUs (the placer does) and never changes a
// slot.
//
// Trouble is a state here, never an error: without NVML, Consul or the Nomad agent the plugin goes on with what it last
// knew, which it also keeps on disk. Nomad asks a plugin never again after an error or a closed stream.
//
// The decisions (groups.go, reserve.go, clear.go, foreign.go, table.go) are functions of a world, a plain value; the
// loops around them gather that value from NVML, the ledger and the local Nomad agent.
//
// Only the plugin's main package and tests import it; it imports placer/ledger and driver/gpu, and not package driver.
package device
