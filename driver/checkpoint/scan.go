// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Scan looks at a checkpoint path: a directory of checkpoints, or one file that is written anew each time. A path that
// does not exist (yet) has no entries. Files that vanish meanwhile are left out.
func Scan(path string) ([]Entry, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking at checkpoint path: %w", err)
	}
	if !info.IsDir() {
		return []Entry{{Name: info.Name(), Modified: info.ModTime(), Bytes: info.Size(), Files: 1}}, nil
	}
	children, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("looking at checkpoint path: %w", err)
	}
	entries := make([]Entry, 0, len(children))
	for _, child := range children {
		entry, err := measure(filepath.Join(path, child.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking at checkpoint path: %w", err)
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// measure sums up one entry with everything below it.
func measure(root string) (Entry, error) {
	entry := Entry{Name: filepath.Base(root)}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return vanished(err, path == root)
		}
		info, err := d.Info()
		if err != nil {
			return vanished(err, path == root)
		}
		if info.ModTime().After(entry.Modified) {
			entry.Modified = info.ModTime()
		}
		if !d.IsDir() {
			entry.Files++
			entry.Bytes += info.Size()
			entry.Marked = entry.Marked || marker(d.Name())
		}
		return nil
	})
	return entry, err
}

func vanished(err error, root bool) error {
	if !root && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
