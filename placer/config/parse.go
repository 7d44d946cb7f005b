// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
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
		return Config{}, faults(diags)
	}
	c := over
	options := c.options()
	diags = decode(parsed.Body, options)
	if diags.HasErrors() {
		return Config{}, faults(diags)
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
		{"", "region", text(&c.Region)},
		{"", "name", text(&c.Name)},
		{"", "log_level", text(&c.LogLevel)},
		{"", "fence_time", duration(&c.FenceTime, 10*time.Second, 24*time.Hour)},
		{"", "placement_deadline", duration(&c.PlacementDeadline, 20*time.Second, time.Hour)},
		{"", "start_timeout", duration(&c.StartTimeout, 20*time.Second, 24*time.Hour)},
		{"", "max_failures", number(&c.MaxFailures, 0, 1000)},
		{"", "tick", duration(&c.Tick, 100*time.Millisecond, time.Minute)},
		{"", "relist_interval", duration(&c.RelistInterval, time.Second, 10*time.Minute)},
		{"topology", "levels", texts(&c.Topology.Levels)},
		{"ports", "base", number(&c.Ports.Base, 1024, 65000)},
		{"consul", "address", text(&c.Consul.Address)},
		{"consul", "token", text(&c.Consul.Token)},
		{"nomad", "address", text(&c.Nomad.Address)},
		{"nomad", "token", text(&c.Nomad.Token)},
	}
	options = append(options, c.Consul.TLS.options("consul")...)
	return append(options, c.Nomad.TLS.options("nomad")...)
}

func (t *TLS) options(block string) []option {
	return []option{
		{block, "ca_file", text(&t.CAFile)},
		{block, "cert_file", text(&t.CertFile)},
		{block, "key_file", text(&t.KeyFile)},
		{block, "server_name", text(&t.ServerName)},
	}
}

// schema is what one block of the file, or the file itself, may hold.
func schema(options []option, block string) *hcl.BodySchema {
	s := &hcl.BodySchema{}
	for _, o := range options {
		switch {
		case o.block == block:
			s.Attributes = append(s.Attributes, hcl.AttributeSchema{Name: o.name})
		case block == "" && !slices.ContainsFunc(s.Blocks, func(b hcl.BlockHeaderSchema) bool { return b.Type == o.block }):
			s.Blocks = append(s.Blocks, hcl.BlockHeaderSchema{Type: o.block})
		}
	}
	return s
}

func decode(body hcl.Body, options []option) hcl.Diagnostics {
	content, diags := body.Content(schema(options, ""))
	diags = append(diags, decodeAttributes(content.Attributes, options, "")...)
	seen := map[string]bool{}
	for _, block := range content.Blocks {
		if seen[block.Type] {
			diags = append(diags, fault(block.DefRange, "there is a second %s block", "write all of it in one block", block.Type))
		}
		seen[block.Type] = true
		inner, more := block.Body.Content(schema(options, block.Type))
		diags = append(diags, more...)
		diags = append(diags, decodeAttributes(inner.Attributes, options, block.Type)...)
	}
	return diags
}

func decodeAttributes(attributes hcl.Attributes, options []option, block string) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for _, o := range options {
		attribute := attributes[o.name]
		if o.block != block || attribute == nil {
			continue
		}
		value, more := attribute.Expr.Value(nil)
		diags = append(diags, more...)
		if more.HasErrors() {
			continue
		}
		if err := o.set(value); err != nil {
			diags = append(diags, fault(attribute.Expr.Range(), "%s: %s", "", o.name, err))
		}
	}
	return diags
}

func fault(at hcl.Range, format, mend string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf(format, args...), Detail: mend, Subject: &at}
}

// faults is all errors, one a line, in the order of the file.
func faults(diags hcl.Diagnostics) error {
	slices.SortStableFunc(diags, func(a, b *hcl.Diagnostic) int { return line(a) - line(b) })
	var errs []error
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		message := strings.TrimSuffix(d.Summary, ".")
		if d.Detail != "" {
			message += "; " + strings.TrimSuffix(d.Detail, ".")
		}
		if d.Subject != nil {
			message = fmt.Sprintf("%s:%d: %s", d.Subject.Filename, d.Subject.Start.Line, message)
		}
		errs = append(errs, errors.New(message))
	}
	return errors.Join(errs...)
}

func line(d *hcl.Diagnostic) int {
	if d.Subject == nil {
		return 0
	}
	return d.Subject.Start.Line
}

// text sets a string that is not empty.
func text(into *string) func(cty.Value) error {
	return func(v cty.Value) error {
		s, err := convert.Convert(v, cty.String)
		if err != nil || s.IsNull() || s.AsString() == "" {
			return errors.New("this is no text; write a text in quotes, or remove the line for the default")
		}
		*into = s.AsString()
		return nil
	}
}

// texts sets a list of strings.
func texts(into *[]string) func(cty.Value) error {
	return func(v cty.Value) error {
		list, err := convert.Convert(v, cty.List(cty.String))
		if err != nil || list.IsNull() {
			return errors.New(`this is no list of texts; write for example ["zone", "rack"]`)
		}
		var out []string
		for it := list.ElementIterator(); it.Next(); {
			_, s := it.Element()
			if s.IsNull() {
				return errors.New("the list holds null; remove it")
			}
			out = append(out, s.AsString())
		}
		*into = out
		return nil
	}
}

// number sets a whole number between two bounds.
func number(into *int, least, most int64) func(cty.Value) error {
	return func(v cty.Value) error {
		n, err := convert.Convert(v, cty.Number)
		if err != nil || n.IsNull() || !n.AsBigFloat().IsInt() {
			return errors.New("this is no whole number")
		}
		i, _ := n.AsBigFloat().Int64()
		if i < least || i > most {
			return fmt.Errorf("%s is out of range; write a number from %d to %d", n.AsBigFloat().Text('f', 0), least, most)
		}
		*into = int(i)
		return nil
	}
}

// duration sets a duration between two bounds.
func duration(into *time.Duration, least, most time.Duration) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.String || v.IsNull() {
			return errors.New(`this is no duration; write a number with its unit in quotes, such as "90s"`)
		}
		d, err := time.ParseDuration(v.AsString())
		if err != nil {
			return fmt.Errorf(`%q is no duration; write a number with its unit, such as "90s" or "15m"`, v.AsString())
		}
		if d < least || d > most {
			return fmt.Errorf("%s is out of range; write a duration from %s to %s", v.AsString(), least, most)
		}
		*into = d
		return nil
	}
}
