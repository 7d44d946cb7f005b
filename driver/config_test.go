// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
)

func TestConfigDefaults(t *testing.T) {
	var config Config
	hclutils.NewConfigParser(configSpec()).ParseHCL(t, `config {}`, &config)
	settings, err := config.check()
	must.NoError(t, err)
	must.True(t, settings.Enabled)
	must.Eq(t, "nobody", settings.DefaultUser)
	must.Eq(t, "/var/lib/muster/driver", settings.StateDir)
	must.Eq(t, 30*time.Second, settings.termGrace)
	must.SliceContains(t, settings.DeviceNodes, "/dev/infiniband/*")
}

func TestConfig(t *testing.T) {
	var config Config
	hclutils.NewConfigParser(configSpec()).ParseHCL(t, `config {
		enabled      = false
		region       = "eu"
		term_grace   = "1m"
		device_nodes = []
		consul {
			address = "127.0.0.1:8501"
			token   = "secret"
		}
	}`, &config)
	settings, err := config.check()
	must.NoError(t, err)
	must.False(t, settings.Enabled)
	must.Eq(t, "eu", settings.Region)
	must.Eq(t, "secret", settings.Consul.Token)
	must.SliceEmpty(t, settings.DeviceNodes)
	for _, shown := range settings.describe() {
		must.NotEq[any](t, "secret", shown)
	}
	for name, wrong := range map[string]Config{
		"relative state_dir": {Region: "r", StateDir: "x", DevRoot: "/dev", BootIDFile: "/b", TermGrace: "1s"},
		"no region":          {StateDir: "/x", DevRoot: "/dev", BootIDFile: "/b", TermGrace: "1s"},
		"term_grace":         {Region: "r", StateDir: "/x", DevRoot: "/dev", BootIDFile: "/b", TermGrace: "soon"},
		"device_nodes":       {Region: "r", StateDir: "/x", DevRoot: "/dev", BootIDFile: "/b", TermGrace: "1s", DeviceNodes: []string{"["}},
	} {
		_, err := wrong.check()
		must.Error(t, err, must.Sprint(name))
	}
}

func TestTaskConfig(t *testing.T) {
	allow := must.Cmp(cmp.AllowUnexported(checkpointSettings{}))
	cases := map[string]struct {
		hcl  string
		want func(t *testing.T, s taskSettings)
		err  string
	}{
		"the least": {
			hcl: `command = "torchrun"`,
			want: func(t *testing.T, s taskSettings) {
				t.Helper()
				must.Eq(t, 15*time.Minute, s.barrierTimeout)
				must.Eq(t, "/alloc/train", s.WorkDir)
				must.Nil(t, s.checkpoint)
			},
		},
		"everything": {
			hcl: `
				command = "torchrun"
				args    = ["train.py"]
				work_dir = "local"
				barrier_timeout = "20m"
				checkpoint {
					interval = "15m"
					signal   = "usr2"
					timeout  = "5m"
					path     = "/mnt/ckpt"
				}`,
			want: func(t *testing.T, s taskSettings) {
				t.Helper()
				must.Eq(t, []string{"train.py"}, s.Args)
				must.Eq(t, "/alloc/train/local", s.WorkDir)
				must.Eq(t, checkpointSettings{interval: 15 * time.Minute, signal: syscall.SIGUSR2, timeout: 5 * time.Minute, path: "/mnt/ckpt"}, *s.checkpoint, allow)
			},
		},
		"a checkpoint block's defaults": {
			hcl: `
				command = "torchrun"
				checkpoint { path = "ckpt" }`,
			want: func(t *testing.T, s taskSettings) {
				t.Helper()
				must.Eq(t, checkpointSettings{signal: syscall.SIGUSR1, timeout: 2 * time.Minute, path: "/alloc/train/ckpt"}, *s.checkpoint, allow)
			},
		},
		"an empty command":           {hcl: `command = " "`, err: "command is empty"},
		"no duration":                {hcl: `command = "x"` + "\n" + `barrier_timeout = "soon"`, err: "barrier_timeout"},
		"a signal that is none":      {hcl: `command = "x"` + "\n" + `checkpoint { signal = "SIGFOO" }`, err: `"SIGFOO" is not a signal`},
		"a signal nobody can catch":  {hcl: `command = "x"` + "\n" + `checkpoint { signal = "SIGKILL" }`, err: "no process can catch"},
		"the automatic interval":     {hcl: `command = "x"` + "\n" + `checkpoint { interval = "auto" }`, err: "not supported by this version"},
		"an interval under a second": {hcl: `command = "x"` + "\n" + `checkpoint { interval = "1ms" }`, err: "at least 1s"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var config TaskConfig
			hclutils.NewConfigParser(taskConfigSpec()).ParseHCL(t, "config {\n"+c.hcl+"\n}", &config)
			settings, err := config.check("/alloc/train")
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				return
			}
			must.NoError(t, err)
			c.want(t, settings)
		})
	}
}

