// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package nomad is what the placer knows of Nomad: the jobs that ask for gangs, the nodes and the allocations, listed,
// followed and handed out as values that never change (State); and Nomad's own answers to "would you place this group
// there?" (Checker, Plan), so that the placer never needs a second implementation of constraints. It decides nothing
// about gangs, changes a job only as it is told (Writer), and treats the event stream as a hint only: what counts is what
// was listed. The engine and the placer's service import it.
package nomad
