// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

func TestSlotReservation(t *testing.T) {
	root := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(root, "nvidia-caps"), 0o755))
	for _, name := range []string{"nvidia0", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "null"} {
		must.NoError(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}
	s := slot("r1", 1, 3, 2)
	w := settledWorld(4, s)
	r, err := w.slotReservation(s, "/var/lib/muster/device/hosts/r1.1", findDeviceNodes(root, w.gpusOf(s)))
	must.NoError(t, err)

	var env []string
	for name, value := range r.Envs {
		env = append(env, name+"="+strings.ReplaceAll(value, root, "<root>"))
	}
	slices.Sort(env)
	must.Eq(t, `CUDA_DEVICE_ORDER=PCI_BUS_ID
CUDA_VISIBLE_DEVICES=GPU-3,GPU-2
MUSTER_GANG=train
MUSTER_GPUS=GPU-3,GPU-2
MUSTER_GPU_DEVICES=<root>/nvidia3,<root>/nvidia2
MUSTER_HOSTS_FILE=/var/lib/muster/device/hosts/r1.1
MUSTER_MASTER_ADDR=10.0.0.1
MUSTER_MASTER_PORT=29400
MUSTER_NODE=gpu-1
MUSTER_RANK=1
MUSTER_RESERVATION=r1
MUSTER_SIZE=2
NVIDIA_VISIBLE_DEVICES=GPU-3,GPU-2
PET_MASTER_ADDR=10.0.0.1
PET_MASTER_PORT=29400
PET_NNODES=2
PET_NODE_RANK=1
PET_NPROC_PER_NODE=2`, strings.Join(env, "\n"))

	var nodes []string
	for _, d := range r.Devices {
		nodes = append(nodes, fmt.Sprintf("%s <- %s %s", d.TaskPath, strings.ReplaceAll(d.HostPath, root, "<root>"), d.CgroupPerms))
	}
	must.Eq(t, `/dev/nvidia3 <- <root>/nvidia3 rw
/dev/nvidia2 <- <root>/nvidia2 rw
/dev/nvidiactl <- <root>/nvidiactl rw
/dev/nvidia-uvm <- <root>/nvidia-uvm rw
/dev/nvidia-caps/nvidia-cap1 <- <root>/nvidia-caps/nvidia-cap1 rw`, strings.Join(nodes, "\n"))
	must.Eq(t, []*device.Mount{{TaskPath: "/var/lib/muster/device/hosts/r1.1", HostPath: "/var/lib/muster/device/hosts/r1.1", ReadOnly: true}}, r.Mounts)
}

func TestPlainReservation(t *testing.T) {
	must.Eq(t, &device.ContainerReservation{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"}}, plainReservation(uuids(0, 1)))
}

func TestHostFiles(t *testing.T) {
	files := newHostFiles(t.TempDir())
	must.NoError(t, files.prune(table(1)), must.Sprint("no directory yet"))
	a, b := slot("r1", 0, 0), slot("r2", 1, 1)
	for _, s := range []ledger.Slot{a, b} {
		path, err := files.write(s.ID(), factsOf(s.Reservation))
		must.NoError(t, err)
		info, err := os.Stat(path)
		must.NoError(t, err)
		must.Eq(t, 0o644, info.Mode().Perm(), must.Sprint("tasks of any user read it"))
	}
	must.NoError(t, files.prune(table(2, b)))
	must.FileNotExists(t, files.path(a.ID()))
	must.FileExists(t, files.path(b.ID()))
}
