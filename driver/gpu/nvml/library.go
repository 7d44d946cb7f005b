// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package nvml turns what NVIDIA's management library says into the plain values of package gpu: GPUs and their links, health,
// statistics, processes and XID events. It decides nothing about who gets a GPU. It is the only package with cgo; the
// device plugin, the task driver and `muster topo` may import it.
package nvml

import (
	"errors"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/driver/gpu"
)

// Why NVML or a GPU cannot be used; errors come wrapped with what to do.
var (
	ErrLibraryMissing  = errors.New("NVML library missing")
	ErrDriverNotLoaded = errors.New("NVIDIA driver not loaded")
	ErrVersionMismatch = errors.New("NVML library and NVIDIA driver differ in version")
	ErrGPULost         = errors.New("GPU is lost")
	ErrUnknownGPU      = errors.New("NVML knows no such GPU")
	ErrNoEvents        = errors.New("no GPU reports XID events")
)

// defaultName is the name by which NVML's own loader finds the library.
const defaultName = "libnvidia-ml.so.1"

// needed are calls that every usable NVML has; the others are looked up before they are made, because calling what
// the library lacks would end the process.
var needed = [...]string{ //nolint:gochecknoglobals // a constant of a type that has none
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
	"nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses",
	"nvmlDeviceGetGraphicsRunningProcesses",
}

// Library is NVML, opened and initialized. A process should have one at a time: go-nvml keeps the functions of the first
// library that it has loaded. Its methods are safe for several goroutines, except that nothing may be called
// during or after Shutdown.
type Library struct {
	api nvml.Interface

	mu       sync.Mutex // protects what follows
	machine  gpu.Machine
	returned map[string]bool // GPUs that were lost at the last discovery
	xids     map[string]xidRecord
}

// xidRecord is what the XID events of one GPU have left.
type xidRecord struct {
	count, last uint64
	unfit       uint64 // the first XID that made it unfit; 0: none
}

// Open loads NVML and initializes it. An empty path means NVML's usual name, found by the system's loader. Errors
// match ErrLibraryMissing, ErrDriverNotLoaded or ErrVersionMismatch where one of them is the reason; Open may be tried
// again later.
func Open(path string) (*Library, error) {
	if path == "" {
		path = defaultName
	}
	if err := probe(path); err != nil {
		return nil, err
	}
	l := &Library{
		api:      nvml.New(nvml.WithLibraryPath(path)),
		returned: map[string]bool{},
		xids:     map[string]xidRecord{},
	}
	switch ret := l.api.Init(); ret {
	case nvml.SUCCESS:
		return l, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: %s went away while it was opened", ErrLibraryMissing, path)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("%w: %s is there, but the kernel module is not; load it (modprobe nvidia)", ErrDriverNotLoaded, path)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return nil, fmt.Errorf("%w: the driver was updated while its old kernel module stayed loaded; reboot, or unload and load the module", ErrVersionMismatch)
	default:
		return nil, fmt.Errorf("initialize NVML from %s: %w", path, ret)
	}
}

// probe loads the library once, for the loader's reason and because go-nvml trusts that the library has what it calls.
func probe(path string) error {
	lib := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := lib.Open(); err != nil {
		return fmt.Errorf("%w: %w; install the NVIDIA driver, or make its library visible here", ErrLibraryMissing, err)
	}
	defer func() { _ = lib.Close() }()
	for _, symbol := range needed {
		if err := lib.Lookup(symbol); err != nil {
			return fmt.Errorf("%w: %s is not NVML, or too old: it lacks %s", ErrLibraryMissing, path, symbol)
		}
	}
	return nil
}

// Shutdown ends the use of NVML. Watch must have returned.
func (l *Library) Shutdown() error {
	if ret := l.api.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("shut NVML down: %w", ret)
	}
	return nil
}

// has says whether the library has a call that older ones lack.
func (l *Library) has(symbol string) bool {
	return l.api.Extensions().LookupSymbol(symbol) == nil
}

// isLost says whether NVML's answer means that the GPU is not there any more or does not work until it is reset.
func isLost(ret nvml.Return) bool {
	return ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_GPU_NOT_FOUND || ret == nvml.ERROR_RESET_REQUIRED
}

// device finds a GPU by its UUID. Errors match ErrGPULost or ErrUnknownGPU where one of them is the reason.
func (l *Library) device(uuid string) (nvml.Device, error) {
	device, ret := l.api.DeviceGetHandleByUUID(uuid)
	switch {
	case ret == nvml.SUCCESS:
		return device, nil
	case isLost(ret):
		return nil, fmt.Errorf("%w: %s", ErrGPULost, uuid)
	case ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT:
		return nil, fmt.Errorf("%w: %s", ErrUnknownGPU, uuid)
	}
	return nil, fmt.Errorf("find GPU %s: %w", uuid, ret)
}
