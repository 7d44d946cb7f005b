// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/pluginconf"
)

// Config is the plugin's block in the Nomad agent's configuration, as Nomad hands it over.
type Config struct {
	Enabled      bool              `codec:"enabled"`
	Node         string            `codec:"node"`
	Region       string            `codec:"region"`
	StateDir     string            `codec:"state_dir"`
	DevRoot      string            `codec:"dev_root"`
	BootIDFile   string            `codec:"boot_id_file"`
	NVMLLibrary  string            `codec:"nvml_library"`
	DefaultUser  string            `codec:"default_user"`
	CgroupParent string            `codec:"cgroup_parent"`
	DeviceNodes  []string          `codec:"device_nodes"`
	TermGrace    string            `codec:"term_grace"`
	Consul       pluginconf.Consul `codec:"consul"`
}

// configSpec is what Nomad checks the block against. Every option has a default.
func configSpec() *hclspec.Spec {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		// Run tasks at all.
		"enabled": pluginconf.Enabled(),
		// Name of this node in the ledger, for the attribute muster.node; empty: what the device plugin gave the last task.
		"node": pluginconf.String("node", ""),
		// The Nomad region, which is part of the ledger's keys.
		"region": pluginconf.String("region", "global"),
		// Where tasks have their supervisors' files. Must survive a restart of the agent.
		"state_dir": pluginconf.String("state_dir", "/var/lib/muster/driver"),
		// Where device nodes are.
		"dev_root": pluginconf.String("dev_root", "/dev"),
		// The file that tells this boot of the machine from others; the same as the device plugin's.
		"boot_id_file": pluginconf.String("boot_id_file", "/proc/sys/kernel/random/boot_id"),
		// Path of libnvidia-ml.so.1; empty: the loader finds it.
		"nvml_library": pluginconf.String("nvml_library", ""),
		// Who a task runs as that names no user.
		"default_user": pluginconf.String("default_user", "nobody"),
		// Cgroup that holds those of the tasks.
		"cgroup_parent": pluginconf.String("cgroup_parent", "muster"),
		// Device nodes that tasks may open beside the standard ones and their own GPUs', as patterns.
		"device_nodes": hclspec.NewDefault(hclspec.NewAttr("device_nodes", "list(string)", false),
			hclspec.NewLiteral(`["/dev/infiniband/*", "/dev/gdrdrv", "/dev/nvidia-caps-imex-channels/*", "/dev/fuse"]`)),
		// How long a task has between SIGTERM and SIGKILL when the driver ends it by itself: its slot closes, or its gang
		// has failed. When Nomad stops a task, its kill_timeout holds, which the agent cuts to max_kill_timeout (default
		// 30 s): raise that for checkpoints that take longer.
		"term_grace": pluginconf.String("term_grace", "30s"),
		"consul":     pluginconf.ConsulBlock(),
	})
}

// settings are a checked Config.
type settings struct {
	Config
	termGrace time.Duration
}

// check reads the durations and refuses what can't work, naming the option.
func (c Config) check() (settings, error) {
	s := settings{Config: c}
	for _, path := range []struct{ name, value string }{
		{"state_dir", c.StateDir}, {"dev_root", c.DevRoot}, {"boot_id_file", c.BootIDFile},
	} {
		if err := pluginconf.Path(path.name, path.value); err != nil {
			return s, err
		}
	}
	if err := pluginconf.Region(c.Region); err != nil {
		return s, err
	}
	for _, pattern := range c.DeviceNodes {
		if _, err := filepath.Match(pattern, ""); err != nil {
			return s, fmt.Errorf("device_nodes: %q: %w", pattern, err)
		}
	}
	var err error
	s.termGrace, err = pluginconf.Duration("term_grace", c.TermGrace, 0)
	return s, err
}

// describe lists the effective configuration for the log, in a fixed order and without secrets.
func (s settings) describe() []any {
	return append([]any{
		"node", s.Node, "region", s.Region, "state_dir", s.StateDir, "dev_root", s.DevRoot, "boot_id_file", s.BootIDFile,
		"nvml_library", s.NVMLLibrary, "default_user", s.DefaultUser, "cgroup_parent", s.CgroupParent,
		"device_nodes", s.DeviceNodes, "term_grace", s.termGrace.String(),
	}, s.Consul.Describe()...)
}

