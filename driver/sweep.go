// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/launch"
)

const (
	// sweepAfter is how long Nomad has, from the plugin's start, to recover its tasks.
	sweepAfter = 2 * time.Minute
	// sweepEvery is how often claims that nobody cares for are looked for again.
	sweepEvery = time.Minute
	// lostEvery is how often tasks are looked for that Nomad can't recover.
	lostEvery = 5 * time.Second
)

// sweepLocked begins to look for directories of tasks that Nomad does not know any more, to end their claims. A task whose
// end was cut short by a restart of the plugin is cleared away when Nomad has had its time to recover it, and left alone
// while its processes still run. One that Nomad has lost with its data is ended at once: nobody will ever hear of it.
func (p *Plugin) sweepLocked() {
	if p.sweeping {
		return
	}
	p.sweeping = true
	go func() {
		timer := time.NewTimer(sweepAfter)
		defer timer.Stop()
		look := time.NewTicker(lostEvery)
		defer look.Stop()
		for {
			select {
			case <-p.ctx.Done():
				return
			case <-look.C:
				p.sweepLost(p.ctx)
			case <-timer.C:
				p.sweep(p.ctx)
				timer.Reset(sweepEvery)
			}
		}
	}()
}

// sweepLost ends the tasks that Nomad has lost, each in the background: processes may take long to go.
func (p *Plugin) sweepLost(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.ledger
	for _, dir := range p.dirsLocked() {
		saved, err := loadTask(dir)
		if _, cared := p.care[dir]; cared || err != nil || !lost(saved) {
			continue
		}
		p.logger.Warn("ending a task that Nomad's client has lost with its data", "dir", dir,
			"alloc_id", saved.Seat.Allocation, "gang", saved.Seat.Gang, "rank", saved.Seat.Rank)
		p.care[dir] = care{seat: saved.Seat}
		go func() {
			err := p.clear(ctx, l, dir, saved.Seat, p.logger)
			p.mu.Lock()
			defer p.mu.Unlock()
			if delete(p.care, dir); err != nil {
				p.logger.Warn("a task that Nomad has lost can't be cleared away", "dir", dir, "error", err)
			}
		}()
	}
}

// lost says whether Nomad's client can't know a task any more: the folder of its allocation is gone, which outlives the
// task otherwise, and the folder of all allocations is there.
func lost(t savedTask) bool {
	_, err := os.Stat(t.Config.AllocDir)
	_, parent := os.Stat(filepath.Dir(t.Config.AllocDir))
	return t.Config.AllocDir != "" && errors.Is(err, os.ErrNotExist) && parent == nil
}

// sweep clears what is to be cleared now.
func (p *Plugin) sweep(ctx context.Context) {
	p.mu.Lock()
	dirs, l := p.dirsLocked(), p.ledger
	p.mu.Unlock()
	for _, dir := range dirs {
		saved, err := loadTask(dir)
		if errors.Is(err, os.ErrNotExist) {
			err = p.removeUnlessTask(dir)
		} else if err == nil && p.adopt(dir, saved.Seat) {
			err = p.clear(ctx, l, dir, saved.Seat, p.logger)
			p.mu.Lock()
			delete(p.care, dir)
			p.mu.Unlock()
		}
		if err != nil {
			p.logger.Warn("a task that was left behind can't be cleared away", "dir", dir, "error", err)
		}
	}
}

// removeUnlessTask removes a directory whose making or removal was cut short.
func (p *Plugin) removeUnlessTask(dir string) error {
	p.mu.Lock() // StartTask may be making it
	defer p.mu.Unlock()
	if _, err := loadTask(dir); !errors.Is(err, os.ErrNotExist) || !idle(dir) {
		return err
	}
	return os.RemoveAll(dir)
}

// idle says that nothing of a directory's task runs, as far as its supervisor knows.
func idle(dir string) bool {
	process, err := launch.Attach(processDir(dir))
	if err == nil {
		_, err = process.Exit()
		return err == nil
	}
	return errors.Is(err, launch.ErrNotStarted) || errors.Is(err, launch.ErrLost)
}

// adopt takes a directory into care if nobody has, and nothing of its task runs.
func (p *Plugin) adopt(dir string, seat gang.Seat) bool {
	if !idle(dir) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, cared := p.care[dir]; cared {
		return false
	}
	p.care[dir] = care{seat: seat}
	return true
}
