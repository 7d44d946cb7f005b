// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/devices"
)

// standardDevices are the character devices that every program may use: null, zero, full, random, urandom, tty, ptmx,
// and all pseudo-terminals.
func standardDevices() []*devices.Rule {
	return []*devices.Rule{
		character(1, 3), character(1, 5), character(1, 7), character(1, 8), character(1, 9),
		character(5, 0), character(5, 2), character(136, devices.Wildcard),
	}
}

func character(major, minor int64) *devices.Rule {
	return &devices.Rule{Type: devices.CharDevice, Major: major, Minor: minor, Permissions: "rw", Allow: true}
}

// restrict denies all device nodes but the standard ones and those of the limits. Nodes that don't exist are left out.
func (g *group) restrict(limits Limits) error {
	paths := slices.Clone(limits.DeviceNodes)
	for _, pattern := range limits.DeviceNodeMatches {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("pattern of device nodes %q: %w", pattern, err)
		}
		paths = append(paths, matches...)
	}
	rules := standardDevices()
	for _, path := range paths {
		rule, err := deviceRule(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, devices.ErrNotADevice) {
			continue
		}
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(rules, func(r *devices.Rule) bool {
			return r.Type == rule.Type && r.Major == rule.Major && r.Minor == rule.Minor
		}) {
			rules = append(rules, rule)
		}
	}
	return g.manager.Set(&configs.Resources{Devices: rules})
}

func deviceRule(path string) (*devices.Rule, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("device node %s: %w", path, err)
	}
	device, err := devices.DeviceFromPath(resolved, "rw")
	if err != nil {
		return nil, fmt.Errorf("device node %s: %w", path, err)
	}
	device.Allow = true
	return &device.Rule, nil
}
