// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/placer/model"
)

// nested is a tree with 4 GPUs of red that neither of the queues inside is owed.
func nested() *Tree {
	return New(model.Snapshot{Queues: []model.Queue{
		{Name: "red.x", Quota: 8}, {Name: "red", Quota: 20, Max: 24}, {Name: "red.y", Quota: 8, Max: 12}, {Name: "blue", Quota: 8}, {Name: "red-ish"},
	}})
}

func TestWhereGangsCount(t *testing.T) {
	tree := nested()
	for _, queue := range []string{"red.x", "red", "red.y.deep", "redder", "red-ish", ""} {
		tree.Take(queue, 1)
	}
	used := func(queue string) int { return tree.UseOf(queue).Used }
	must.Eq(t, 1, used("red.x"))
	must.Eq(t, 1, used("red"), must.Sprint("its own gangs alone"))
	must.Eq(t, 1, used("red.y"), must.Sprint("and those of queues inside that are not listed"))
	must.Eq(t, 1, used("red-ish"))
	must.Eq(t, 2, used("nowhere"), must.Sprint("all queues that are not listed are one"))
	must.True(t, tree.Holds("red", "red.y.deep"))
	must.False(t, tree.Holds("red", "redder"))
}

func TestLimits(t *testing.T) {
	tree := nested()
	tree.Take("red.y", 12)
	use, over := tree.Limit("red.y", 1)
	must.True(t, over)
	must.Eq(t, Use{Name: "red.y", Used: 12, Quota: 8, Max: 12}, use)
	_, over = tree.Limit("red.x", 12)
	must.False(t, over)
	use, over = tree.Limit("red.x", 13)
	must.True(t, over)
	must.Eq(t, "red", use.Name, must.Sprint("the limit of the queue around it"))
	_, over = tree.Limit("nowhere", 1000)
	must.False(t, over)
}

func TestWhoMayReclaim(t *testing.T) {
	tree := nested()
	tree.Take("red.y", 12)
	tree.Take("blue", 4)
	must.True(t, tree.MayReclaim("red.x", 8, "red.y"), must.Sprint("red.y has 4 above its quota"))
	must.False(t, tree.MayReclaim("red.x", 9, "red.y"), must.Sprint("more than red.x is owed"))
	must.False(t, tree.MayReclaim("blue", 4, "red.y"), must.Sprint("red as a whole is within its quota"))
	must.False(t, tree.MayReclaim("red.y", 1, "blue"), must.Sprint("red.y has its quota, and blue is within its own"))
	tree.Take("red.x", 12)
	must.True(t, tree.MayReclaim("blue", 4, "red.y"), must.Sprint("now red has more than its quota"))
	tree.Leave("red.y", 4)
	must.False(t, tree.MayReclaim("blue", 4, "red.y"), must.Sprint("what is leaving can't be taken twice"))
	must.True(t, tree.MayReclaim("red", 4, "red.x"), must.Sprint("red's own gangs are owed what it has not given to those inside"))
	must.False(t, tree.MayReclaim("red", 5, "red.x"))
}

func TestCompare(t *testing.T) {
	tree := nested()
	must.Negative(t, tree.Compare("blue", "nowhere"))
	tree.Take("red.x", 12)
	must.Negative(t, tree.Compare("red.y", "red.x"), must.Sprint("within red"))
	must.Negative(t, tree.Compare("blue", "red.y"), must.Sprint("blue has none of its quota, red more than half"))
	must.Zero(t, tree.Compare("red.x", "red.x.deep"))
}

// TestAnyTree: figures that make no sense do no harm.
func TestAnyTree(t *testing.T) {
	names := []string{"", ".", "a", "a.", "a.b", "a..b", "a.b.c", "b", "b"}
	rapid.Check(t, func(t *rapid.T) {
		var s model.Snapshot
		for _, name := range rapid.SliceOf(rapid.SampledFrom(names)).Draw(t, "queues") {
			s.Queues = append(s.Queues, model.Queue{
				Name: name, Quota: rapid.IntRange(-5, 20).Draw(t, "quota"), Max: rapid.IntRange(-5, 20).Draw(t, "max"),
				Weight:     rapid.SampledFrom([]float64{-1, 0, 2, math.NaN(), math.Inf(1)}).Draw(t, "weight"),
				GPUSeconds: rapid.SampledFrom([]float64{-1, 0, 1e5, math.NaN(), math.Inf(1)}).Draw(t, "used"),
			})
		}
		tree := New(s)
		var busy []string
		for range rapid.IntRange(0, 5).Draw(t, "gangs") {
			queue := rapid.SampledFrom(names).Draw(t, "queue")
			busy = append(busy, queue)
			tree.Take(queue, rapid.IntRange(0, 9).Draw(t, "gpus"))
		}
		for _, a := range names {
			for _, b := range names {
				must.Eq(t, sign(tree.Compare(a, b)), -sign(tree.Compare(b, a)))
				must.False(t, tree.MayReclaim(a, 1, b) && tree.MayReclaim(b, 1, a))
			}
		}
		_, some := tree.First(func(line int) (int, bool) {
			for _, queue := range busy {
				if tree.Line(queue) == line {
					return 1, true
				}
			}
			return 0, false
		})
		must.Eq(t, len(busy) > 0, some, must.Sprint("every gang has its turn"))
	})
}

func sign(n int) int { return max(-1, min(n, 1)) }
