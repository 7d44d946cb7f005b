// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/driver/gpu"
)

const (
	// eventWait bounds one wait inside NVML, which knows no context, and so how long Watch outlives its own.
	eventWait = 500 * time.Millisecond
	// eventPause keeps Watch from spinning while NVML answers every wait with an error.
	eventPause = 5 * time.Second
)

// Watch calls on for every XID event of any GPU until ctx is done, then returns nil. XIDs also count in Stats, and those that
// make a GPU unfit in its health at the next Discover: on should lead to one soon. They are forgotten when the GPU was lost
// and answers again. An error that matches ErrNoEvents means that this machine reports none. Call Discover before;
// GPUs that come later are not watched.
func (l *Library) Watch(ctx context.Context, on func(gpu.XIDEvent)) error {
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes", "nvmlEventSetWait"} {
		if !l.has(symbol) {
			return fmt.Errorf("%w: the NVML library is too old", ErrNoEvents)
		}
	}
	set, ret := l.api.EventSetCreate()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("create NVML's event set: %w", ret)
	}
	defer func() { _ = set.Free() }()
	registered := l.register(set)
	if len(registered) == 0 {
		return ErrNoEvents
	}
	for ctx.Err() == nil {
		data, ret := set.Wait(uint32(eventWait.Milliseconds()))
		switch {
		case ret == nvml.SUCCESS && data.EventType == nvml.EventTypeXidCriticalError:
			on(l.note(registered[data.Device], data.EventData))
		case ret == nvml.SUCCESS, ret == nvml.ERROR_TIMEOUT:
		default: // a GPU was lost, but NVML does not say which
			on(gpu.XIDEvent{})
			pause(ctx, eventPause)
		}
	}
	return nil
}

// register asks for the XID events of all GPUs and returns the UUIDs of those for which it worked: a GPU that has just
// fallen off the bus cannot be asked for its UUID any more.
func (l *Library) register(set nvml.EventSet) map[nvml.Device]string {
	registered := map[nvml.Device]string{}
	l.mu.Lock()
	gpus := l.machine.GPUs
	l.mu.Unlock()
	for _, g := range gpus {
		device, err := l.device(g.UUID)
		if err != nil {
			continue
		}
		types, ret := device.GetSupportedEventTypes()
		if ret != nvml.SUCCESS || types&nvml.EventTypeXidCriticalError == 0 {
			continue
		}
		if device.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			registered[device] = g.UUID
		}
	}
	return registered
}

// note counts an XID.
func (l *Library) note(uuid string, xid uint64) gpu.XIDEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	record := l.xids[uuid]
	record.count++
	record.last = xid
	if _, unfit := gpu.XIDMeaning(xid); unfit && record.unfit == 0 {
		record.unfit = xid
	}
	l.xids[uuid] = record
	return gpu.XIDEvent{UUID: uuid, XID: xid}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
