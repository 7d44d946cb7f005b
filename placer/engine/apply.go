// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"maps"

	"github.com/nomad-muster/muster/placer/ledger"
)

// change is the transaction of an action about a gang, built on a snapshot.
func change(s ledger.Snapshot, a Action) (ledger.Change, error) {
	c := ledger.Change{
		Gang:       &ledger.Versioned[ledger.Gang]{Doc: a.Gang, Index: s.Gangs[a.Gang.Name].Index},
		DeleteGang: a.Kind == Delete,
	}
	var err error
	switch a.Kind {
	case Grant:
		c, err = ledger.BuildGrant(s, a.Gang, a.Slots)
	case Close:
		c, err = ledger.BuildClose(s, a.Gang, a.Gang.Why.Text)
	case Release:
		c, err = ledger.BuildRelease(s, a.Gang, a.Release)
	case Adopt:
		c, err = ledger.BuildAdopt(s, a.Gang)
	case Forget:
		c, err = ledger.BuildForget(s, a.Gang, a.Release.Remove)
	case Put, Delete, Refuse, ClearRefusal, Ask, Restore, Sweep, DeleteRun, Signal, WriteJob, Answer, EndClaims, DropOrder, Account:
	}
	c.Order = a.Order
	if ran := a.Ran; ran != nil {
		c = c.Learn(s, ran.id, ran.time, ran.ended)
	}
	return c, err
}

// applied is a snapshot after a change. Indexes are by key; nil keeps the old ones, for looking ahead only.
func applied(s ledger.Snapshot, c ledger.Change, index func(node string) uint64) ledger.Snapshot {
	s.Gangs, s.Tables = maps.Clone(s.Gangs), maps.Clone(s.Tables)
	if c.DeleteGang {
		delete(s.Gangs, c.Gang.Doc.Name)
	} else {
		s.Gangs[c.Gang.Doc.Name] = *c.Gang
	}
	if r := c.RunTime; r != nil {
		s.RunTimes = maps.Clone(s.RunTimes)
		s.RunTimes[ledger.RunTimeID{Queue: r.Queue, Namespace: r.Namespace, Job: r.Job}] = ledger.Versioned[ledger.RunTime]{Doc: *r}
		for _, id := range c.Forgotten {
			delete(s.RunTimes, id)
		}
	}
	for node, table := range c.Tables {
		if index != nil {
			table.Index = index(node)
		}
		s.Tables[node] = table
	}
	return s
}
