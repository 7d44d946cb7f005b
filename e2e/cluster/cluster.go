// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/e2e/agents"
	"github.com/nomad-muster/muster/e2e/leftover"
	"github.com/nomad-muster/muster/placer/ledger"
)

// sweepWithin is how long it may take to remove what a cluster leaves behind.
const sweepWithin = 2 * time.Minute

// Region is the Nomad region of every cluster.
const Region = "global"

// Config says what to start.
type Config struct {
	Name    string // of the cluster's log folder
	Nodes   []Node
	Placers int // 0: one
	Limits  Limits
	// ACL makes Nomad and Consul refuse whoever lacks the right; placers, plugins and the muster command of a user get
	// tokens with the policies of placer/doc/policies.
	ACL    bool
	Docker bool // a Docker daemon of its own, for at most one node: Nomad ends containers that its client does not know
	Dev    bool // agents in their -dev modes: one Nomad agent that is server and (the first) node's client at once
}

// Limits are how long things may take and how often they may fail. Zero values are what most stories have.
type Limits struct {
	FenceTime         time.Duration // 30 s
	PlacementDeadline time.Duration // 2 min: the machine may be busy
	MaxFailures       int           // 8
	// Heartbeat is the least time in which Nomad's server hears of each client, and the grace that it gives. Default:
	// Nomad's 10 s.
	Heartbeat time.Duration
}

func (l Limits) orDefault() Limits {
	return Limits{
		FenceTime: cmp.Or(l.FenceTime, 30*time.Second), PlacementDeadline: cmp.Or(l.PlacementDeadline, 2*time.Minute),
		MaxFailures: cmp.Or(l.MaxFailures, 8), Heartbeat: cmp.Or(l.Heartbeat, 10*time.Second),
	}
}

// Cluster is a running cluster.
type Cluster struct {
	Mark    leftover.Mark
	Logs    string // folder of all logs; it is kept if Stop is told so
	Nomad   *nomad.Client
	Consul  *consul.Client
	Ledger  *ledger.Ledger
	Clients []*Client
	Placers []*Process

	testProgram string
	config      Config
	binaries    Binaries
	ports       *ports
	guard       *leftover.Guard
	consulAddr  string // host:port
	nomadAddr   string // URL
	nomadRPC    string // host:port
	dockerAddr  string // "unix:///..."; empty: no Docker
	tokens      tokens // empty without ACL
	abandon     func() bool

	mu        sync.Mutex // protects processes
	processes []*Process // in the order of their start

	stop    sync.Once
	stopErr error
}

// Start builds what is missing, starts everything and waits until it is ready. When ctx ends, so does the cluster.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a test cluster needs root: Nomad clients mount, make device nodes and use cgroups")
	}
	config.Placers, config.Limits = max(config.Placers, 1), config.Limits.orDefault()
	binaries, err := Build(ctx)
	if err != nil {
		return nil, err
	}
	c, err := prepare(config, binaries)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, errors.New(c.Tails()), c.Stop(true)) //nolint:contextcheck // the clean-up outlives ctx
	}
	c.abandon = context.AfterFunc(ctx, func() { _ = c.Stop(true) }) //nolint:contextcheck // the clean-up outlives ctx
	return c, nil
}

// prepare makes the folders of a cluster and the guard that will remove them.
func prepare(config Config, binaries Binaries) (*Cluster, error) {
	mark, err := newMark()
	if err != nil {
		return nil, err
	}
	root, err := agents.Root()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Mark: mark, config: config, binaries: binaries, ports: newPorts()}
	c.Logs = filepath.Join(root, "e2e", ".run", config.Name+"-"+string(mark[len(leftover.Prefix):]))
	if c.guard, err = leftover.StartGuard(binaries.Guard, mark); err != nil {
		return nil, err
	}
	for _, dir := range []string{c.Logs, c.Dir(), c.tmp(), c.plugins()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("folders of the cluster: %w", err)
		}
	}
	for _, plugin := range []string{binaries.DevicePlugin, binaries.DriverPlugin} {
		if err := os.Symlink(plugin, filepath.Join(c.plugins(), filepath.Base(plugin))); err != nil {
			return nil, fmt.Errorf("plugin folder: %w", err)
		}
	}
	if c.testProgram, err = c.CopyIn(binaries.TestProgram); err != nil {
		return nil, err
	}
	return c, nil
}

// Dir is where the cluster keeps its state; it vanishes with the cluster.
func (c *Cluster) Dir() string { return c.Mark.Dir() }

func (c *Cluster) tmp() string     { return filepath.Join(c.Dir(), "tmp") }
func (c *Cluster) plugins() string { return filepath.Join(c.Dir(), "plugins") }

func newMark() (leftover.Mark, error) {
	digits := make([]byte, 4)
	if _, err := rand.Read(digits); err != nil {
		return "", fmt.Errorf("name of the cluster: %w", err)
	}
	return leftover.Mark(leftover.Prefix + hex.EncodeToString(digits)), nil
}

func (c *Cluster) start(ctx context.Context) error {
	steps := []func(context.Context) error{c.startDocker, c.startConsul, c.startServer, c.awaitServers, c.grantRights, c.startPlacers, c.startClients, c.awaitReady}
	if c.config.Dev {
		steps = []func(context.Context) error{c.startDevConsul, c.startDevNomad, c.startPlacers, c.awaitReady}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the cluster and removes everything of it; its logs stay if keepLogs says so.
func (c *Cluster) Stop(keepLogs bool) error {
	c.stop.Do(func() { c.stopErr = c.stopAll(keepLogs) })
	return c.stopErr
}

func (c *Cluster) stopAll(keepLogs bool) error {
	if c.abandon != nil {
		c.abandon()
	}
	c.mu.Lock()
	processes := c.processes
	c.mu.Unlock()
	var failed []error
	for i := len(processes) - 1; i >= 0; i-- {
		failed = append(failed, processes[i].Kill(syscall.SIGKILL))
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepWithin)
	defer cancel()
	failed = append(failed, c.Mark.Sweep(ctx), c.guard.Release())
	if !keepLogs {
		failed = append(failed, os.RemoveAll(c.Logs))
	}
	return errors.Join(failed...)
}

// Tails is the end of the logs, for a person who looks for what went wrong and may have nothing else: all that the placers
// said last, and of the agents what their plugins said and what troubled them.
func (c *Cluster) Tails() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := "logs are in " + c.Logs + "\n"
	for _, p := range c.processes {
		tail := p.tail(12, func(line string) bool {
			return strings.Contains(line, "nomad-d") || strings.Contains(line, "[WARN]") || strings.Contains(line, "[ERROR]")
		})
		if slices.Contains(c.Placers, p) || !p.Running() {
			tail = p.Tail(30)
		}
		if tail != "" {
			text += fmt.Sprintf("---- %s\n%s\n", p.Name, tail)
		}
	}
	return text
}

// Client returns the client agent of a node.
func (c *Cluster) Client(node string) *Client {
	for _, client := range c.Clients {
		if client.Node.Name == node {
			return client
		}
	}
	return nil
}

// Process returns a program by its name, for example "nomad-server".
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}
