// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// busybox is the static program of which test images consist (Debian's busybox-static).
const busybox = "/bin/busybox"

// CheckDocker says why this machine can't run a Docker daemon for tests.
func CheckDocker() error {
	for _, program := range []string{"dockerd", "docker"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("no %s on this machine: install docker.io", program)
		}
	}
	if _, err := os.Stat(busybox); err != nil {
		return fmt.Errorf("no %s for an image: install busybox-static", busybox)
	}
	return nil
}

// startDocker starts a Docker daemon of the cluster's own, with its own data, and waits until it answers. Where the
// overlay driver does not work, the one that copies does.
func (c *Cluster) startDocker(ctx context.Context) error {
	if !c.config.Docker {
		return nil
	}
	var err error
	for _, storage := range []string{"overlay2", "vfs"} {
		if err = c.tryDocker(ctx, storage); err == nil {
			return nil
		}
	}
	return err
}

func (c *Cluster) tryDocker(ctx context.Context, storage string) error {
	dir := filepath.Join(c.Dir(), "docker-"+storage)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("folder of the Docker daemon: %w", err)
	}
	address := "unix://" + filepath.Join(dir, "socket")
	daemon := c.newProcess("docker-"+storage, "dockerd", []string{
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
		"--host", address, "--storage-driver", storage, "--cgroup-parent", "/" + string(c.Mark) + "-docker",
		"--add-runtime", "nvidia=/usr/sbin/runc", "--bridge", "none", "--iptables=false", "--ip6tables=false",
	}, nil)
	if err := daemon.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := Poll(ctx, "the Docker daemon with storage driver "+storage, readyWithin, func(ctx context.Context) (bool, string) {
		output, err := exec.CommandContext(ctx, "docker", "--host", address, "version").CombinedOutput()
		if !daemon.Running() {
			cancel() // this machine can't have this storage driver
		}
		return err == nil, string(output)
	})
	if err != nil {
		c.drop(daemon)
		return errors.Join(err, daemon.Kill(syscall.SIGKILL))
	}
	c.dockerAddr = address
	return nil
}

// ImportImage makes an image of nothing but busybox and the files given by their path in the image, as `docker import`
// does from an archive. No registry is asked.
func (c *Cluster) ImportImage(ctx context.Context, name string, files map[string]string) error {
	all := map[string]string{"bin/busybox": busybox}
	for path, file := range files {
		all[path] = file
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for path, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("file of image %s: %w", name, err)
		}
		header := &tar.Header{Name: path, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			return fmt.Errorf("archive of image %s: %w", name, err)
		}
		if _, err := w.Write(text); err != nil {
			return fmt.Errorf("archive of image %s: %w", name, err)
		}
	}
	for _, link := range []string{"sh", "sleep", "env", "ls", "cat", "date", "echo"} {
		header := &tar.Header{Name: "bin/" + link, Linkname: "busybox", Mode: 0o777, Typeflag: tar.TypeSymlink}
		if err := w.WriteHeader(header); err != nil {
			return fmt.Errorf("archive of image %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("archive of image %s: %w", name, err)
	}
	cmd := exec.CommandContext(ctx, "docker", "--host", c.dockerAddr, "import", "-", name)
	cmd.Stdin = &archive
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("importing image %s: %w\n%s", name, err, output)
	}
	return nil
}
