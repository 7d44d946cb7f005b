// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

const (
	metaPrefix   = "muster_"
	knobPriority = "priority"
)

// Knobs are the names that With takes, in the order of the documentation.
func Knobs() []string {
	knobs := make([]string, 0, len(metaKeys()))
	for _, key := range metaKeys() {
		if key != metaCheckpointSignal { // the slots that a gang holds are bound to it
			knobs = append(knobs, strings.TrimPrefix(key, metaPrefix))
		}
	}
	return append(knobs, knobPriority)
}

// States says whether the job itself, or what was laid over it, says a knob; else Muster's default holds, or the queue's.
func (g *Gang) States(knob string) bool { return slices.Contains(g.Stated, knob) }

// state notes a knob as said; the list may be another gang's as well, and is never changed.
func (g *Gang) state(knob string) {
	if at, found := slices.BinarySearch(g.Stated, knob); !found && slices.Contains(Knobs(), knob) {
		g.Stated = slices.Insert(slices.Clone(g.Stated), at, knob)
	}
}

// WithDefaults is the gang as it would be if Muster had other defaults: each knob that the job states stays, and none
// counts as stated by this. All else is as of With.
func (g *Gang) WithDefaults(defaults map[string]string, options ...Options) (*Gang, error) {
	lacking := map[string]string{}
	for knob, value := range defaults {
		if !g.States(knob) {
			lacking[knob] = value
		}
	}
	changed, err := g.With(lacking, options...)
	if err != nil {
		return nil, err
	}
	changed.Stated = g.Stated
	return changed, nil
}

// With is the gang as it would be if its job said something else: each knob is a key of meta without "muster_", under
// the same rules, or priority, in place of the job's. The error says in one line what is wrong with a value and the mend.
// The gang itself isn't changed. At most one Options is read.
func (g *Gang) With(knobs map[string]string, options ...Options) (*Gang, error) {
	changed := *g
	values := map[string]metaValue{}
	var r reader
	if len(options) > 0 {
		r.options = options[0]
	}
	for _, knob := range sortedKeys(knobs) {
		switch value := knobs[knob]; {
		case knob == knobPriority:
			priority, err := strconv.Atoi(value)
			if err != nil || priority < 1 || priority > MaxPriority {
				r.refuse(place{}, "write a number from 1 to "+strconv.Itoa(MaxPriority), "priority = %q is not a priority", value)
			}
			changed.Priority = priority
		case !slices.Contains(Knobs(), knob):
			mend := suggest(strings.ToLower(knob), Knobs())
			if mend == "" {
				mend = "known are " + strings.Join(Knobs(), ", ")
			}
			r.refuse(place{}, mend, "%q is no knob that can be set", knob)
		default:
			values[metaPrefix+knob] = metaValue{text: value}
		}
	}
	if len(r.list) > 0 {
		return nil, errors.New(r.list[0].text())
	}
	r.readMeta(&changed, values)
	if len(r.list) > 0 {
		return nil, errors.New(strings.ReplaceAll(r.list[0].text(), metaPrefix, ""))
	}
	return &changed, nil
}
