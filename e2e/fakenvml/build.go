// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package fakenvml

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed lib/fakenvml.c
var source []byte

// LibraryName is the file name under which NVML's loader finds the library.
const LibraryName = "libnvidia-ml.so.1"

// Build compiles the library into dir, which is made if need be, and returns the library's path. It needs gcc, and
// takes about a second. Builds into one directory at the same time do not disturb one another.
func Build(ctx context.Context, dir string) (libPath string, err error) {
	return build(ctx, dir)
}

// BuildOld is Build for a library of about driver 418, which lacks MIG, memory affinity, the type of an NVLink's far end,
// row remapping, the fabric and the newer versions of calls. It tells nothing about boards either, which such a driver did.
func BuildOld(ctx context.Context, dir string) (libPath string, err error) {
	return build(ctx, dir, "-DFAKENVML_OLD")
}

func build(ctx context.Context, dir string, flags ...string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("fakenvml: %w", err)
	}
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", fmt.Errorf("fakenvml: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	input, output := filepath.Join(work, "fakenvml.c"), filepath.Join(work, LibraryName)
	if err := os.WriteFile(input, source, 0o644); err != nil {
		return "", fmt.Errorf("fakenvml: %w", err)
	}
	args := append([]string{
		"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread",
		"-Wl,-soname," + LibraryName, "-o", output, input,
	}, flags...)
	if text, err := exec.CommandContext(ctx, "gcc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("fakenvml: build %s with gcc: %w\n%s", LibraryName, err, text)
	}
	libPath := filepath.Join(dir, LibraryName)
	if err := os.Rename(output, libPath); err != nil {
		return "", fmt.Errorf("fakenvml: %w", err)
	}
	return libPath, nil
}
