// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fakenvml

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MakeDevices makes the device nodes nvidia0 to nvidia<n-1>, nvidiactl and nvidia-uvm under root, as /dev has them on a
// machine with n GPUs, and returns the paths of the first n. They are copies of /dev/null that anybody may open; nodes that
// are there already stay. It needs CAP_MKNOD and a file system that is not mounted with nodev.
func MakeDevices(root string, n int) ([]string, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("fakenvml: %w", err)
	}
	var gpus []string
	for i := range n {
		gpus = append(gpus, filepath.Join(root, fmt.Sprintf("nvidia%d", i)))
	}
	all := append(gpus[:n:n], filepath.Join(root, "nvidiactl"), filepath.Join(root, "nvidia-uvm"))
	for _, node := range all {
		if err := makeDevice(node); err != nil {
			return nil, fmt.Errorf("fakenvml: make device node %s: %w", node, err)
		}
	}
	return gpus, nil
}

func makeDevice(node string) error {
	err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(node, 0o666) // whatever the umask is
}
