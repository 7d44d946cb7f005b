// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"slices"
	"strings"
)

// readCheckpoint reads how a group's task is asked to checkpoint: for the muster driver from its config, which it
// checks on the way since Nomad does not before the task starts; for any other from the group's meta.
func (r *reader) readCheckpoint(t target, group *Group) {
	declared, hasMeta := t.meta[metaCheckpointSignal]
	if t.task.Driver != "muster" {
		if hasMeta && r.checkSignal(declared.at, metaCheckpointSignal, declared.text) {
			group.CheckpointSignal = declared.text
		}
		return
	}
	if hasMeta {
		r.refuse(declared.at, "write checkpoint { signal = ... } in the task's config",
			"%s is for other task drivers; the muster driver has a checkpoint block", metaCheckpointSignal)
	}
	group.Checkpoint = r.readMusterConfig(block{values: t.task.Config, at: t.at.in("config")})
	if group.Checkpoint != nil {
		group.CheckpointSignal = group.Checkpoint.Signal
	}
}

// readMusterConfig checks the config of a muster task and returns its checkpoint block.
func (r *reader) readMusterConfig(config block) *Checkpoint {
	r.checkKeys(config, "command", "args", "work_dir", "barrier_timeout", "checkpoint")
	if command, ok := r.text(config, "command"); ok && command == "" {
		r.refuse(config.at.attribute("command"), "write the program to run", "command is empty")
	} else if _, set := config.values["command"]; !set {
		r.refuse(config.at, "write command = ... in the task's config", "the muster driver needs a command")
	}
	r.checkArgs(config)
	r.text(config, "work_dir")
	if text, ok := r.text(config, "barrier_timeout"); ok {
		r.duration(config.at.attribute("barrier_timeout"), "barrier_timeout", text, "10m")
	}
	raw, set := config.values["checkpoint"]
	if !set {
		return nil
	}
	blocks, ok := asBlocks(raw)
	at := config.at.in("checkpoint")
	if !ok || len(blocks) != 1 {
		r.refuse(at, `write one block: checkpoint { interval = "15m" }`, "checkpoint is not one block")
		return nil
	}
	return r.readCheckpointBlock(block{values: blocks[0], at: at})
}

func (r *reader) readCheckpointBlock(b block) *Checkpoint {
	r.checkKeys(b, "interval", "signal", "timeout", "path")
	checkpoint := &Checkpoint{Signal: DefaultCheckpointSignal, Timeout: DefaultCheckpointTimeout}
	interval, ok := r.text(b, "interval")
	switch {
	case !ok || interval == "":
	case interval == "auto":
		r.refuse(b.at.attribute("interval"), `write a duration such as "15m" for now`, `checkpoint interval = "auto" does not work yet`)
	default:
		checkpoint.Interval, _ = r.duration(b.at.attribute("interval"), "checkpoint interval", interval, "15m")
	}
	if signal, ok := r.text(b, "signal"); ok && r.checkSignal(b.at.attribute("signal"), "checkpoint signal", signal) {
		checkpoint.Signal = signal
	}
	if timeout, ok := r.text(b, "timeout"); ok {
		checkpoint.Timeout, _ = r.duration(b.at.attribute("timeout"), "checkpoint timeout", timeout, "2m")
	}
	checkpoint.Path, _ = r.text(b, "path")
	return checkpoint
}

// signals are those that a process can catch and that mean nothing else to a driver or a terminal.
func signals() []string {
	return []string{"SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGALRM", "SIGURG", "SIGCONT", "SIGWINCH"}
}

func (r *reader) checkSignal(at place, key, signal string) bool {
	switch {
	case slices.Contains(signals(), signal):
		return true
	case signal == "SIGKILL" || signal == "SIGSTOP":
		r.refuse(at, `write "SIGUSR1"`, "%s = %q can't be caught, so no program can answer it with a checkpoint", key, signal)
	default:
		r.refuse(at, "write one of "+strings.Join(signals(), ", "), "%s = %q is not a signal's name", key, signal)
	}
	return false
}

// block is one block of a driver's config as Nomad decodes it, and where it stands.
type block struct {
	values map[string]any
	at     place
}

func (r *reader) checkKeys(b block, known ...string) {
	for _, key := range sortedKeys(b.values) {
		if slices.Contains(known, key) {
			continue
		}
		mend := suggest(key, known)
		if mend == "" {
			mend = "known are " + strings.Join(known, ", ")
		}
		r.refuse(b.at.attribute(key), mend, "unknown key %s: the muster driver would refuse the task", key)
	}
}

// text reads an optional text. The second result is false if it is not set, or refused as being no text.
func (r *reader) text(b block, key string) (string, bool) {
	value, set := b.values[key]
	if !set || value == nil {
		return "", false
	}
	text, ok := value.(string)
	if !ok {
		r.refuse(b.at.attribute(key), "put it in quotes", "%s is not a text", key)
	}
	return text, ok
}

func (r *reader) checkArgs(config block) {
	value := config.values["args"]
	list, ok := value.([]any)
	ok = ok || value == nil
	for _, item := range list {
		switch item.(type) {
		case nil, map[string]any, []any, []map[string]any:
			ok = false
		}
	}
	if !ok {
		r.refuse(config.at.attribute("args"), `write args = ["train.py"]`, "args is not a list of texts")
	}
}

// asBlocks reads blocks in each form that they arrive in: from HCL, from the API, and written as an object.
func asBlocks(value any) ([]map[string]any, bool) {
	switch v := value.(type) {
	case []map[string]any:
		return v, true
	case map[string]any:
		return []map[string]any{v}, true
	case []any:
		blocks := make([]map[string]any, 0, len(v))
		for _, item := range v {
			b, ok := item.(map[string]any)
			if !ok {
				return nil, false
			}
			blocks = append(blocks, b)
		}
		return blocks, true
	}
	return nil, false
}
