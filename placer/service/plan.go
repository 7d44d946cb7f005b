// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/config"
	"github.com/nomad-muster/muster/placer/engine"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
	"github.com/nomad-muster/muster/placer/policy"
)

// Plan says what the leading placer would do about a job if it were submitted now, by what the ledger and Nomad say. It
// writes nothing.
func Plan(ctx context.Context, book *ledger.Ledger, client *nomadapi.Client, job *nomadapi.Job, now time.Time) (engine.Plan, error) {
	snapshot, err := book.Load(ctx)
	if err != nil {
		return engine.Plan{}, fmt.Errorf("reading the ledger: %w", err)
	}
	state, err := nomad.Read(ctx, client, asksForGang, engine.Tracked(snapshot), now)
	if err != nil {
		return engine.Plan{}, err
	}
	next, err := nomad.Unsubmitted(job, state)
	if err != nil {
		return engine.Plan{}, err
	}
	c := config.Default("")
	c.Topology.Levels = snapshot.Levels
	rules := rulesOf(c, book, engine.NewReader(jobspecs.Options{FenceTime: c.FenceTime, Levels: levels(c)}), nomad.NewChecker())
	return rules.Plan(engine.View{Ledger: snapshot, Nomad: state}, next, now), nil
}

func asksForGang(job *nomadapi.Job) bool {
	gang, _ := jobspecs.FromJob(job)
	return gang != nil
}

// rulesOf are the rules that a placer of a configuration decides by.
func rulesOf(c config.Config, book *ledger.Ledger, reader *engine.Reader, checker *nomad.Checker) engine.Rules {
	return engine.Rules{
		Keys: book.Keys(), Levels: c.Topology.Levels, PortBase: c.Ports.Base,
		PlacementDeadline: c.PlacementDeadline, StartTimeout: c.StartTimeout, FenceTime: c.FenceTime, MaxFailures: c.MaxFailures,
		Read: reader.Read, Decide: policy.Decide, Refusal: checker.Refusal, NewID: newID,
	}
}
