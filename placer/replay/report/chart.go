// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/nomad-muster/muster/placer/replay"
)

// The size of the area of a plot, in SVG units.
const (
	width  = 520.0
	height = 220.0
)

// chart is a plot of lines or of stacked bars.
type chart struct {
	Title, X, Y string
	XTicks      []tick
	YTicks      []tick
	Lines       []series
	Bars        []bar
	Legend      []legend
}

// tick is a mark on an axis.
type tick struct {
	At   float64
	Text string
}

// series is one line: points as SVG has them.
type series struct{ Color, Points string }

// bar is one part of a stacked bar.
type bar struct {
	X, Y, Width, Height float64
	Color, Text         string
}

// legend is a name with its colour.
type legend struct{ Color, Name string }

// X is where the i-th entry of a legend is.
func (legend) X(i int) int { return i * 75 }

// color is the colour of the i-th of what a plot compares: distinct for people who see red and green alike, too.
func color(i int) string {
	colors := []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}
	return colors[i%len(colors)]
}

// policies is the legend of the policies.
func policies(results []*replay.Result) []legend {
	var names []legend
	for i, r := range results {
		names = append(names, legend{color(i), r.Policy})
	}
	return names
}

// waits plots which share of the gangs of a class waited for at most so long; time is logarithmic from 1 s.
func waits(results []*replay.Result, class string) chart {
	c := chart{
		Title: "Waiting time, gangs of " + class + " GPUs", X: "time in the queue", Y: "share of the gangs that waited no longer",
		YTicks: percents(), Legend: policies(results),
	}
	longest := 10.0
	for _, r := range results {
		longest = max(longest, r.Wait.Classes[class].Max)
	}
	scale := func(seconds float64) float64 { return width * math.Log10(max(1, seconds)) / math.Log10(longest) }
	for _, t := range []tick{{1, "1 s"}, {60, "1 min"}, {600, "10 min"}, {3600, "1 h"}, {36_000, "10 h"}, {86_400 * 4, "4 d"}, {86_400 * 30, "30 d"}} {
		if t.At <= longest {
			c.XTicks = append(c.XTicks, tick{scale(t.At), t.Text})
		}
	}
	for i, r := range results {
		var points []string
		for hundredth, seconds := range r.Wait.Classes[class].Curve {
			points = append(points, point(scale(seconds), height*(1-float64(hundredth)/100)))
		}
		c.Lines = append(c.Lines, series{color(i), strings.Join(points, " ")})
	}
	return c
}

// use plots the share of the GPUs in use over time.
func use(results []*replay.Result) chart {
	c := chart{Title: "Use over time", X: "time", Y: "share of the GPUs in use", YTicks: percents(), Legend: policies(results)}
	hours := 1
	for _, r := range results {
		hours = max(hours, len(r.UsePerHour))
	}
	for i := range 5 {
		hour := hours * i / 5
		c.XTicks = append(c.XTicks, tick{width * float64(i) / 5, results[0].Began.Add(replay.SeriesStep * timesOf(hour)).Format("2006-01-02 15h")})
	}
	each := max(1, hours/400)
	for i, r := range results {
		var points []string
		for from := 0; from < len(r.UsePerHour); from += each {
			part := r.UsePerHour[from:min(from+each, len(r.UsePerHour))]
			sum := 0.0
			for _, share := range part {
				sum += share
			}
			x := width * (float64(from) + float64(len(part))/2) / float64(hours)
			points = append(points, point(x, height*(1-sum/float64(len(part)))))
		}
		c.Lines = append(c.Lines, series{color(i), strings.Join(points, " ")})
	}
	return c
}

func point(x, y float64) string { return fmt.Sprintf("%.1f,%.1f", x, y) }

func percents() []tick {
	var ticks []tick
	for p := 0; p <= 100; p += 25 {
		ticks = append(ticks, tick{height * (1 - float64(p)/100), fmt.Sprintf("%d %%", p)})
	}
	return ticks
}

// stack is one bar to be: a name and its parts.
type stack struct {
	name  string
	parts []float64
}

// stacked plots bars beside one another, each of parts that are named by the legend.
func stacked(c chart, stacks []stack, unit string) chart {
	most := 0.0
	for _, s := range stacks {
		sum := 0.0
		for _, part := range s.parts {
			sum += part
		}
		most = max(most, sum)
	}
	if most == 0 {
		most = 1
	}
	for i := range 5 {
		c.YTicks = append(c.YTicks, tick{height * (1 - float64(i)/4), fmt.Sprintf("%.3g%s", most*float64(i)/4, unit)})
	}
	slot := width / float64(max(1, len(stacks)))
	for i, s := range stacks {
		c.XTicks = append(c.XTicks, tick{slot * (float64(i) + 0.5), s.name})
		y := height
		for k, part := range s.parts {
			h := height * part / most
			y -= h
			c.Bars = append(c.Bars, bar{
				X: slot * (float64(i) + 0.2), Y: y, Width: slot * 0.6, Height: h, Color: c.Legend[k].Color,
				Text: fmt.Sprintf("%s, %s: %.4g%s", s.name, c.Legend[k].Name, part, unit),
			})
		}
	}
	return c
}

// causes plots what the queued time of a class of gangs is put down to.
func causes(results []*replay.Result, class string) chart {
	c := chart{Title: "Why gangs of " + class + " GPUs waited", Y: "hours in the queue"}
	for i, name := range []string{"fair share", "fragmentation", "own", "next round"} {
		c.Legend = append(c.Legend, legend{color(i), name})
	}
	var stacks []stack
	for _, r := range results {
		by := r.BySize[class]
		stacks = append(stacks, stack{r.Policy, []float64{by.FairShare, by.Fragmentation, by.Own, by.Round}})
	}
	return stacked(c, stacks, " h")
}

// locality plots on how many servers gangs of a number of GPUs spent their GPU-hours.
func locality(results []*replay.Result, gpus int) chart {
	c := chart{Title: fmt.Sprintf("Servers of gangs of %d GPUs", gpus), Y: "share of their GPU-hours"}
	least := (gpus + 7) / 8
	bounds := []int{least, 2 * least, 4 * least, math.MaxInt}
	for i, name := range []string{fmt.Sprintf("%d", least), fmt.Sprintf("up to %d", 2*least), fmt.Sprintf("up to %d", 4*least), "more"} {
		c.Legend = append(c.Legend, legend{color(i), name})
	}
	var stacks []stack
	for _, r := range results {
		parts := make([]float64, len(bounds))
		for servers := range gpus + 1 {
			for i, bound := range bounds {
				if servers <= bound {
					parts[i] += 100 * r.Servers[gpus].On(servers)
					break
				}
			}
		}
		stacks = append(stacks, stack{r.Policy, parts})
	}
	return stacked(c, stacks, " %")
}
