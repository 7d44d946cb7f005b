// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-muster/muster/placer/hclopt"
)

// Load reads a placer.hcl over the defaults. An empty path means that there is no file. Every fault of the file is
// reported, one a line, as "file:line: what is wrong; what to do".
func Load(path string) (Config, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return Config{}, fmt.Errorf("finding this host's name: %w; set name in the configuration", err)
	}
	if path == "" {
		return Default(hostname), nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration: %w", err)
	}
	return Parse(path, text, Default(hostname))
}

// Parse reads the text of a placer.hcl over a configuration, normally Default. The file name is for messages.
func Parse(file string, text []byte, over Config) (Config, error) {
	parsed, diags := hclparse.NewParser().ParseHCL(text, file)
	if diags.HasErrors() {
		return Config{}, hclopt.Errors(diags)
	}
	c := over
	options := c.options()
	diags = decode(parsed.Body, options)
	if diags.HasErrors() {
		return Config{}, hclopt.Errors(diags)
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// option is one attribute of the file; block is empty for those outside of a block.
type option struct {
	block, name string
	set         func(cty.Value) error
}

// options binds every option that the file may hold to its field, in the order of the documentation.
func (c *Config) options() []option {
	options := []option{
		{"", "region", hclopt.Text(&c.Region)},
		{"", "name", hclopt.Text(&c.Name)},
		{"", "log_level", hclopt.Text(&c.LogLevel)},
		{"", "fence_time", hclopt.Duration(&c.FenceTime, 10*time.Second, 24*time.Hour)},
		{"", "placement_deadline", hclopt.Duration(&c.PlacementDeadline, 20*time.Second, time.Hour)},
		{"", "start_timeout", hclopt.Duration(&c.StartTimeout, 20*time.Second, 24*time.Hour)},
		{"", "max_failures", hclopt.Number(&c.MaxFailures, 0, 1000)},
		{"", "tick", hclopt.Duration(&c.Tick, 100*time.Millisecond, time.Minute)},
		{"", "relist_interval", hclopt.Duration(&c.RelistInterval, time.Second, 10*time.Minute)},
		{"topology", "levels", hclopt.Texts(&c.Topology.Levels, `["zone", "rack"]`)},
		{"ports", "base", hclopt.Number(&c.Ports.Base, 1024, 65000)},
		{"consul", "address", hclopt.Text(&c.Consul.Address)},
		{"consul", "token", hclopt.Text(&c.Consul.Token)},
		{"nomad", "address", hclopt.Text(&c.Nomad.Address)},
		{"nomad", "token", hclopt.Text(&c.Nomad.Token)},
	}
	options = append(options, c.Consul.TLS.options("consul")...)
	return append(options, c.Nomad.TLS.options("nomad")...)
}

func (t *TLS) options(block string) []option {
	return []option{
		{block, "ca_file", hclopt.Text(&t.CAFile)},
		{block, "cert_file", hclopt.Text(&t.CertFile)},
		{block, "key_file", hclopt.Text(&t.KeyFile)},
		{block, "server_name", hclopt.Text(&t.ServerName)},
	}
}

// of are the options of one block.
func of(options []option, block string) []hclopt.Option {
	var out []hclopt.Option
	for _, o := range options {
		if o.block == block {
			out = append(out, hclopt.Option{Name: o.name, Set: o.set})
		}
	}
	return out
}

// blocks are the kinds of blocks that the file may hold.
func blocks(options []option) []hcl.BlockHeaderSchema {
	var out []hcl.BlockHeaderSchema
	for _, o := range options {
		if o.block != "" && !slices.ContainsFunc(out, func(b hcl.BlockHeaderSchema) bool { return b.Type == o.block }) {
			out = append(out, hcl.BlockHeaderSchema{Type: o.block})
		}
	}
	return out
}

func decode(body hcl.Body, options []option) hcl.Diagnostics {
	content, diags := body.Content(&hcl.BodySchema{Attributes: hclopt.Schema(of(options, "")), Blocks: blocks(options)})
	diags = append(diags, hclopt.Decode(content.Attributes, of(options, ""))...)
	seen := map[string]bool{}
	for _, block := range content.Blocks {
		if seen[block.Type] {
			diags = append(diags, hclopt.Fault(block.DefRange, fmt.Sprintf("there is a second %s block", block.Type), "write all of it in one block"))
		}
		seen[block.Type] = true
		allowed := of(options, block.Type)
		inner, more := block.Body.Content(&hcl.BodySchema{Attributes: hclopt.Schema(allowed)})
		diags = append(diags, more...)
		diags = append(diags, hclopt.Decode(inner.Attributes, allowed)...)
	}
	return diags
}
