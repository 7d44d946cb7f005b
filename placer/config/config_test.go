// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/shoenig/test/must"
)

const example = "placer.example.hcl"

func TestExampleNamesEveryOption(t *testing.T) {
	file, diags := hclparse.NewParser().ParseHCLFile(example)
	must.False(t, diags.HasErrors(), must.Sprint(diags))
	body, isNative := file.Body.(*hclsyntax.Body)
	must.True(t, isNative)
	named := map[string]hclsyntax.Attributes{"": body.Attributes}
	for _, block := range body.Blocks {
		named[block.Type] = block.Body.Attributes
	}
	var c Config
	for _, o := range c.options() {
		must.NotNil(t, named[o.block][o.name], must.Sprintf("option %s of block %q is missing", o.name, o.block))
	}
}

func TestExampleHoldsTheDefaults(t *testing.T) {
	text, err := os.ReadFile(example)
	must.NoError(t, err)
	got, err := Parse(example, text, Default("placer-1"))
	must.NoError(t, err)

	want := Default("placer-1")
	want.Topology.Levels = []string{"zone", "rack"}
	want.Consul.Token, want.Nomad.Token = got.Consul.Token, got.Nomad.Token
	want.Consul.TLS = TLS{"/etc/muster/consul-ca.pem", "/etc/muster/consul-cert.pem", "/etc/muster/consul-key.pem", "consul.example.com"}
	want.Nomad.TLS = TLS{"/etc/muster/nomad-ca.pem", "/etc/muster/nomad-cert.pem", "/etc/muster/nomad-key.pem", "nomad.example.com"}
	must.Eq(t, want, got)
}

func TestFaultsNameTheLineAndTheMend(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"a duration without unit": {
			"region = \"eu\"\nfence_time = 120\n",
			`p.hcl:2: fence_time: this is no duration; write a number with its unit in quotes, such as "90s"`,
		},
		"a duration that is none": {
			`tick = "soon"`,
			`p.hcl:1: tick: "soon" is no duration; write a number with its unit, such as "90s" or "15m"`,
		},
		"a duration out of range": {
			`placement_deadline = "5s"`,
			`p.hcl:1: placement_deadline: 5s is out of range; write a duration from 20s to 1h0m0s`,
		},
		"a port out of range": {
			"ports {\n  base = 80\n}",
			`p.hcl:2: base: 80 is out of range; write a number from 1024 to 65000`,
		},
		"an empty text": {
			`region = ""`,
			`p.hcl:1: region: this is no text; write a text in quotes, or remove the line for the default`,
		},
		"levels that are no list": {
			"topology {\n  levels = 3\n}",
			`p.hcl:2: levels: this is no list of texts; write for example ["zone", "rack"]`,
		},
		"an option that does not exist": {
			`fence_tme = "2m"`,
			`p.hcl:1: Unsupported argument; An argument named "fence_tme" is not expected here. Did you mean "fence_time"?`,
		},
		"a block twice": {
			"ports {\n}\nports {\n}",
			`p.hcl:3: there is a second ports block; write all of it in one block`,
		},
		"two faults at once": {
			"tick = \"1h\"\nports {\n  base = 1.5\n}",
			"p.hcl:1: tick: 1h is out of range; write a duration from 100ms to 1m0s\np.hcl:3: base: this is no whole number",
		},
		"a level with a meaning of its own": {
			"topology {\n  levels = [\"node\"]\n}",
			`p.hcl: topology: level "node" has a meaning of its own in muster_locality; choose another name`,
		},
		"a level twice": {
			"topology {\n  levels = [\"a\", \"a\"]\n}",
			`p.hcl: topology: level "a" is listed twice; remove one`,
		},
		"an unknown log level": {
			`log_level = "loud"`,
			`p.hcl: log_level "loud" is not known; write debug, info, warn or error`,
		},
		"a start timeout below the placement deadline": {
			`start_timeout = "30s"`,
			`p.hcl: start_timeout (30s) is shorter than placement_deadline (1m0s); raise it`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("p.hcl", []byte(tc.text), Default("h"))
			must.Error(t, err)
			must.Eq(t, tc.want, err.Error())
		})
	}
}

func TestBrokenSyntaxNamesTheLine(t *testing.T) {
	_, err := Parse("p.hcl", []byte("region = \"a\"\nports {\n"), Default("h"))
	must.ErrorContains(t, err, "p.hcl:")
}

func TestFlagsGoBeforeVariablesBeforeTheFile(t *testing.T) {
	c, err := Parse("p.hcl", []byte("region = \"file\"\nconsul {\n  address = \"file:1\"\n  token = \"file\"\n}"), Default("h"))
	must.NoError(t, err)
	vars := map[string]string{"CONSUL_HTTP_ADDR": "var:1", "NOMAD_REGION": "var", "NOMAD_TOKEN": ""}
	c = c.Environ(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
	var flags Flags
	set := flag.NewFlagSet("placer", flag.ContinueOnError)
	flags.Register(set)
	must.NoError(t, set.Parse([]string{"-region", "flag"}))
	c = flags.Apply(c)

	must.Eq(t, "flag", c.Region)
	must.Eq(t, "var:1", c.Consul.Address)
	must.Eq(t, "file", c.Consul.Token)
	must.Eq(t, "", c.Nomad.Token)
	must.Eq(t, "file", c.Consul.Client().Token)
	must.Eq(t, "var:1", c.Consul.Client().Address)
	must.Eq(t, "flag", c.Nomad.Client(c.Region).Region)
}

func TestNomadClientForgetsTheNamespaceOfItsSurroundings(t *testing.T) {
	t.Setenv("NOMAD_NAMESPACE", "placers")
	must.Eq(t, "", Default("h").Nomad.Client("global").Namespace)
}

func TestLoadWithoutFileIsTheDefault(t *testing.T) {
	c, err := Load("")
	must.NoError(t, err)
	hostname, err := os.Hostname()
	must.NoError(t, err)
	must.Eq(t, Default(hostname), c)
	level, err := c.Level()
	must.NoError(t, err)
	must.Eq(t, slog.LevelInfo, level)
	must.Eq(t, 2*time.Minute, c.FenceTime)

	_, err = Load("nowhere.hcl")
	must.ErrorIs(t, err, os.ErrNotExist)
}
