// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package service puts the placer together: clients of Consul and Nomad from the configuration, the follower, the
// checker, the policy, and the engine's loop. It decides nothing. The command line starts it.
package service

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/config"
	"github.com/nomad-muster/muster/placer/engine"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// Run runs a placer until the context ends; then it hands over the lead and returns nil. An error means that the
// configuration can't work: a server that does not answer is waited for.
func Run(ctx context.Context, c config.Config, logger *slog.Logger) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("the configuration: %w", err)
	}
	consul, err := consulapi.NewClient(c.Consul.Client())
	if err != nil {
		return fmt.Errorf("making Consul's client: %w", err)
	}
	client, err := nomadapi.NewClient(c.Nomad.Client(c.Region))
	if err != nil {
		return fmt.Errorf("making Nomad's client: %w", err)
	}
	book := ledger.New(ledger.NewConsul(consul), c.Region)
	follower := nomad.NewFollower(client, nomad.FollowerOptions{
		Asks:           asksForGang,
		RelistInterval: c.RelistInterval,
		Logger:         logger,
	})
	announcer := nomad.NewAnnouncer(client, logger)
	signaller := nomad.NewSignaller(client, logger)
	writer := nomad.NewWriter(client, logger)
	checker := nomad.NewChecker()
	reader := engine.NewReader(jobspecs.Options{FenceTime: c.FenceTime, Levels: levels(c)})

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer signaller.Wait()
	defer writer.Wait()
	defer running.Wait()
	defer cancel()
	running.Go(func() { follower.Run(ctx) })
	running.Go(func() { announcer.Run(ctx) })
	logger.Info("placer starts", "name", c.Name, "region", c.Region, "consul", c.Consul.Address, "nomad", c.Nomad.Address)
	return engine.Run(ctx, engine.Options{
		Name: c.Name, Ledger: book, Nomad: follower, Tick: c.Tick, Announce: announcer.Note, Signal: signaller.Send,
		WriteJob: writer.Write, Denied: writer.Denied,
		Turn: func() { checker.Turn(); reader.Turn() },
		Now:  time.Now, Logger: logger,
		Rules: rulesOf(c, book, reader, checker),
	})
}

// levels are the topology levels as package jobspecs takes them: none is known to be none.
func levels(c config.Config) []string { return append([]string{}, c.Topology.Levels...) }

// newID makes a reservation's ID: 48 random bits as 12 hex digits, never the same twice.
func newID() string {
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic(fmt.Sprintf("no random numbers: %v", err)) // crypto/rand does not fail on any system that we run on
	}
	return hex.EncodeToString(id[:])
}
