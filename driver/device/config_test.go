// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/shoenig/test/must"
)

func parseConfig(t *testing.T, text string) Config {
	t.Helper()
	var c Config
	hclutils.NewConfigParser(configSpec()).ParseHCL(t, "config {\n"+text+"\n}", &c)
	return c
}

func TestConfigDefaults(t *testing.T) {
	set, err := parseConfig(t, "").check()
	must.NoError(t, err)
	must.Eq(t, `node  region global state_dir /var/lib/muster/device dev_root /dev proc_root /proc `+
		`machine_id_file /etc/machine-id boot_id_file /proc/sys/kernel/random/boot_id nvml_library  unmanaged [] topology [] address  `+
		`fingerprint_period 5s consul_address  consul_token not given consul_token_file  nomad_address  nomad_token not given`,
		words(set.describe()))
	must.True(t, set.Enabled)
}

func words(pairs []any) string {
	texts := make([]string, 0, len(pairs))
	for _, p := range pairs {
		texts = append(texts, fmt.Sprint(p))
	}
	return strings.Join(texts, " ")
}

func TestConfigOptions(t *testing.T) {
	set, err := parseConfig(t, `
		node               = "gpu-1"
		region             = "eu"
		state_dir          = "/srv/muster"
		unmanaged          = ["GPU-7", "6"]
		topology {
			zone = "z1"
			rack = "r1"
		}
		address            = "10.0.0.1"
		fingerprint_period = "2s"
		consul {
			address = "127.0.0.1:8501"
			token   = "very-secret"
		}
		nomad {
			address = "https://127.0.0.1:4646"
			token   = "very-secret"
			ca_file = "/etc/nomad/ca.pem"
		}`).check()
	must.NoError(t, err)
	must.Eq(t, 2*time.Second, set.fingerprintPeriod)
	must.Eq(t, map[string]string{"zone": "z1", "rack": "r1"}, set.Topology)
	must.Eq(t, "/etc/nomad/ca.pem", set.Nomad.CAFile)
	described := words(set.describe())
	must.StrContains(t, described, "unmanaged [GPU-7 6] topology [rack=r1 zone=z1]")
	must.StrNotContains(t, described, "very-secret")
}

func TestConfigRefused(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"a relative path":    {`state_dir = "state"`, `state_dir = "state": give an absolute path`},
		"an empty region":    {`region = ""`, `region is empty: give the Nomad agent's region ("global" is Nomad's default)`},
		"no duration":        {`fingerprint_period = "often"`, `fingerprint_period: time: invalid duration "often"`},
		"a hectic period":    {`fingerprint_period = "1ms"`, `fingerprint_period = "1ms": give at least 100ms`},
		"an empty directory": {`dev_root = ""`, `dev_root = "": give an absolute path`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := parseConfig(t, c.text).check()
			must.EqError(t, err, c.want)
		})
	}
}
