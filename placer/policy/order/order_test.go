// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package order

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/placer/model"
)

func TestFirstInFirstOut(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	gangs := []model.Gang{
		{Name: "late", Priority: 50, Submitted: at(2)},
		{Name: "b", Priority: 50, Submitted: at(1)},
		{Name: "a", Priority: 50, Submitted: at(1)},
		{Name: "urgent", Priority: 80, Submitted: at(9)},
		{Name: "idle", Priority: 10, Submitted: at(0)},
	}
	must.Eq(t, []string{"urgent", "a", "b", "late", "idle"}, names(FirstInFirstOut(gangs)))
	must.Eq(t, "late", gangs[0].Name, must.Sprint("the argument was changed"))
}

func TestFirstInFirstOutDoesNotDependOnTheInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var gangs []model.Gang
		for i := range rapid.IntRange(0, 8).Draw(t, "gangs") {
			gangs = append(gangs, model.Gang{
				Name: string(rune('a' + i)), Priority: rapid.IntRange(0, 2).Draw(t, "priority"),
				Submitted: time.Unix(rapid.Int64Range(0, 2).Draw(t, "submitted"), 0),
			})
		}
		other := rapid.Permutation(gangs).Draw(t, "in another order")
		must.Eq(t, names(FirstInFirstOut(gangs)), names(FirstInFirstOut(other)))
	})
}

func names(gangs []model.Gang) []string {
	var names []string
	for _, g := range gangs {
		names = append(names, g.Name)
	}
	return names
}
