// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/placer/ledger"
)

// leave ends the claim when nothing of the task is left, however long that takes and Consul is away. Until then the
// task's directory stays, by which the next process of the plugin goes on. A task that Nomad may start again keeps its
// claim for it.
func (t *task) leave(ctx context.Context, mayComeBack bool) {
	select {
	case <-ctx.Done():
		return
	case <-t.claiming:
	}
	if t.member != nil {
		if err := t.fallSilent(ctx, mayComeBack); err != nil {
			return
		}
	}
	if t.plugin.clear(ctx, t.ledger, t.dir, t.seat, t.logger) == nil {
		t.logger.Debug("cleared away", "slot", t.seat.Slot().String())
	}
}

// fallSilent says the last word about the member, and returns when nothing more will be said.
func (t *task) fallSilent(ctx context.Context, mayComeBack bool) error {
	back := mayComeBack && t.comesBack(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if mayComeBack && !back {
		t.member.update(func(m *ledger.Member) { m.State = ledger.MemberStopped })
	}
	gone, err := t.member.flush(ctx)
	if err != nil {
		return err
	}
	if t.leader != nil && !gone && !back {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.leader.Done():
		}
	}
	return t.unfollow(ctx)
}

// clear waits until a task's processes are gone, ends its claim and removes its directory. Where several tasks of one
// allocation stand on a seat (Nomad has started a task again that it could not recover), the last one ends the claim.
func (p *Plugin) clear(ctx context.Context, l Ledger, dir string, seat gang.Seat, logger hclog.Logger) error {
	process, err := launch.Attach(processDir(dir))
	if err == nil || errors.Is(err, launch.ErrLost) {
		// The task is over for Nomad, so a process that came up after all (its start took too long) must go.
		if err := process.Kill(ctx); err != nil {
			return err
		}
		if err := process.Gone(ctx); err != nil {
			return err
		}
	} else if !errors.Is(err, launch.ErrNotStarted) {
		return err
	}
	if last, err := p.leaveToOthers(dir, seat); !last {
		return err
	}
	var retry gang.Retry
	for {
		err := l.Unclaim(ctx, seat.Node, seat.Slot(), seat.Allocation)
		if err == nil {
			break
		}
		logger.Warn("the claim could not be ended; trying on", "slot", seat.Slot().String(), "error", err)
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing the task's directory: %w", err)
	}
	return nil
}

// leaveToOthers removes a task's directory and leaves the claim to another task on the same seat, if there is one; else
// the task is the last.
func (p *Plugin) leaveToOthers(dir string, seat gang.Seat) (last bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last = true
	for _, other := range p.dirsLocked() {
		if saved, err := loadTask(other); other == dir || err != nil || !sameSeat(saved.Seat, seat) {
			continue
		}
		last = false
		if err := inherit(dir, other); err != nil {
			return false, err
		}
	}
	if last {
		return true, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return false, fmt.Errorf("removing the task's directory: %w", err)
	}
	return false, nil
}

func sameSeat(a, b gang.Seat) bool {
	return a.Node == b.Node && a.Slot() == b.Slot() && a.Allocation == b.Allocation
}

// dirsLocked lists the directories of all tasks.
func (p *Plugin) dirsLocked() []string {
	root := filepath.Join(p.settings.StateDir, "tasks")
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.logger.Warn("listing the tasks' directories", "error", err)
	}
	dirs := make([]string, 0, len(entries))
	for _, entry := range entries {
		dirs = append(dirs, filepath.Join(root, entry.Name()))
	}
	return dirs
}

// supersedeLocked ends what is left of earlier tasks on a new task's seat: Nomad has stopped it to start it again; or it has
// given it up without our hearing of it, since it could not recover it.
func (p *Plugin) supersedeLocked(t *task) {
	for _, dir := range p.dirsLocked() {
		saved, err := loadTask(dir)
		if dir == t.dir || err != nil || !sameSeat(saved.Seat, t.seat) {
			continue
		}
		if earlier, cared := p.care[dir]; cared {
			if earlier.task != nil {
				earlier.task.supersede()
			}
			continue
		}
		t.logger.Warn("ending an earlier task of this allocation, which Nomad did not recover", "dir", dir)
		p.care[dir] = care{seat: saved.Seat}
		go func() {
			var retry gang.Retry
			for {
				err := p.clear(p.ctx, t.ledger, dir, saved.Seat, t.logger)
				if err == nil {
					break
				}
				// As long as nobody knows that its processes are gone, the new task waits.
				t.logger.Warn("an earlier task of this allocation can't be cleared away; trying on", "dir", dir, "error", err)
				if retry.Wait(p.ctx) != nil {
					return
				}
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.care, dir)
		}()
	}
}

// predecessorPause is between two looks at whether an earlier task has gone.
const predecessorPause = 50 * time.Millisecond

// awaitPredecessors waits until no earlier task on this task's seat is there any more: its processes must be gone, what it
// wrote must have arrived, and it must not end the claim that this one is about to make.
func (p *Plugin) awaitPredecessors(ctx context.Context, t *task) error {
	ticker := time.NewTicker(predecessorPause)
	defer ticker.Stop()
	for p.hasPredecessor(t) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

func (p *Plugin) hasPredecessor(t *task) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for dir, other := range p.care {
		if dir != t.dir && sameSeat(other.seat, t.seat) && (other.task == nil || other.task.isSuperseded()) {
			return true
		}
	}
	return false
}
