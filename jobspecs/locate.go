// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// locate gives each finding its place in the file. It goes over the syntax only: where a block was generated, or the
// attribute is missing, the nearest thing around it is named. A file that is not HCL syntax (JSON) gets no lines.
func locate(path string, source []byte, findings Diagnostics) {
	file, diags := hclsyntax.ParseConfig(source, path, hcl.InitialPos)
	if diags.HasErrors() {
		return
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return
	}
	for i := range findings {
		r := find(body, findings[i].at)
		findings[i].Range = &Range{File: path, Line: r.Start.Line, Column: r.Start.Column}
	}
}

// find is the range of a place, or of the innermost block around it that the file has.
func find(body *hclsyntax.Body, at place) hcl.Range {
	around := body.SrcRange
	for _, s := range at.steps {
		block, whole := findBlock(body, s)
		switch {
		case whole:
			body, around = block.Body, block.DefRange()
		case block != nil:
			return block.DefRange()
		default:
			if attr, isAttr := body.Attributes[s.block]; isAttr { // meta = { ... }
				return attr.NameRange
			}
			return around
		}
	}
	if attr, has := body.Attributes[at.attr]; has {
		return attr.NameRange
	}
	return around
}

// findBlock finds the block of a step. If the file only has a dynamic block that generates it, that one is returned
// and the second result is false.
func findBlock(body *hclsyntax.Body, s step) (*hclsyntax.Block, bool) {
	var generator *hclsyntax.Block
	index := 0
	for _, block := range body.Blocks {
		switch {
		case block.Type == "dynamic" && len(block.Labels) == 1 && block.Labels[0] == s.block:
			generator = block
		case block.Type != s.block || s.label != "" && (len(block.Labels) != 1 || block.Labels[0] != s.label) && s.block != "job":
		case index == s.index:
			return block, true
		default:
			index++
		}
	}
	return generator, false
}