// TaskConfig is a task's config block, as Nomad hands it over.
type TaskConfig struct {
	Command        string            `codec:"command"`
	Args           []string          `codec:"args"`
	WorkDir        string            `codec:"work_dir"`
	BarrierTimeout string            `codec:"barrier_timeout"`
	Checkpoint     *CheckpointConfig `codec:"checkpoint"`
}

// CheckpointConfig is a task's checkpoint block.
type CheckpointConfig struct {
	Interval string `codec:"interval"`
	Signal   string `codec:"signal"`
	Timeout  string `codec:"timeout"`
	Path     string `codec:"path"`
}

// taskConfigSpec is what Nomad checks a task's config block against.
func taskConfigSpec() *hclspec.Spec {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		// The program: a path, absolute or below the task's directory, or a name in the task's PATH.
		"command": hclspec.NewAttr("command", "string", true),
		"args":    hclspec.NewAttr("args", "list(string)", false),
		// Working directory; relative ones are below the task's directory, which is the default.
		"work_dir": hclspec.NewAttr("work_dir", "string", false),
		// How long the task waits from its start until all members of its gang have arrived.
		"barrier_timeout": pluginconf.String("barrier_timeout", "15m"),
		"checkpoint": hclspec.NewBlock("checkpoint", false, hclspec.NewObject(map[string]*hclspec.Spec{
			// How often the task is asked to checkpoint, from its start on; empty: only before it is ended.
			"interval": hclspec.NewAttr("interval", "string", false),
			// The signal that asks it.
			"signal": pluginconf.String("signal", "SIGUSR1"),
			// How long a checkpoint may take.
			"timeout": pluginconf.String("timeout", "2m"),
			// Where checkpoints appear; empty: nobody can see whether one is finished, and an end waits the whole timeout.
			"path": hclspec.NewAttr("path", "string", false),
		})),
	})
}

// taskSettings are a checked TaskConfig.
type taskSettings struct {
	TaskConfig
	barrierTimeout time.Duration
	checkpoint     *checkpointSettings // nil: the task is never asked
}

type checkpointSettings struct {
	interval time.Duration // 0: only before the end
	signal   syscall.Signal
	timeout  time.Duration
	path     string
}

// check refuses what can't work, naming the option. base is where relative paths start.
func (c TaskConfig) check(base string) (taskSettings, error) {
	s := taskSettings{TaskConfig: c}
	if strings.TrimSpace(c.Command) == "" {
		return s, errors.New("command is empty: name the program to run")
	}
	s.WorkDir = below(base, c.WorkDir)
	var err error
	if s.barrierTimeout, err = pluginconf.Duration("barrier_timeout", c.BarrierTimeout, time.Second); err != nil {
		return s, err
	}
	if c.Checkpoint != nil {
		s.checkpoint, err = c.Checkpoint.check(base)
	}
	return s, err
}

func (c CheckpointConfig) check(base string) (*checkpointSettings, error) {
	s := &checkpointSettings{path: c.Path}
	if c.Path != "" {
		s.path = below(base, c.Path)
	}
	var err error
	switch c.Interval {
	case "":
	case "auto":
		return nil, errors.New(`checkpoint: interval = "auto" is not supported by this version: give a duration such as "15m"`)
	default:
		if s.interval, err = pluginconf.Duration("checkpoint: interval", c.Interval, time.Second); err != nil {
			return nil, err
		}
	}
	if s.timeout, err = pluginconf.Duration("checkpoint: timeout", c.Timeout, time.Second); err != nil {
		return nil, err
	}
	s.signal, err = parseSignal(c.Signal)
	if err == nil && (s.signal == syscall.SIGKILL || s.signal == syscall.SIGSTOP) {
		err = fmt.Errorf("no process can catch %s", c.Signal)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: signal: %w", err)
	}
	return s, nil
}

func below(base, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(base, path)
}

// parseSignal reads a signal's name, with or without SIG, in any case.
func parseSignal(name string) (syscall.Signal, error) {
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if signal := unix.SignalNum(full); signal != 0 {
		return signal, nil
	}
	return 0, fmt.Errorf("%q is not a signal", name)
}
