// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package pluginconf has what the configuration blocks of both plugins share: options with defaults, checks that name the
// option, and the block that says how to reach Consul. It keeps nothing and connects to nobody. Packages driver and
// driver/device import it; it imports nothing of ours.
package pluginconf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// String is an optional string with a default.
func String(name, otherwise string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, "string", false), hclspec.NewLiteral(fmt.Sprintf("%q", otherwise)))
}

// Enabled is the option that switches a plugin off.
func Enabled() *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr("enabled", "bool", false), hclspec.NewLiteral("true"))
}

// Strings is a block of optional strings without defaults.
func Strings(block string, names ...string) *hclspec.Spec {
	options := make(map[string]*hclspec.Spec, len(names))
	for _, name := range names {
		options[name] = hclspec.NewAttr(name, "string", false)
	}
	return hclspec.NewBlock(block, false, hclspec.NewObject(options))
}

// Duration reads the value of an option, which must be at least so long.
func Duration(name, text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if d < least {
		return 0, fmt.Errorf("%s = %q: give at least %s", name, text, least)
	}
	return d, nil
}

// Path refuses a path that depends on a working directory.
func Path(name, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s = %q: give an absolute path", name, path)
	}
	return nil
}

// Region refuses a missing region.
func Region(region string) error {
	if region == "" {
		return errors.New(`region is empty: give the Nomad agent's region ("global" is Nomad's default)`)
	}
	return nil
}

// ReadID reads a file that holds one identifier: of the machine, or of this boot of it.
func ReadID(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(data))
	if id == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return id, nil
}

// Override replaces a value unless there is nothing to replace it with.
func Override(value *string, with string) {
	if with != "" {
		*value = with
	}
}

// Given is what a log may say of a secret.
func Given(secret string) string {
	if secret == "" {
		return "not given"
	}
	return "given"
}
