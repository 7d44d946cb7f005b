// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package report shows what came of replays: a table for a terminal, JSON for programs, and one HTML page with plots. The
// CLI imports it.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/nomad-muster/muster/placer/replay"
)

// JSON writes every figure.
func JSON(w io.Writer, results []*replay.Result) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(results)
}

// line is one row of the table.
type line struct {
	label string
	value func(*replay.Result) string
}

// Table writes the figures by which policies are compared, one column for each.
func Table(w io.Writer, results []*replay.Result) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "\t")
	for _, r := range results {
		fmt.Fprintf(out, "%s\t", r.Policy)
	}
	fmt.Fprintln(out)
	for _, l := range lines() {
		fmt.Fprintf(out, "%s\t", l.label)
		for _, r := range results {
			fmt.Fprintf(out, "%s\t", l.value(r))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

func lines() []line {
	number := func(label, format string, value func(*replay.Result) float64) line {
		return line{label, func(r *replay.Result) string { return fmt.Sprintf(format, value(r)) }}
	}
	all := []line{
		{"jobs in, out", func(r *replay.Result) string { return fmt.Sprintf("%d, %d", r.JobsIn, r.JobsOut) }},
		{"GPU-hours in, out", func(r *replay.Result) string { return fmt.Sprintf("%.0f, %.0f", r.GPUHoursIn, r.GPUHoursOut) }},
		number("wait, mean s", "%.0f", func(r *replay.Result) float64 { return r.Wait.All.Mean }),
		number("wait, p50 s", "%.0f", func(r *replay.Result) float64 { return r.Wait.All.P50 }),
		number("wait, p95 s", "%.0f", func(r *replay.Result) float64 { return r.Wait.All.P95 }),
		number("wait, p99 s", "%.0f", func(r *replay.Result) float64 { return r.Wait.All.P99 }),
		number("wait, max s", "%.0f", func(r *replay.Result) float64 { return r.Wait.All.Max }),
	}
	for _, class := range replay.Classes() {
		all = append(all,
			number("wait of "+class+" GPUs, mean s", "%.0f", func(r *replay.Result) float64 { return r.Wait.Classes[class].Mean }),
			number("wait of "+class+" GPUs, max s", "%.0f", func(r *replay.Result) float64 { return r.Wait.Classes[class].Max }))
	}
	return append(all,
		number("completion, mean s", "%.0f", func(r *replay.Result) float64 { return r.Completion.All.Mean }),
		number("completion, p50 s", "%.0f", func(r *replay.Result) float64 { return r.Completion.All.P50 }),
		number("completion, p95 s", "%.0f", func(r *replay.Result) float64 { return r.Completion.All.P95 }),
		number("completion, p99 s", "%.0f", func(r *replay.Result) float64 { return r.Completion.All.P99 }),
		number("makespan, s", "%.0f", func(r *replay.Result) float64 { return r.Makespan }),
		number("use, %", "%.1f", func(r *replay.Result) float64 { return 100 * r.Use }),
		number("fragmentation, %", "%.1f", func(r *replay.Result) float64 { return 100 * r.Fragmentation }),
		number("16 GPUs on two servers, % of GPU-hours", "%.1f", func(r *replay.Result) float64 { return 100 * r.Servers[16].On(2) }),
		number("delay by fair share, h", "%.0f", func(r *replay.Result) float64 { return r.Causes.FairShare }),
		number("delay by fragmentation, h", "%.0f", func(r *replay.Result) float64 { return r.Causes.Fragmentation }),
		number("evictions", "%.0f", func(r *replay.Result) float64 { return float64(r.Evictions) }),
		number("GPU-hours of slowdown", "%.0f", func(r *replay.Result) float64 { return r.Held.Slow }),
		number("GPU-hours lost", "%.0f", func(r *replay.Result) float64 { return r.Held.Lost + r.Held.Overhead }),
		number("out-of-order starts", "%.0f", func(r *replay.Result) float64 { return float64(r.OutOfOrder) }),
		number("partly running gangs", "%.0f", func(r *replay.Result) float64 { return float64(r.PartlyRunning) }),
		number("audit faults", "%.0f", func(r *replay.Result) float64 { return float64(r.Faults) }),
	)
}
