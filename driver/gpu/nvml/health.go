// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/driver/gpu"
)

// troubles asks for the facts that make a GPU unfit until it is reset or mended.
func (l *Library) troubles(d nvml.Device) ([]string, error) {
	var troubles []string
	for _, question := range []func(nvml.Device) (string, error){l.remapTrouble, l.eccTrouble, l.fabricTrouble} {
		trouble, err := question(d)
		if err != nil {
			return nil, err
		}
		if trouble != "" {
			troubles = append(troubles, trouble)
		}
	}
	return troubles, nil
}

func (l *Library) remapTrouble(d nvml.Device) (string, error) {
	if !l.has("nvmlDeviceGetRemappedRows") {
		return "", nil
	}
	_, _, pending, failed, ret := d.GetRemappedRows()
	switch {
	case ret != nvml.SUCCESS:
		return "", lostOnly(ret)
	case failed:
		return "a faulty memory row could not be replaced; the GPU needs service", nil
	case pending:
		return "a faulty memory row waits to be replaced; reset the GPU", nil
	}
	return "", nil
}

func (l *Library) eccTrouble(d nvml.Device) (string, error) {
	count, err := l.eccErrors(d, nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	if err != nil || count == nil || *count == 0 {
		return "", err
	}
	return fmt.Sprintf("%d uncorrectable memory errors since the driver was loaded or the GPU reset; reset the GPU", *count), nil
}

// eccErrors returns the volatile counter, or nil for GPUs without ECC.
func (l *Library) eccErrors(d nvml.Device, kind nvml.MemoryErrorType) (*uint64, error) {
	if !l.has("nvmlDeviceGetTotalEccErrors") {
		return nil, nil
	}
	count, ret := d.GetTotalEccErrors(kind, nvml.VOLATILE_ECC)
	if ret != nvml.SUCCESS {
		return nil, lostOnly(ret)
	}
	return &count, nil
}

func (l *Library) fabricTrouble(d nvml.Device) (string, error) {
	info, err := l.fabric(d)
	switch {
	case err != nil:
		return "", err
	case info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return "it has not joined its NVSwitch fabric; see whether nvidia-fabricmanager runs", nil
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(info.Status) != nvml.SUCCESS: //nolint:gosec // G115: an nvmlReturn_t
		return fmt.Sprintf("it could not join its NVSwitch fabric (NVML's status %d); see the log of nvidia-fabricmanager", info.Status), nil //nolint:nilerr // a state of the GPU, not an error
	}
	return "", nil
}

// fabric returns the zero info where fabrics are not supported.
func (l *Library) fabric(d nvml.Device) (nvml.GpuFabricInfo_v2, error) {
	if !l.has("nvmlDeviceGetGpuFabricInfoV") {
		return nvml.GpuFabricInfo_v2{}, nil
	}
	info, ret := d.GetGpuFabricInfoV().V2()
	if ret != nvml.SUCCESS {
		return nvml.GpuFabricInfo_v2{}, lostOnly(ret)
	}
	return info, nil
}

// joinedFabric returns the multi-node fabric that a GPU has joined, or nil. A fabric without a cluster UUID is that of a
// single machine.
func joinedFabric(info nvml.GpuFabricInfo_v2) *gpu.Fabric {
	joined := info.State == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(info.Status) == nvml.SUCCESS //nolint:gosec // G115: as above
	if !joined || info.ClusterUuid == [len(info.ClusterUuid)]uint8{} {
		return nil
	}
	h := hex.EncodeToString(info.ClusterUuid[:])
	return &gpu.Fabric{
		ClusterUUID: strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-"),
		Clique:      info.CliqueId,
	}
}

// judge turns the facts and the XIDs of a GPU that answers into its health. It needs mu.
func (l *Library) judge(uuid string, troubles []string) gpu.Health {
	if xid := l.xids[uuid].unfit; xid != 0 {
		meaning, _ := gpu.XIDMeaning(xid)
		troubles = append(troubles, fmt.Sprintf("XID %d: %s", xid, meaning))
	}
	if len(troubles) == 0 {
		return gpu.Health{State: gpu.Healthy}
	}
	return gpu.Health{State: gpu.Unhealthy, Reason: strings.Join(troubles, "; ")}
}
