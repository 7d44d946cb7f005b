// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"log/slog"
	"slices"
)

// Validate checks what no single option shows, and what may also come from a flag or a variable. The error names the
// option and the mend.
func (c Config) Validate() error {
	if c.Region == "" {
		return fmt.Errorf(`region is empty; write Nomad's region, normally "global"`)
	}
	if c.Name == "" {
		return fmt.Errorf("name is empty; write a name for this placer, normally the host's")
	}
	if _, err := c.Level(); err != nil {
		return err
	}
	if c.StartTimeout < c.PlacementDeadline {
		return fmt.Errorf("start_timeout (%s) is shorter than placement_deadline (%s); raise it", c.StartTimeout, c.PlacementDeadline)
	}
	return c.Topology.validate()
}

func (t Topology) validate() error {
	for i, level := range t.Levels {
		switch {
		case level == "":
			return fmt.Errorf("topology: levels holds an empty name; remove it")
		case level == "node" || level == "any":
			return fmt.Errorf("topology: level %q has a meaning of its own in muster_locality; choose another name", level)
		case slices.Contains(t.Levels[:i], level):
			return fmt.Errorf("topology: level %q is listed twice; remove one", level)
		}
	}
	return nil
}

// Level is LogLevel as slog has it.
func (c Config) Level() (slog.Level, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return level, fmt.Errorf("log_level %q is not known; write debug, info, warn or error", c.LogLevel)
	}
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return level, fmt.Errorf("log_level %q: %w", c.LogLevel, err)
	}
	return level, nil
}
