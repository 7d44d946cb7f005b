// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package fakenvml stands in for NVIDIA's libnvidia-ml.so.1, so that all of Muster, go-nvml included, runs on machines
// without a GPU. The library itself is C (lib/fakenvml.c); this package builds it, describes machines to it, changes
// them while it runs, and makes the device nodes. It decides nothing and is for tests and the demo only.
//
// # Using it
//
// The directory of the library goes into LD_LIBRARY_PATH of the process under test, or the library's path into its
// configuration. Three more variables of that process say what the library answers:
//
//	FAKENVML_MACHINE   the machine file, read at each nvmlInit; without one the driver is "not loaded"
//	FAKENVML_CONTROL   the control file, read again whenever it has changed; may be missing
//	FAKENVML_DEV_ROOT  where the device nodes nvidia0, nvidia1, ... are; /dev if unset
//
// # Machine file
//
// One item a line, written by Machine.WriteFile: "driver VERSION", "cuda NUMBER", "gpu key=value ... model=NAME" in index
// order, "link GPU LINK gpu|switch PEER MBPS VERSION" and "path GPU GPU LEVEL", where LEVEL is an
// nvmlGpuTopologyLevel_t.
//
// # Control file
//
// One item a line, written by Control: "gpu INDEX KEY VALUE" with the keys lost, lost_after_calls, mig,
// ecc_corrected, ecc_uncorrected, remap_pending, remap_failure, utilization_percent, memory_used_mib, temperature_c,
// power_mw, nvlink_rx_kib, nvlink_tx_kib and link_down; "xid SEQUENCE INDEX XID"; "init driver_not_loaded" or "init
// version_mismatch". What is not mentioned is at rest. An XID is told once to each event set that was created before it. A
// line that makes no sense is ignored.
//
// # Users of a GPU
//
// A process uses a GPU while it holds the GPU's device node open. The nodes are copies of /dev/null (character device 1:3): that
// opens everywhere and does no harm, but it is one device number for all, and Linux has no harmless family of distinct
// ones. So a node is told apart by the file that it is: an open descriptor counts if it has the device and inode number of
// nvidiaN under FAKENVML_DEV_ROOT, which a bind mount keeps. A container runtime that makes a node of its own with mknod
// (docker, exec) gives it another inode; such a descriptor counts if its name is nvidiaN, its device number is that of the node, and the
// process has the GPU's UUID in its environment, as every task with a slot has. A device cgroup cannot tell such nodes apart.
package fakenvml