func TestFingerprint(t *testing.T) {
	m, _, _ := machine{}.Discover()
	f := fingerprint(m, "gpu-1")
	must.Eq(t, drivers.HealthStateHealthy, f.Health)
	got := map[string]string{}
	for key, value := range f.Attributes {
		got[key] = fmt.Sprintf("%#v", value)
	}
	for key, want := range map[string]string{
		"driver.muster": "true", "muster.node": "gpu-1", "driver.muster.gpu.count": "2", "driver.muster.gpu.model": "H100",
		"driver.muster.nvlink.islands": "2", "driver.muster.nvidia.version": "570.1", "driver.muster.cuda.version": "12.8",
	} {
		must.StrContains(t, got[key], want, must.Sprint(key))
	}
	must.True(t, sameFingerprint(f, fingerprint(m, "gpu-1")))
	must.False(t, sameFingerprint(f, fingerprint(m, "")))
	none := fingerprint(gpu.Machine{}, "gpu-1")
	must.Eq(t, drivers.HealthStateUndetected, none.Health)
	must.MapEmpty(t, none.Attributes)
}

func TestFingerprintWithoutNVML(t *testing.T) {
	w := newWorld(t, 1)
	c := w.client(0)
	c.plugin.deps.Hardware = func(string) (Hardware, error) { return nil, errors.New("libnvidia-ml.so.1 is missing") }
	prints, err := c.Fingerprint(t.Context())
	must.NoError(t, err)
	first := <-prints
	must.Eq(t, drivers.HealthStateUndetected, first.Health)
	must.StrContains(t, first.HealthDescription, "libnvidia-ml.so.1 is missing")
}

func TestPlanEnding(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	order := func(after time.Duration, signal syscall.Signal) *stopOrder {
		return &stopOrder{until: now.Add(after), signal: signal}
	}
	cases := map[string]struct {
		checkpoint, grace time.Duration
		order             *stopOrder
		askUntil          time.Duration // 0: not asked
		killAfterSignal   time.Duration // from now, if the signal is sent now
		signal            syscall.Signal
	}{
		"a dead gang":                     {grace: 30 * time.Second, killAfterSignal: 30 * time.Second, signal: syscall.SIGTERM},
		"a closing slot":                  {checkpoint: 2 * time.Minute, grace: 30 * time.Second, askUntil: 2 * time.Minute, killAfterSignal: 30 * time.Second, signal: syscall.SIGTERM},
		"a stop, much time":               {checkpoint: 20 * time.Second, grace: 30 * time.Second, order: order(2*time.Minute, 0), askUntil: 20 * time.Second, killAfterSignal: 2 * time.Minute, signal: syscall.SIGTERM},
		"a stop, no time for the timeout": {checkpoint: 2 * time.Minute, grace: 30 * time.Second, order: order(time.Minute, syscall.SIGINT), askUntil: 50 * time.Second, killAfterSignal: time.Minute, signal: syscall.SIGINT},
		"a stop, Nomad's default of 5s":   {checkpoint: 2 * time.Minute, grace: 30 * time.Second, order: order(5*time.Second, 0), askUntil: 3750 * time.Millisecond, killAfterSignal: 5 * time.Second, signal: syscall.SIGTERM},
		"a stop without a checkpoint":     {grace: 30 * time.Second, order: order(5*time.Second, 0), killAfterSignal: 5 * time.Second, signal: syscall.SIGTERM},
		"a stop that is over already":     {checkpoint: time.Minute, grace: 30 * time.Second, order: order(-time.Second, 0), askUntil: -time.Second, killAfterSignal: -time.Second, signal: syscall.SIGTERM},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			plan := planEnding(now, c.checkpoint, c.grace, c.order)
			if c.askUntil == 0 {
				must.True(t, plan.checkpointUntil.IsZero())
			} else {
				must.Eq(t, now.Add(c.askUntil), plan.due())
			}
			plan = plan.signalled(now)
			must.Eq(t, now.Add(c.killAfterSignal).Unix(), plan.due().Unix())
			must.Eq(t, c.signal, plan.signal)
		})
	}
}

func TestTightenAnEnding(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	plan := planEnding(now, 2*time.Minute, 30*time.Second, nil)
	plan = plan.tighten(now.Add(time.Minute), stopOrder{until: now.Add(80 * time.Second)})
	must.Eq(t, now.Add(75*time.Second), plan.due())
	plan = plan.signalled(now.Add(75 * time.Second))
	must.Eq(t, now.Add(80*time.Second), plan.due())
	plan = plan.tighten(now.Add(76*time.Second), stopOrder{until: now.Add(77 * time.Second)})
	must.Eq(t, now.Add(77*time.Second), plan.due())
	later := plan.tighten(now.Add(76*time.Second), stopOrder{until: now.Add(time.Hour)})
	must.Eq(t, now.Add(77*time.Second), later.due())
}
