// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrNotALink is matched by the errors of reading a Link or Path from text.
var ErrNotALink = errors.New("not a link between GPUs")

// pathNames are the words of `nvidia-smi topo -m`, indexed by Path.
var pathNames = [...]string{PathUnknown: "-", PathPIX: "PIX", PathPXB: "PXB", PathPHB: "PHB", PathNODE: "NODE", PathSYS: "SYS"} //nolint:gochecknoglobals // a constant of a type that has none

// String returns the path's word in `nvidia-smi topo -m`, "-" for PathUnknown.
func (p Path) String() string {
	if int(p) >= len(pathNames) {
		p = PathUnknown
	}
	return pathNames[p]
}

// ParsePath reads a path's word; SOC, which old drivers print, is SYS. Errors match ErrNotALink.
func ParsePath(word string) (Path, error) {
	if word == "SOC" {
		return PathSYS, nil
	}
	for p, name := range pathNames {
		if name == word {
			return Path(p), nil //nolint:gosec // G115: the index of an array of six
		}
	}
	return PathUnknown, fmt.Errorf("%w: %q is none of the PCIe paths", ErrNotALink, word)
}

// closeness counts up from 0 (unknown) and 1 (SYS) to 5 (PIX).
func (p Path) closeness() int {
	if p == PathUnknown || p > PathSYS {
		return 0
	}
	return int(PathSYS-p) + 1
}

// Strength orders links: that of an NVLink connection is its bandwidth in MB/s (plus a constant that lifts even the slowest
// above all of PCIe), that of any other 1 (SYS) to 5 (PIX), and 0 if the path is unknown. Only the order has a meaning.
func (l Link) Strength() int {
	if l.NVLinks > 0 {
		return int(PathSYS) + 1 + max(l.NVLinkMBps, 0)
	}
	return l.PCIe.closeness()
}

// String returns what `nvidia-smi topo -m` prints for the pair: "NV18", or else the PCIe path.
func (l Link) String() string {
	if l.NVLinks > 0 {
		return "NV" + strconv.Itoa(l.NVLinks)
	}
	return l.PCIe.String()
}

// MarshalText writes the whole link in one word, since inventories hold n x n of them: "NV18@478125/NODE" is 18
// NVLinks of together 478,125 MB/s and the PCIe path NODE, "SYS" a pair without NVLink, "-" the zero Link.
func (l Link) MarshalText() ([]byte, error) {
	if l.NVLinks <= 0 {
		return []byte(l.PCIe.String()), nil
	}
	return fmt.Appendf(nil, "NV%d@%d/%s", l.NVLinks, l.NVLinkMBps, l.PCIe), nil
}

// UnmarshalText reads what MarshalText writes. Errors match ErrNotALink.
func (l *Link) UnmarshalText(text []byte) error {
	word := string(text)
	nvlink, path, joined := strings.Cut(word, "/")
	if !joined {
		p, err := ParsePath(word)
		if err != nil {
			return err
		}
		*l = Link{PCIe: p}
		return nil
	}
	p, err := ParsePath(path)
	if err != nil {
		return fmt.Errorf("link %q: %w", word, err)
	}
	count, rate, _ := strings.Cut(strings.TrimPrefix(nvlink, "NV"), "@")
	links, err := strconv.Atoi(count)
	if err != nil || links <= 0 || !strings.HasPrefix(nvlink, "NV") {
		return fmt.Errorf("%w: %q does not start with NV and a number of NVLinks", ErrNotALink, word)
	}
	mbps, err := strconv.Atoi(rate)
	if err != nil || mbps < 0 {
		return fmt.Errorf("%w: %q has no rate in MB/s after its @", ErrNotALink, word)
	}
	*l = Link{NVLinks: links, NVLinkMBps: mbps, PCIe: p}
	return nil
}
