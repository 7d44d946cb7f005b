// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
)

// CopyIn copies a program or script to where every user of this machine can reach it, as tasks are not run by root, and
// returns its path there.
func (c *Cluster) CopyIn(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("file for tasks: %w", err)
	}
	dir := filepath.Join(c.Dir(), "files")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("folder for files of tasks: %w", err)
	}
	path := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(path, text, 0o755); err != nil {
		return "", fmt.Errorf("file for tasks: %w", err)
	}
	return path, nil
}

// SharedDir makes a folder that every user may write to, as one on a file system that all nodes share.
func (c *Cluster) SharedDir(name string) (string, error) {
	path := filepath.Join(c.Dir(), "shared", name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return "", fmt.Errorf("shared folder: %w", err)
	}
	if err := os.Chmod(path, 0o777); err != nil { // whatever the umask is
		return "", fmt.Errorf("shared folder: %w", err)
	}
	return path, nil
}

// TestProgram is the path of the program that stands in for training programs.
func (c *Cluster) TestProgram() string { return c.testProgram }
