// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
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
	Consul            ConsulConfig      `codec:"consul"`
	Nomad             NomadConfig       `codec:"nomad"`
}

// ConsulConfig says how to reach Consul. What is empty comes from the CONSUL_* variables, then from Consul's defaults.
type ConsulConfig struct {
	Address       string `codec:"address"`
	Token         string `codec:"token"`
	TokenFile     string `codec:"token_file"`
	Datacenter    string `codec:"datacenter"`
	CAFile        string `codec:"ca_file"`
	CertFile      string `codec:"cert_file"`
	KeyFile       string `codec:"key_file"`
	TLSServerName string `codec:"tls_server_name"`
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
		"enabled": hclspec.NewDefault(hclspec.NewAttr("enabled", "bool", false), hclspec.NewLiteral("true")),
		// Name of this node in the ledger; empty: the local Nomad agent's node name.
		"node": stringOption("node", ""),
		// The Nomad region, which is part of the ledger's keys.
		"region": stringOption("region", "global"),
		// Where the plugin keeps its last slot table and the host files of slots. Survives reboots.
		"state_dir": stringOption("state_dir", "/var/lib/muster/device"),
		// Where device nodes are.
		"dev_root": stringOption("dev_root", "/dev"),
		// Where the kernel's process information is; used to name the processes that keep a GPU busy.
		"proc_root": stringOption("proc_root", "/proc"),
		// Files that tell this machine, and this boot of it, from others.
		"machine_id_file": stringOption("machine_id_file", "/etc/machine-id"),
		"boot_id_file":    stringOption("boot_id_file", "/proc/sys/kernel/random/boot_id"),
		// Path of libnvidia-ml.so.1; empty: the loader finds it.
		"nvml_library": stringOption("nvml_library", ""),
		// GPUs that Muster leaves to ordinary jobs, by UUID or by NVML index.
		"unmanaged": hclspec.NewAttr("unmanaged", "list(string)", false),
		// This node's label at each level of the placer's topology, for example rack = "r1".
		"topology": hclspec.NewBlockAttrs("topology", "string", false),
		// Where other members reach this node; empty: the address that the Nomad agent advertises, else a private one.
		"address": stringOption("address", ""),
		// How often GPUs and their health are read; events come in between.
		"fingerprint_period": stringOption("fingerprint_period", "5s"),
		"consul": hclspec.NewBlock("consul", false, hclspec.NewObject(map[string]*hclspec.Spec{
			"address":         hclspec.NewAttr("address", "string", false),
			"token":           hclspec.NewAttr("token", "string", false),
			"token_file":      hclspec.NewAttr("token_file", "string", false),
			"datacenter":      hclspec.NewAttr("datacenter", "string", false),
			"ca_file":         hclspec.NewAttr("ca_file", "string", false),
			"cert_file":       hclspec.NewAttr("cert_file", "string", false),
			"key_file":        hclspec.NewAttr("key_file", "string", false),
			"tls_server_name": hclspec.NewAttr("tls_server_name", "string", false),
		})),
		"nomad": hclspec.NewBlock("nomad", false, hclspec.NewObject(map[string]*hclspec.Spec{
			"address":         hclspec.NewAttr("address", "string", false),
			"token":           hclspec.NewAttr("token", "string", false),
			"ca_file":         hclspec.NewAttr("ca_file", "string", false),
			"cert_file":       hclspec.NewAttr("cert_file", "string", false),
			"key_file":        hclspec.NewAttr("key_file", "string", false),
			"tls_server_name": hclspec.NewAttr("tls_server_name", "string", false),
		})),
	})
}

func stringOption(name, otherwise string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, "string", false), hclspec.NewLiteral(fmt.Sprintf("%q", otherwise)))
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
		if !filepath.IsAbs(path.value) {
			return s, fmt.Errorf("%s = %q: give an absolute path", path.name, path.value)
		}
	}
	if c.Region == "" {
		return s, errors.New(`region is empty: give the Nomad agent's region ("global" is Nomad's default)`)
	}
	var err error
	if s.fingerprintPeriod, err = duration("fingerprint_period", c.FingerprintPeriod, 100*time.Millisecond); err != nil {
		return s, err
	}
	return s, nil
}

func duration(name, text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if d < least {
		return 0, fmt.Errorf("%s = %q: give at least %s", name, text, least)
	}
	return d, nil
}

// describe lists the effective configuration for the log, in a fixed order and without secrets.
func (s settings) describe() []any {
	levels := make([]string, 0, len(s.Topology))
	for level, label := range s.Topology {
		levels = append(levels, level+"="+label)
	}
	slices.Sort(levels)
	return []any{
		"node", s.Node, "region", s.Region, "state_dir", s.StateDir, "dev_root", s.DevRoot, "proc_root", s.ProcRoot,
		"machine_id_file", s.MachineIDFile, "boot_id_file", s.BootIDFile, "nvml_library", s.NVMLLibrary,
		"unmanaged", s.Unmanaged, "topology", levels, "address", s.Address,
		"fingerprint_period", s.fingerprintPeriod.String(),
		"consul_address", s.Consul.Address, "consul_token", given(s.Consul.Token), "consul_token_file", s.Consul.TokenFile,
		"nomad_address", s.Nomad.Address, "nomad_token", given(s.Nomad.Token),
	}
}

func given(secret string) string {
	if secret == "" {
		return "not given"
	}
	return "given"
}
