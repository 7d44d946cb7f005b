// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-muster/muster/driver/pluginconf"
)

// Config is the plugin's block in the Nomad agent's configuration, as Nomad hands it over.
type Config struct {
	Enabled           bool              `codec:"enabled"`
	Node              string            `codec:"node"`
	Region            string            `codec:"region"`
	StateDir          string            `codec:"state_dir"`
	DevRoot           string            `codec:"dev_root"`
	ProcRoot          string            `codec:"proc_root"`
	MachineIDFile     string            `codec:"machine_id_file"`
	BootIDFile        string            `codec:"boot_id_file"`
	NVMLLibrary       string            `codec:"nvml_library"`
	Unmanaged         []string          `codec:"unmanaged"`
	Topology          map[string]string `codec:"topology"`
	Address           string            `codec:"address"`
	FingerprintPeriod string            `codec:"fingerprint_period"`
	Consul            pluginconf.Consul `codec:"consul"`
	Nomad             NomadConfig       `codec:"nomad"`
}

// NomadConfig says how to reach the local Nomad agent. What is empty comes from the NOMAD_* variables, then from Nomad's
// defaults.
type NomadConfig struct {
	Address       string `codec:"address"`
	Token         string `codec:"token"`
	CAFile        string `codec:"ca_file"`
	CertFile      string `codec:"cert_file"`
	KeyFile       string `codec:"key_file"`
	TLSServerName string `codec:"tls_server_name"`
}

// configSpec is what Nomad checks the block against. Every option has a default.
func configSpec() *hclspec.Spec {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		// Offer and publish this node's GPUs at all.
		"enabled": pluginconf.Enabled(),
		// Name of this node in the ledger; empty: the local Nomad agent's node name.
		"node": pluginconf.String("node", ""),
		// The Nomad region, which is part of the ledger's keys.
		"region": pluginconf.String("region", "global"),
		// Where the plugin keeps its last slot table and the host files of slots. Survives reboots.
		"state_dir": pluginconf.String("state_dir", "/var/lib/muster/device"),
		// Where device nodes are.
		"dev_root": pluginconf.String("dev_root", "/dev"),
		// Where the kernel's process information is; used to name the processes that keep a GPU busy.
		"proc_root": pluginconf.String("proc_root", "/proc"),
		// Files that tell this machine, and this boot of it, from others.
		"machine_id_file": pluginconf.String("machine_id_file", "/etc/machine-id"),
		"boot_id_file":    pluginconf.String("boot_id_file", "/proc/sys/kernel/random/boot_id"),
		// Path of libnvidia-ml.so.1; empty: the loader finds it.
		"nvml_library": pluginconf.String("nvml_library", ""),
		// GPUs that Muster leaves to ordinary jobs, by UUID or by NVML index.
		"unmanaged": hclspec.NewAttr("unmanaged", "list(string)", false),
		// This node's label at each level of the placer's topology, for example rack = "r1".
		"topology": hclspec.NewBlockAttrs("topology", "string", false),
		// Where other members reach this node; empty: the address that the Nomad agent advertises, else a private one.
		"address": pluginconf.String("address", ""),
		// How often GPUs and their health are read; events come in between.
		"fingerprint_period": pluginconf.String("fingerprint_period", "5s"),
		"consul":             pluginconf.ConsulBlock(),
		"nomad":              pluginconf.Strings("nomad", "address", "token", "ca_file", "cert_file", "key_file", "tls_server_name"),
	})
}

// settings are a checked Config.
type settings struct {
	Config
	fingerprintPeriod time.Duration
}

// check reads the durations and refuses what can't work, naming the option.
func (c Config) check() (settings, error) {
	s := settings{Config: c}
	for _, path := range []struct{ name, value string }{
		{"state_dir", c.StateDir},
		{"dev_root", c.DevRoot},
		{"proc_root", c.ProcRoot},
		{"machine_id_file", c.MachineIDFile},
		{"boot_id_file", c.BootIDFile},
	} {
		if err := pluginconf.Path(path.name, path.value); err != nil {
			return s, err
		}
	}
	if err := pluginconf.Region(c.Region); err != nil {
		return s, err
	}
	var err error
	if s.fingerprintPeriod, err = pluginconf.Duration("fingerprint_period", c.FingerprintPeriod, 100*time.Millisecond); err != nil {
		return s, err
	}
	return s, nil
}

// describe lists the effective configuration for the log, in a fixed order and without secrets.
func (s settings) describe() []any {
	levels := make([]string, 0, len(s.Topology))
	for level, label := range s.Topology {
		levels = append(levels, level+"="+label)
	}
	slices.Sort(levels)
	return slices.Concat([]any{
		"node", s.Node, "region", s.Region, "state_dir", s.StateDir, "dev_root", s.DevRoot, "proc_root", s.ProcRoot,
		"machine_id_file", s.MachineIDFile, "boot_id_file", s.BootIDFile, "nvml_library", s.NVMLLibrary,
		"unmanaged", s.Unmanaged, "topology", levels, "address", s.Address,
		"fingerprint_period", s.fingerprintPeriod.String(),
	}, s.Consul.Describe(), []any{"nomad_address", s.Nomad.Address, "nomad_token", pluginconf.Given(s.Nomad.Token)})
}
