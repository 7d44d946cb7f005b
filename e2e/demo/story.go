// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-muster/muster/e2e/cluster"
	"github.com/nomad-muster/muster/placer/ledger"
)

const (
	first  = "pretrain"
	second = "finetune"
)

// limit is how long any one step may take on a busy machine.
const limit = 90 * time.Second

// demo is the demonstration on a running cluster.
type demo struct {
	*narrator
	cluster     *cluster.Cluster
	jobs        string // folder of the job files
	checkpoints string // folder of the second gang's checkpoints
}

// tell goes through all steps, and returns what did not happen.
func (d demo) tell(ctx context.Context) error {
	checker := d.cluster.StartChecker(ctx)
	for _, step := range []func(context.Context) error{d.showNodes, d.takeAll, d.wait, d.startWhole, d.checkpoint, d.finish} {
		if err := step(ctx); err != nil {
			return errors.Join(err, seen(checker.Stop()))
		}
	}
	report := checker.Stop()
	d.say("looked %d times: no GPU was in two hands, no gang ran in part; members started within %s of each other",
		report.Samples, report.MaxStartSpread)
	return seen(report)
}

// seen makes an error of what must never be.
func seen(report cluster.Report) error {
	if len(report.Violations) == 0 {
		return nil
	}
	return fmt.Errorf("seen what must never be: %s", strings.Join(report.Violations, "; "))
}

func (d demo) showNodes(ctx context.Context) error {
	d.say("ready")
	return d.muster(ctx, "nodes")
}

// takeAll submits the gang that takes all GPUs.
func (d demo) takeAll(ctx context.Context) error {
	if err := d.submit(ctx, first, nil); err != nil {
		return err
	}
	if err := d.awaitProcesses(ctx, first, 3); err != nil {
		return err
	}
	d.say("gang %s runs: 3 members x 8 GPUs, every GPU is taken", first)
	return nil
}

// wait submits the gang that must wait, and shows its reason.
func (d demo) wait(ctx context.Context) error {
	if err := d.submit(ctx, second, map[string]string{"checkpoints": d.checkpoints}); err != nil {
		return err
	}
	var gang ledger.Gang
	err := cluster.Poll(ctx, "gang "+second+" to wait with a reason", limit, func(ctx context.Context) (bool, string) {
		var err error
		gang, err = d.cluster.Gang(ctx, second)
		return err == nil && gang.State == ledger.GangWaiting && gang.Why != nil, fmt.Sprint(gang.State, " ", err)
	})
	if err != nil {
		return err
	}
	d.say("gang %s waits: %s", second, gang.Why.Text)
	return d.muster(ctx, "gangs")
}

// startWhole waits until the waiting gang runs.
func (d demo) startWhole(ctx context.Context) error {
	if err := d.await(ctx, first, ledger.GangFinished); err != nil {
		return err
	}
	d.say("gang %s has finished and given its GPUs back", first)
	if err := d.awaitProcesses(ctx, second, 2); err != nil {
		return err
	}
	d.say("gang %s has started whole: 2 members x 8 GPUs", second)
	return nil
}

// checkpoint waits for a finished checkpoint and shows it.
func (d demo) checkpoint(ctx context.Context) error {
	err := cluster.Poll(ctx, "a finished checkpoint", limit, func(context.Context) (bool, string) {
		files, err := filepath.Glob(filepath.Join(d.checkpoints, "*.ckpt"))
		return len(files) >= 4, fmt.Sprintf("%d files, %v", len(files), err)
	})
	if err != nil {
		return err
	}
	d.say("gang %s has saved checkpoints", second)
	return d.muster(ctx, "gang", second)
}

func (d demo) finish(ctx context.Context) error {
	if err := d.await(ctx, second, ledger.GangFinished); err != nil {
		return err
	}
	d.say("gang %s has finished", second)
	if err := d.muster(ctx, "gangs"); err != nil {
		return err
	}
	return d.cluster.AwaitEmpty(ctx, limit)
}

// submit runs a job file as a user does.
func (d demo) submit(ctx context.Context, gang string, vars map[string]string) error {
	d.command("nomad job run -detach " + gang + ".nomad.hcl")
	all := map[string]string{"program": d.cluster.TestProgram()}
	for name, value := range vars {
		all[name] = value
	}
	return d.cluster.Run(ctx, filepath.Join(d.jobs, gang+".nomad.hcl"), all)
}

// muster runs a muster command and shows what it prints.
func (d demo) muster(ctx context.Context, args ...string) error {
	d.command("muster " + strings.Join(args, " "))
	output, err := d.cluster.MusterCommand(ctx, args...)
	if err != nil {
		return err
	}
	d.show(output)
	return nil
}

func (d demo) await(ctx context.Context, name string, state ledger.GangState) error {
	return cluster.Poll(ctx, "gang "+name+" to be "+string(state), limit, func(ctx context.Context) (bool, string) {
		gang, err := d.cluster.Gang(ctx, name)
		return err == nil && gang.State == state, fmt.Sprint(gang.State, " ", err)
	})
}

func (d demo) awaitProcesses(ctx context.Context, gang string, members int) error {
	return cluster.Poll(ctx, "gang "+gang+" to run", limit, func(context.Context) (bool, string) {
		ranks := map[int]bool{}
		for _, process := range d.cluster.Processes() {
			if process.Gang == gang && len(process.Minors) > 0 {
				ranks[process.Rank] = true
			}
		}
		return len(ranks) == members, fmt.Sprintf("%d of %d members", len(ranks), members)
	})
}
