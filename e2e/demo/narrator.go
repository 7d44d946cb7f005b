// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// narrator prints what happens, with the seconds since it began.
type narrator struct {
	out   io.Writer
	began time.Time
}

func newNarrator(out io.Writer) *narrator { return &narrator{out: out, began: time.Now()} }

// say prints one line.
func (n *narrator) say(format string, args ...any) {
	fmt.Fprintf(n.out, "%6.1fs  %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

// command prints a command that a user would type.
func (n *narrator) command(line string) {
	fmt.Fprintf(n.out, "\n         $ %s\n", line)
}

// show prints what a command printed.
func (n *narrator) show(output string) {
	for _, line := range strings.Split(strings.TrimRight(output, "\n"), "\n") {
		fmt.Fprintln(n.out, strings.TrimRight("         "+line, " "))
	}
	fmt.Fprintln(n.out)
}
