// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// Kind is what an action does to the ledger.
type Kind string

// The kinds, in the order in which a step does them.
const (
	Release      Kind = "release"       // take a closing gang's slots out; the gang waits again, is over, or is deleted
	Close        Kind = "close"         // turn all slots of a gang to closing
	Put          Kind = "put"           // write a gang's document, and nothing else
	Delete       Kind = "delete"        // delete the document of a gang that holds nothing
	Refuse       Kind = "refuse"        // write why a job is not admitted
	ClearRefusal Kind = "clear refusal" // remove that
	Ask          Kind = "ask"           // ask a node what it remembers of its slots; a new one gets its slot table so
	Restore      Kind = "restore"       // take a node's answer
	Adopt        Kind = "adopt"         // give a gang a reservation back that its nodes remember
	Forget       Kind = "forget"        // take a reservation from a gang that its nodes do not have
	Sweep        Kind = "sweep"         // close a node's slots that no gang holds, and take out those that are clear
	DeleteRun    Kind = "delete run"    // remove a run whose reservation is gone
	Grant        Kind = "grant"         // give a gang all of its slots
	Signal       Kind = "signal"        // signal a task without the muster driver whose slot is closing
	WriteJob     Kind = "write job"     // stop a job, or register it again, in Nomad
	Answer       Kind = "answer"        // write why an operator's order is not carried out
	EndClaims    Kind = "end claims"    // delete claims that an operator vouches for, ahead of a release too large with them
	Account      Kind = "account"       // write what queues have used
	DropOrder    Kind = "drop order"    // remove an order that leaves nothing to do
)

// What a Put is about.
const (
	putAdmit   = "admit"       // a job's gang is new
	putVersion = "new version" // its job has a new version that its slots, if any, still suit
	putReason  = "reason"      // why it waits has changed
	putOutlook = "outlook"     // something else has changed that can be said about its start
	putRunning = "running"     // all slots are claimed
	putFailed  = "failed"      // Nomad will not run it again
	putAgain   = "again"       // it was over, and its job wants to run again
	putReset   = "reset"       // its job is going to be stopped and registered again
	putDone    = "reset done"  // that has happened
	putQueue   = "queue"       // the queues that were applied put it into another one, or say something else for it
	putOrdered = "ordered"     // an operator has changed its place in the queue or its knobs
)

// What an Ask or a Restore is about, when it is worth a word.
const (
	askNew       = "new"   // the node has had no table
	restoreOther = "other" // the node remembers something else than the ledger
)

// What a WriteJob is for.
const (
	endFinished = "finished" // a gang that has finished, and that Nomad would run again
	endFailed   = "failed"   // a gang that has failed too often
	endSecond   = "second"   // a job whose gang name is another job's
	endTaker    = "taker"    // a job that asks for slots and names no gang
	endReset    = "reset"    // a gang that Nomad's books have wrong
)

// Action is one thing to do: one transaction, one signal, or one change of a job.
type Action struct {
	Kind    Kind
	What    string                   // Put: what it is about; else words for the log
	Gang    ledger.Gang              // Release, Close, Put, Delete, Adopt, Forget, Grant: the new document
	Release ledger.Release           // Release, Forget: how
	Slots   map[string][]ledger.Slot // Grant: by node
	Refusal ledger.Refusal           // Refuse; of ClearRefusal only namespace and job
	Node    string                   // Ask, Restore, Sweep
	Vouched string                   // Sweep: the reservation whose closing slots an operator vouches for
	Claims  []ledger.NodeSlot        // EndClaims
	Run     ledger.RunID             // DeleteRun
	Slot    ledger.SlotID            // Signal
	Alloc   *nomad.Alloc             // Signal
	Task    string                   // Signal
	Signal  string                   // Signal
	Job     *nomad.Job               // WriteJob
	Write   nomad.JobWrite           // WriteJob
	Usage   ledger.Usage             // Account
	Ran     *ran                     // Close: what the run teaches; nil: nothing
	// Proposed is a proposal of the policy that is new: gangs that could make room for Gang by moving.
	Proposed *ledger.Move
	// Order is what an operator has ordered, in the transaction that does it; of Answer, with the answer.
	Order *ledger.Versioned[ledger.Order]
}
