// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package hclopt reads single options out of HCL: each has a name, a kind and bounds, and a wrong one is reported as
// "file:line: what is wrong; what to do". What the options are for, and how they hang together, is the business of
// whoever reads the file.
package hclopt

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// Option is one attribute that a block may hold.
type Option struct {
	Name string
	Set  func(cty.Value) error // the error says what is wrong and the mend
}

// Schema is what options take of a body.
func Schema(options []Option) []hcl.AttributeSchema {
	out := make([]hcl.AttributeSchema, 0, len(options))
	for _, o := range options {
		out = append(out, hcl.AttributeSchema{Name: o.Name})
	}
	return out
}

// Decode sets the options that a block has an attribute of.
func Decode(attributes hcl.Attributes, options []Option) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for _, o := range options {
		attribute := attributes[o.Name]
		if attribute == nil {
			continue
		}
		value, more := attribute.Expr.Value(nil)
		diags = append(diags, more...)
		if more.HasErrors() {
			continue
		}
		if err := o.Set(value); err != nil {
			diags = append(diags, Fault(attribute.Expr.Range(), fmt.Sprintf("%s: %s", o.Name, err), ""))
		}
	}
	return diags
}

// Fault is an error at a place; the mend may be empty.
func Fault(at hcl.Range, wrong, mend string) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: wrong, Detail: mend, Subject: &at}
}

// Errors is all errors, one a line, in the order of the file; nil without any.
func Errors(diags hcl.Diagnostics) error {
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

// Text sets a string that is not empty.
func Text(into *string) func(cty.Value) error {
	return func(v cty.Value) error {
		s, err := convert.Convert(v, cty.String)
		if err != nil || s.IsNull() || !s.IsKnown() || s.AsString() == "" {
			return errors.New("this is no text; write a text in quotes, or remove the line for the default")
		}
		*into = s.AsString()
		return nil
	}
}

// Texts sets a list of strings; example is one that a reader would write.
func Texts(into *[]string, example string) func(cty.Value) error {
	return func(v cty.Value) error {
		list, err := convert.Convert(v, cty.List(cty.String))
		if err != nil || list.IsNull() || !list.IsWhollyKnown() {
			return errors.New("this is no list of texts; write for example " + example)
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

// Number sets a whole number between two bounds.
func Number(into *int, least, most int64) func(cty.Value) error {
	return func(v cty.Value) error {
		n, err := convert.Convert(v, cty.Number)
		if err != nil || n.IsNull() || !n.IsKnown() || !n.AsBigFloat().IsInt() {
			return errors.New("this is no whole number")
		}
		f := n.AsBigFloat()
		if i, exact := f.Int64(); exact == 0 && i >= least && i <= most {
			*into = int(i)
			return nil
		}
		return fmt.Errorf("%s is out of range; write a number from %d to %d", f.Text('g', 20), least, most)
	}
}

// Fraction sets a number between two bounds that need not be whole.
func Fraction(into *float64, least, most float64) func(cty.Value) error {
	return func(v cty.Value) error {
		n, err := convert.Convert(v, cty.Number)
		if err != nil || n.IsNull() || !n.IsKnown() {
			return errors.New("this is no number")
		}
		f, _ := n.AsBigFloat().Float64()
		if !(f >= least && f <= most) {
			return fmt.Errorf("%s is out of range; write a number from %s to %s", short(f), short(least), short(most))
		}
		*into = f
		return nil
	}
}

func short(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// Flag sets true or false.
func Flag(into *bool) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.Bool || v.IsNull() || !v.IsKnown() {
			return errors.New("this is neither true nor false")
		}
		*into = v.True()
		return nil
	}
}

// Duration sets a duration between two bounds.
func Duration(into *time.Duration, least, most time.Duration) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.String || v.IsNull() || !v.IsKnown() {
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
