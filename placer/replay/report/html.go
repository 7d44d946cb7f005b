// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/nomad-muster/muster/placer/replay"
)

//go:embed page.html
var page string

// timesOf makes a number of hours a factor of a duration.
func timesOf(n int) time.Duration { return time.Duration(n) }

// HTML writes one page with the table and plots. It needs no other file and no network.
func HTML(w io.Writer, results []*replay.Result) error {
	if len(results) == 0 {
		return nil
	}
	tmpl, err := template.New("page").Parse(page)
	if err != nil {
		return fmt.Errorf("the page's template: %w", err)
	}
	var data struct {
		Results []*replay.Result
		Rows    [][]string
		Charts  []chart
	}
	data.Results = results
	for _, l := range lines() {
		row := []string{l.label}
		for _, r := range results {
			row = append(row, l.value(r))
		}
		data.Rows = append(data.Rows, row)
	}
	data.Charts = append(data.Charts, use(results))
	for _, class := range replay.Classes() {
		if results[0].Wait.Classes[class].Count > 0 {
			data.Charts = append(data.Charts, waits(results, class), causes(results, class))
		}
	}
	for _, gpus := range []int{8, 16, 32} {
		if results[0].Servers[gpus].GPUHours > 0 {
			data.Charts = append(data.Charts, locality(results, gpus))
		}
	}
	return tmpl.Execute(w, data)
}
