// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package engine is the placer's loop: it gathers what the ledger and Nomad say, decides what follows (Rules.Step, a
// function from values to actions), and commits each action as one transaction, as long as it leads. It decides when a
// gang is admitted, granted, running, closed and released; which GPUs a gang gets is for package policy, how documents
// change without harm for package ledger, what Nomad would refuse for package placer/nomad. It never looks at a node,
// never runs anything, and changes no job but to stop it or to register it again as it was. Only package service imports it.
package engine
