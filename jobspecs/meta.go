// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The keys of meta that Muster reads.
const (
	metaQueue            = "muster_queue"
	metaNVLink           = "muster_nvlink"
	metaLocality         = "muster_locality"
	metaRelaxAfter       = "muster_relax_after"
	metaComm             = "muster_comm"
	metaMaxRuntime       = "muster_max_runtime"
	metaCheckpointSignal = "muster_checkpoint_signal"
)

// The values of muster_relax_after that are no duration.
const (
	relaxNever = "never"
	relaxAuto  = "auto"
)

// longest is the longest time that a job may state, a year: sums of such times and of moments stay far from overflow.
const longest = 365 * 24 * time.Hour

// metaKeys are the known keys, in the order of the documentation.
func metaKeys() []string {
	return []string{metaQueue, metaNVLink, metaLocality, metaRelaxAfter, metaComm, metaMaxRuntime, metaCheckpointSignal}
}

// metaValue is one muster_* value and where it stands.
type metaValue struct {
	text string
	at   place
}

// groupMeta is the muster_* part of a group's meta, with the job's merged below it as Nomad does. Keys that nobody
// reads are refused: a mistyped one would silently mean the default.
func (r *reader) groupMeta(t target) map[string]metaValue {
	values := map[string]metaValue{}
	r.mergeMeta(values, r.job.Meta, r.at.in("meta"))
	r.mergeMeta(values, t.group.Meta, t.groupAt.in("meta"))
	for _, key := range sortedKeys(t.task.Meta) {
		if isMusterKey(key) {
			r.refuse(t.at.in("meta").attribute(key), "move it to the group's meta",
				"%s in a task's meta is not read", key)
		}
	}
	return values
}

func (r *reader) mergeMeta(into map[string]metaValue, meta map[string]string, at place) {
	for _, key := range sortedKeys(meta) {
		if isMusterKey(key) {
			into[key] = metaValue{text: meta[key], at: at.attribute(key)}
		}
	}
}

// isMusterKey also catches near misses such as MUSTER_QUEUE and muster-queue.
func isMusterKey(key string) bool {
	const prefix = "muster"
	return len(key) > len(prefix) && strings.EqualFold(key[:len(prefix)], prefix) &&
		strings.ContainsRune("_-.", rune(key[len(prefix)]))
}

// agreedMeta is what all groups of a gang say. The checkpoint signal belongs to the group and may differ.
func (r *reader) agreedMeta(targets []target) map[string]metaValue {
	first := targets[0].meta
	for _, t := range targets[1:] {
		keys := map[string]bool{}
		for key := range first {
			keys[key] = true
		}
		for key := range t.meta {
			keys[key] = true
		}
		delete(keys, metaCheckpointSignal)
		for _, key := range sortedKeys(keys) {
			a, inFirst := first[key]
			b, inOther := t.meta[key]
			if inFirst == inOther && a.text == b.text {
				continue
			}
			at := t.groupAt
			if inOther {
				at = b.at
			}
			r.refuse(at, "say it once in the job's meta, or the same in each group",
				"groups %s and %s of one gang differ in %s", name(targets[0].group.Name), name(t.group.Name), key)
		}
	}
	return first
}

// readMeta fills in what the meta says about the gang.
func (r *reader) readMeta(gang *Gang, values map[string]metaValue) {
	for _, key := range sortedKeys(values) {
		v := values[key]
		gang.state(strings.TrimPrefix(key, metaPrefix))
		switch key {
		case metaQueue:
			r.readQueue(gang, v)
		case metaNVLink:
			r.readNVLink(gang, v)
		case metaLocality:
			r.readLocality(gang, v)
		case metaRelaxAfter:
			r.readRelaxAfter(gang, v)
		case metaComm:
			r.readComm(gang, v)
		case metaMaxRuntime:
			r.readMaxRuntime(gang, v)
		case metaCheckpointSignal: // read with the group
		default:
			mend := suggest(strings.ToLower(key), metaKeys())
			if mend == "" {
				mend = "known are " + strings.Join(metaKeys(), ", ")
			}
			r.refuse(v.at, mend, "unknown key %s in meta", key)
		}
	}
}

func (r *reader) readQueue(gang *Gang, v metaValue) {
	if err := CheckName(v.text); err != nil {
		r.refuse(v.at, `write a queue's name, or remove the key for the queue "default"`,
			"%s = %q names no queue: %s", metaQueue, v.text, err)
		return
	}
	gang.Queue = v.text
}

func (r *reader) readNVLink(gang *Gang, v metaValue) {
	switch value := NVLink(v.text); value {
	case NVLinkRequired, NVLinkPreferred:
		gang.NVLink = value
	default:
		r.refuse(v.at, `write "required" or "preferred"`, "%s = %q is not a value of it", metaNVLink, v.text)
	}
}

func (r *reader) readLocality(gang *Gang, v metaValue) {
	levels := r.options.Levels
	known := append([]string{LocalityNode}, levels...)
	known = append(known, LocalityAny)
	accepted := slices.Contains(known, v.text) || levels == nil && CheckName(v.text) == nil
	if accepted {
		gang.Locality = v.text
		return
	}
	mend := "write node, a topology level of the placer's configuration, or any"
	if levels != nil {
		mend = "write one of " + strings.Join(known, ", ")
		if hint := suggest(v.text, known); hint != "" {
			mend = hint + " " + mend
		}
	}
	r.refuse(v.at, mend, "%s = %q is no level of this cluster", metaLocality, v.text)
}

func (r *reader) readRelaxAfter(gang *Gang, v metaValue) {
	gang.RelaxNever, gang.RelaxAuto, gang.RelaxAfter = v.text == relaxNever, v.text == relaxAuto, 0
	if gang.RelaxNever || gang.RelaxAuto {
		return
	}
	d, err := time.ParseDuration(v.text)
	if err != nil || d < 0 {
		r.refuse(v.at, `write a duration such as "10m", or "auto", or "never"`,
			"%s = %q is neither a duration nor auto nor never", metaRelaxAfter, v.text)
		return
	}
	if d > longest {
		r.tooLong(v, metaRelaxAfter, `, or "never"`)
		return
	}
	gang.RelaxAfter = d
}

func (r *reader) readMaxRuntime(gang *Gang, v metaValue) {
	d, ok := r.duration(v.at, metaMaxRuntime, v.text, "12h")
	switch {
	case !ok:
	case d > longest:
		r.tooLong(v, metaMaxRuntime, ", or remove the key")
	default:
		gang.MaxRuntime = d
	}
}

func (r *reader) tooLong(v metaValue, key, otherwise string) {
	r.refuse(v.at, fmt.Sprintf("write at most %q%s", ShortDuration(longest), otherwise), "%s = %q is more than a year", key, v.text)
}

func (r *reader) readComm(gang *Gang, v metaValue) {
	switch value := Comm(v.text); value {
	case CommNone, CommLow, CommHigh:
		gang.Comm = value
	default:
		r.refuse(v.at, `write "none", "low" or "high", or remove the key if it is not known`, "%s = %q is not a value of it", metaComm, v.text)
	}
}

// duration reads a duration of at least a second; example is one that a reader would write.
func (r *reader) duration(at place, key, text, example string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		r.refuse(at, fmt.Sprintf("write a number and a unit such as %q", example), "%s = %q is not a duration", key, text)
		return 0, false
	case d < time.Second:
		r.refuse(at, fmt.Sprintf("write at least %q", ShortDuration(time.Second)), "%s = %q is too short", key, text)
		return 0, false
	}
	return d, true
}

// sortedKeys gives a map's keys in order, so that the order of findings never depends on a map.
func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
