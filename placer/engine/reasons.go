// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import "github.com/nomad-muster/muster/placer/ledger"

// The codes of the engine's own reasons; those of gangs that wait for room are package model's.
const (
	WhySpec       = "spec"        // the job's spec can't be a gang
	WhyNameTaken  = "name_taken"  // another job has the gang's name
	WhyLedger     = "ledger"      // nothing may be granted: the ledger is new, was lost or set back
	WhyTooLarge   = "too_large"   // one transaction can't hold it
	WhyFinished   = "finished"    // all members succeeded
	WhyFailed     = "failed"      // a member failed
	WhyNotStarted = "not_started" // a member did not get to its claim
	WhyStopped    = "stopped"     // the job was stopped, purged, edited or renamed
	WhyShape      = "shape"       // the job's version needs other slots
	WhyEdited     = "edited"      // Nomad ends the members of a version and starts those of the next
	WhyDrain      = "drain"       // a node is draining
	WhyForeign    = "foreign"     // somebody else's task has a claim on one of its slots
	WhyDead       = "dead"        // Nomad will not run the job again
	WhyGivenUp    = "given_up"    // its command has failed too often in a row
	WhySilent     = "silent"      // a node has been silent for the fence time
	WhyBornAnew   = "born_anew"   // a node is not the one that was granted any more
	WhyReset      = "reset"       // its job is stopped and registered again, since Nomad's books are wrong about it
	WhyEnding     = "ending"      // something of an earlier run has not ended yet
	WhyQueue      = "queue"       // its queue is not there, or does not take it
	WhyPreempted  = "preempted"   // an operator wants its GPUs back
)

// The results of a run, in ledger.RunSummary.
const (
	resultFinished   = "finished"
	resultFailed     = "failed"
	resultStopped    = "stopped"
	resultNotStarted = "not started"
	resultPreempted  = "preempted"
)

func reason(code, text string) *ledger.Reason { return &ledger.Reason{Code: code, Text: text} }

func sameReason(a, b *ledger.Reason) bool {
	return a == b || a != nil && b != nil && *a == *b
}
