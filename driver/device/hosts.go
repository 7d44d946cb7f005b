// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/placer/ledger"
)

func (f gangFacts) inRankOrder() gangFacts {
	slices.SortFunc(f.Hosts, func(a, b host) int { return cmp.Compare(a.Rank, b.Rank) })
	return f
}

// master is where rank 0 is.
func (f gangFacts) master() (string, error) {
	if len(f.Hosts) == 0 || f.Hosts[0].Rank != 0 || f.Hosts[0].Address == "" {
		return "", fmt.Errorf("the document of gang %s names no address for rank 0 of reservation %s", f.Gang, f.Reservation)
	}
	return f.Hosts[0].Address, nil
}

// hostLines lists the members in rank order. It is a host file as Open MPI reads it, the rest of each line being a comment
// there.
func (f gangFacts) hostLines() string {
	var text strings.Builder
	for _, h := range f.Hosts {
		fmt.Fprintf(&text, "%s slots=%d # node=%s rank=%d group=%s\n", h.Address, h.GPUs, h.Node, h.Rank, h.Group)
	}
	return text.String()
}

// hostFiles are the host files of slots, readable to every task.
type hostFiles struct{ dir string }

func newHostFiles(stateDir string) hostFiles { return hostFiles{dir: filepath.Join(stateDir, "hosts")} }

func (h hostFiles) path(id ledger.SlotID) string { return filepath.Join(h.dir, id.String()) }

// write makes a slot's host file and returns its path.
func (h hostFiles) write(id ledger.SlotID, facts gangFacts) (string, error) {
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return "", fmt.Errorf("host file of slot %s: %w", id, err)
	}
	if err := writeFile(h.path(id), []byte(facts.hostLines()), 0o644, false); err != nil {
		return "", fmt.Errorf("host file of slot %s: %w", id, err)
	}
	return h.path(id), nil
}

// prune removes the files of slots that are not in the table any more.
func (h hostFiles) prune(table ledger.SlotTable) error {
	entries, err := os.ReadDir(h.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		id, parseErr := ledger.ParseSlotID(entry.Name())
		if _, present := table.Find(id); parseErr == nil && !present {
			err = errors.Join(err, os.Remove(h.path(id)))
		}
	}
	return err
}
