// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"fmt"
	"strings"
	"time"
)

// Describe says on one line what would run: "gang resnet50: 4 members x 8 GPUs = 32, in one rack, checkpoint every 15m".
func Describe(g *Gang) string {
	parts := []string{fmt.Sprintf("gang %s: %s", g.Name, describeSize(g))}
	parts = append(parts, describePlace(g)...)
	parts = append(parts, describeCheckpoints(g))
	if g.MaxRuntime > 0 {
		parts = append(parts, "at most "+ShortDuration(g.MaxRuntime))
	}
	if g.Queue != DefaultQueue {
		parts = append(parts, "queue "+g.Queue)
	}
	switch {
	case g.Parameterized:
		parts = append(parts, "for each dispatch")
	case g.Periodic:
		parts = append(parts, "at each period")
	}
	return strings.Join(parts, ", ")
}

func describeSize(g *Gang) string {
	if len(g.Groups) == 1 {
		group := g.Groups[0]
		text := fmt.Sprintf("%s x %s", plural(group.Count, "member"), plural(group.GPUs, "GPU"))
		if group.Count > 1 {
			text += fmt.Sprintf(" = %d", g.GPUs())
		}
		return text
	}
	terms := make([]string, 0, len(g.Groups))
	for _, group := range g.Groups {
		terms = append(terms, fmt.Sprintf("%d x %d", group.Count, group.GPUs))
	}
	return fmt.Sprintf("%s = %s", strings.Join(terms, " + "), plural(g.GPUs(), "GPU"))
}

// describePlace leaves out what is a matter of course, such as that one member is on one node.
func describePlace(g *Gang) []string {
	var parts []string
	if g.Size() > 1 {
		parts = append(parts, describeLocality(g))
		switch g.Comm {
		case CommNone:
			parts = append(parts, "no communication")
		case CommLow:
			parts = append(parts, "little communication")
		case CommHigh, CommUnknown:
		}
	}
	if g.NVLink == NVLinkRequired {
		parts = append(parts, "each on one NVLink island")
	}
	return parts
}

func describeLocality(g *Gang) string {
	text := "in one " + g.Locality
	switch g.Locality {
	case LocalityAny:
		return "anywhere"
	case LocalityNode:
		text = "on one node"
	}
	switch {
	case g.RelaxNever:
		return text + " and never wider"
	case g.RelaxAuto:
		return text + " (wider when waiting costs more)"
	case g.RelaxAfter != DefaultRelaxAfter:
		return text + " (wider after " + ShortDuration(g.RelaxAfter) + ")"
	}
	return text
}

// describeCheckpoints says it once if all groups agree, else by group.
func describeCheckpoints(g *Gang) string {
	texts := make([]string, len(g.Groups))
	agree := true
	for i, group := range g.Groups {
		texts[i] = describeCheckpoint(group)
		agree = agree && texts[i] == texts[0]
	}
	if agree {
		return strings.Join(texts[:min(1, len(texts))], "")
	}
	for i, group := range g.Groups {
		texts[i] = group.Name + ": " + texts[i]
	}
	return strings.Join(texts, ", ")
}

func describeCheckpoint(group Group) string {
	switch {
	case group.Checkpoint != nil && group.Checkpoint.Interval == 0:
		return "checkpoint before a stop"
	case group.Checkpoint != nil:
		return "checkpoint every " + ShortDuration(group.Checkpoint.Interval)
	case group.CheckpointSignal != "":
		return group.CheckpointSignal + " before a stop"
	}
	return "no checkpoints"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// ShortDuration writes a duration without trailing zero units: 15m, not 15m0s.
func ShortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
