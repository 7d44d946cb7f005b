// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package launch runs one task's processes under a supervisor: a process of our own, in a session and cgroup of its own,
// that outlives the plugin and Nomad's agent. The supervisor starts the command as the task's user in the task's cgroup,
// carries its output to Nomad's pipes, records its exit status on disk and serves a small protocol on a socket, by which
// whoever drives the task now (this plugin, or the next one after a restart) waits for it, signals it or runs commands
// beside it.
//
// Each task has a directory:
//
//	spec.json       what to run; written by Start
//	lock            held by the one supervisor of this directory
//	socket          where the supervisor answers
//	state.json      who runs: PIDs, cgroup; written when the command has started
//	exit.json       how the command ended; written once
//	gone            written when no process of the task is left
//	supervisor.log  the supervisor's own messages
//
// The package decides nothing about gangs: it does not know why a task starts or ends. Package driver imports it.
package launch
