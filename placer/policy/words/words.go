// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package words puts numbers, names and times into the plain sentences that say why a gang waits. The packages of the
// policy import it.
package words

import (
	"fmt"
	"strings"
	"time"
)

// List joins words as in "a, b and c".
func List(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// Few lists words, but of more than three only the first two and how many more there are.
func Few(words []string) string {
	if len(words) > 3 {
		words = []string{words[0], words[1], fmt.Sprintf("%d more", len(words)-2)}
	}
	return List(words)
}

// Count tells a number of things, "1 node" or "2 nodes".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Verb picks the form that goes with a number of things.
func Verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Roughly rounds a time to come up, so that the text changes rarely: to whole minutes above two minutes, to ten seconds
// below.
func Roughly(d time.Duration) string {
	step := 10 * time.Second
	if d > 2*time.Minute {
		step = time.Minute
	}
	d = max(step, (d+step-1)/step*step)
	text := ""
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / unit.length; n > 0 {
			text += fmt.Sprintf("%d%s", n, unit.name)
		}
		d %= unit.length
	}
	return text
}
