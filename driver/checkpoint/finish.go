// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"path"
	"slices"
	"strings"
	"time"
)

// Entry is one file or directory right under a checkpoint path. Of a directory, Modified is the newest time of anything
// in it, Bytes and Files count all of it.
type Entry struct {
	Name     string
	Modified time.Time
	Bytes    int64
	Files    int
	Marked   bool // it holds a file that its writer writes last
}

// Settle is how long an entry must stay as it is to count as finished, when no marker says so.
const Settle = 2 * time.Second

// Watch follows a checkpoint path from a request on and says when a new checkpoint is finished there. It is not safe for
// concurrent use.
type Watch struct {
	before  map[string]Entry
	changed map[string]sighting
}

type sighting struct {
	entry Entry
	since time.Time // first seen in this form
}

// NewWatch starts from what was there when the checkpoint was asked for.
func NewWatch(before []Entry) *Watch {
	w := &Watch{before: map[string]Entry{}, changed: map[string]sighting{}}
	for _, entry := range before {
		w.before[entry.Name] = entry
	}
	return w
}

// Finished is a checkpoint that was seen to be complete.
type Finished struct {
	Entry string    // the newest entry; not a pointer to it such as "latest"
	At    time.Time // when it was first seen in its final form
}

// Observe takes a look at the path and says whether a checkpoint that was not there before is finished: everything new
// or changed has stayed as it is for Settle, or carries its writer's marker. Names of unfinished files are not looked at.
func (w *Watch) Observe(now time.Time, entries []Entry) (Finished, bool) {
	seen := map[string]sighting{}
	for _, entry := range entries {
		if old, ok := w.before[entry.Name]; temporary(entry.Name) || ok && same(old, entry) {
			continue
		}
		sight, ok := w.changed[entry.Name]
		if !ok || !same(sight.entry, entry) {
			sight = sighting{entry: entry, since: now}
		}
		seen[entry.Name] = sight
	}
	w.changed = seen
	return w.finished(now)
}

func (w *Watch) finished(now time.Time) (Finished, bool) {
	var pointed, settled = false, true
	var found []sighting
	for name, sight := range w.changed {
		if pointer(name) {
			pointed = true
			continue
		}
		found = append(found, sight)
		settled = settled && (sight.entry.Marked || now.Sub(sight.since) >= Settle)
	}
	if len(found) == 0 || !settled && !pointed {
		return Finished{}, false
	}
	newest := slices.MaxFunc(found, func(a, b sighting) int {
		if order := a.entry.Modified.Compare(b.entry.Modified); order != 0 {
			return order
		}
		return strings.Compare(a.entry.Name, b.entry.Name)
	})
	at := newest.since
	for _, sight := range found {
		if sight.since.After(at) {
			at = sight.since
		}
	}
	return Finished{Entry: newest.entry.Name, At: at}, true
}

func same(a, b Entry) bool {
	return a.Modified.Equal(b.Modified) && a.Bytes == b.Bytes && a.Files == b.Files && a.Marked == b.Marked
}

// temporary says whether a name is of something unfinished, by the habits of those who write to a temporary name first.
func temporary(name string) bool {
	switch path.Ext(name) {
	case ".tmp", ".temp", ".part", ".partial", ".incomplete", ".lock":
		return true
	}
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "tmp") || strings.HasSuffix(name, "~")
}

// pointer says whether a file only names the newest checkpoint, and is written after it (DeepSpeed, Megatron, TensorFlow).
func pointer(name string) bool {
	switch name {
	case "latest", "latest_checkpointed_iteration.txt", "checkpoint":
		return true
	}
	return false
}

// marker says whether a file inside a checkpoint is written last (torch.distributed.checkpoint, Orbax).
func marker(name string) bool {
	switch name {
	case ".metadata", "_CHECKPOINT_METADATA", "commit_success.txt":
		return true
	}
	return false
}
