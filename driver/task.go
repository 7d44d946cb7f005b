// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-muster/muster/driver/gang"
	"github.com/nomad-muster/muster/driver/launch"
	"github.com/nomad-muster/muster/placer/ledger"
)

// task is one task of Nomad, from StartTask or RecoverTask until its claim has ended.
type task struct {
	plugin   *Plugin
	settings settings
	ledger   Ledger
	logger   hclog.Logger
	cfg      *drivers.TaskConfig
	opts     taskSettings
	dir      string
	begun    time.Time // by StartTask
	seat     gang.Seat
	trouble  *trouble

	before      *ledger.Member // this task's, by an earlier process of the plugin; nil: it had not arrived
	waitsFrom   time.Time      // from when the entry barrier's time runs
	claiming    chan struct{}  // closed while no request for the claim is on its way
	follows     func()         // ends what goes on beside the task for its gang's sake
	rewritten   chan struct{}  // the claim may be missing from a ledger that was lost or set back
	kept        chan struct{}  // closed when the claim will not be made again
	member      *member        // nil until the slot is claimed
	leader      *gang.Leader   // of rank 0 only
	placements  []ledger.Placement
	masterPort  int           // that the grant proposes
	checkpoints *checkpointer // nil: none are declared, or the process does not run
	runs        <-chan ledger.Run
	closing     <-chan string
	lastRun     ledger.Run // as last heard
	generation  int        // that the member is in; 0: in none yet
	closes      *string    // why the slot closes, once it was heard

	stopped    chan struct{} // closed at the first order to stop
	superseded chan struct{} // closed when Nomad has started the allocation's task again
	done       chan struct{} // closed when result is set
	result     *drivers.ExitResult

	mu      sync.Mutex    // protects what follows
	order   stopOrder     // the strictest so far
	ordered chan struct{} // closed and replaced when order changes
	process *launch.Task
	ended   time.Time
}

func newTask(p *Plugin, dir string, saved savedTask) (*task, error) {
	cfg := saved.Config
	opts, err := saved.Options.check(cfg.TaskDir().Dir)
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", cfg.Name, err)
	}
	t := &task{
		plugin: p, settings: p.settings, ledger: p.ledger, cfg: cfg, opts: opts, dir: dir, begun: saved.Started, seat: saved.Seat,
		logger:  p.logger.With("alloc_id", cfg.AllocID, "task_name", cfg.Name, "gang", saved.Seat.Gang, "rank", saved.Seat.Rank),
		stopped: make(chan struct{}), done: make(chan struct{}), ordered: make(chan struct{}), claiming: make(chan struct{}),
		superseded: make(chan struct{}), rewritten: make(chan struct{}, 1), kept: make(chan struct{}),
		before: memberIn(dir, memberFile), waitsFrom: saved.Started,
	}
	if t.before != nil && (t.before.Generation > 1 || t.before.State != ledger.MemberArrived) {
		t.waitsFrom = time.Now()
	}
	close(t.claiming)
	t.trouble = newTrouble(t.logger, t.tell)
	return t, nil
}

// tell puts a line into the task's events.
func (t *task) tell(message string) { t.plugin.events.emit(t.cfg, message) }

func (t *task) tellf(format string, args ...any) { t.tell(fmt.Sprintf(format, args...)) }

// stop orders the task to end. A later order can only make it faster.
func (t *task) stop(order stopOrder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.stopped:
		if !order.until.Before(t.order.until) {
			return
		}
	default:
		defer close(t.stopped)
	}
	t.order = order
	close(t.ordered)
	t.ordered = make(chan struct{})
}

// orders returns the order to stop, nil if there is none, and a channel that is closed when it changes.
func (t *task) orders() (*stopOrder, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.stopped:
		order := t.order
		return &order, t.ordered
	default:
		return nil, t.ordered
	}
}

// supersede makes the task leave its seat to a later one of its allocation.
func (t *task) supersede() {
	t.mu.Lock()
	select {
	case <-t.superseded:
	default:
		close(t.superseded)
	}
	t.mu.Unlock()
	if !t.over() { // Nomad has lost it, and has not stopped it
		t.stop(stopOrder{until: time.Now().Add(t.settings.termGrace)})
	}
}

func (t *task) isSuperseded() bool {
	select {
	case <-t.superseded:
		return true
	default:
		return false
	}
}

func (t *task) over() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// await waits until the task has ended.
func (t *task) await(ctx context.Context, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("the task's processes are still there %s after they were told to end", patience)
	}
}

// running returns the task's process, or why there is none.
func (t *task) running() (*launch.Task, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over():
		return nil, errors.New("the task has ended")
	case t.process == nil:
		return nil, errors.New("the task waits for its gang: its process has not started")
	}
	return t.process, nil
}

func (t *task) setProcess(process *launch.Task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.process = process
}

// finish tells Nomad how the task ended.
func (t *task) finish(result drivers.ExitResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result, t.ended = &result, time.Now()
	close(t.done)
}

// status is the task for InspectTask.
func (t *task) status() *drivers.TaskStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	status := &drivers.TaskStatus{
		ID: t.cfg.ID, Name: t.cfg.Name, State: drivers.TaskStateRunning, StartedAt: t.begun,
		DriverAttributes: map[string]string{
			"gang": t.seat.Gang, "rank": strconv.Itoa(t.seat.Rank), "size": strconv.Itoa(t.seat.Size),
			"reservation": t.seat.Reservation, "node": t.seat.Node,
		},
	}
	if t.process != nil {
		state := t.process.State()
		status.DriverAttributes["pid"] = strconv.Itoa(state.Main)
		status.DriverAttributes["supervisor_pid"] = strconv.Itoa(state.Supervisor)
	}
	if t.over() {
		status.State, status.CompletedAt, status.ExitResult = drivers.TaskStateExited, t.ended, t.result.Copy()
	}
	return status
}
