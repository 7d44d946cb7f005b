// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package locality_test

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/placer/model"
	"github.com/nomad-muster/muster/placer/policy/locality"
)

// measured are the relative speeds of the sources, with how far the model may be off. Those of Philly are what unknown
// jobs are calibrated by; the others are fitted in the mean.
func measured() map[string]struct {
	comm   model.Comm
	spread locality.Spread
	speed  float64
	within float64
} {
	type row = struct {
		comm   model.Comm
		spread locality.Spread
		speed  float64
		within float64
	}
	two, four := locality.Spread{Servers: 2, Needed: 1}, locality.Spread{Servers: 4, Needed: 1}
	twoApart, fourApart := locality.Spread{Servers: 2, Needed: 1, Apart: true}, locality.Spread{Servers: 4, Needed: 1, Apart: true}
	return map[string]row{
		"Philly table 4, ResNet-50 on two servers":   {model.CommUnknown, two, 0.854, 0.03},
		"Philly table 5, 16 GPUs on two servers":     {model.CommUnknown, locality.Spread{Servers: 2, Needed: 2}, 1, 0.02},
		"Philly table 5, 16 GPUs on four servers":    {model.CommUnknown, locality.Spread{Servers: 4, Needed: 2}, 0.938, 0.02},
		"Philly table 5, 16 GPUs on eight servers":   {model.CommUnknown, locality.Spread{Servers: 8, Needed: 2}, 0.654, 0.02},
		"Gandiva figure 2, ResNet-50 on two nodes":   {model.CommUnknown, twoApart, 0.72, 0.02},
		"Gandiva figure 2, ResNet-50 on four nodes":  {model.CommUnknown, fourApart, 0.42, 0.02},
		"Gandiva figure 2, InceptionV3 on two nodes": {model.CommLow, twoApart, 0.98, 0.06},
		"Gandiva figure 2, InceptionV3 on four":      {model.CommLow, fourApart, 0.56, 0.25},
		"Themis table 1, Inception-v3 on two":        {model.CommLow, two, 1.00, 0.04},
		"Themis table 1, VGG16 on two servers":       {model.CommHigh, two, 0.776, 0.04},
		"Tiresias figure 3, VGG19":                   {model.CommHigh, two, 0.72, 0.03},
		"Tiresias figure 3, VGG16":                   {model.CommHigh, two, 0.73, 0.03},
		"Tiresias figure 3, VGG11":                   {model.CommHigh, two, 0.77, 0.03},
		"Tiresias figure 3, AlexNet":                 {model.CommHigh, two, 0.80, 0.06},
		"Tiresias figure 3, ResNet":                  {model.CommLow, two, 1, 0.04},
		"one GPU talks to nobody":                    {model.CommNone, four, 1, 1e-9},
	}
}

func TestSpeed_Measured(t *testing.T) {
	t.Parallel()
	off, all := 0.0, measured()
	for name, tc := range all {
		got := locality.Speed(tc.comm, tc.spread)
		must.InDelta(t, tc.speed, got, tc.within, must.Sprint(name))
		off += math.Abs(tc.speed-got) / float64(len(all))
	}
	must.Less(t, 0.05, off, must.Sprint("mean absolute error"))
}

func TestSpeed_FartherIsNeverFaster(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		comms := []model.Comm{model.CommNone, model.CommLow, model.CommUnknown, model.CommHigh}
		class := rapid.IntRange(0, 3).Draw(t, "class")
		needed := rapid.IntRange(0, 40).Draw(t, "needed")
		s := locality.Spread{Needed: needed, Servers: needed + rapid.IntRange(0, 200).Draw(t, "more"), Apart: rapid.Bool().Draw(t, "apart")}
		speed := locality.Speed(comms[class], s)
		must.Between(t, 0.1, speed, 1)

		wider := s
		wider.Servers++
		must.LessEq(t, speed, locality.Speed(comms[class], wider))
		wider = s
		wider.Apart = true
		must.LessEq(t, speed, locality.Speed(comms[class], wider))
		if class > 0 {
			must.GreaterEq(t, speed, locality.Speed(comms[class-1], s))
		}
	})
}

func TestOf(t *testing.T) {
	t.Parallel()
	levels := []string{"zone", "rack"}
	sixteen := model.Gang{Groups: []model.Group{{Name: "w", Count: 16, GPUs: 1}}}
	threes := model.Gang{Groups: []model.Group{{Name: "w", Count: 4, GPUs: 3}, {Name: "launcher", Count: 1}}}
	for name, tc := range map[string]struct {
		gang  model.Gang
		level string
		nodes []string
		want  locality.Spread
	}{
		"16 GPUs on two servers of a rack":         {sixteen, "rack", []string{"a", "a", "b"}, locality.Spread{Servers: 2, Needed: 2}},
		"16 GPUs across racks of a zone":           {sixteen, "zone", []string{"a", "b", "c"}, locality.Spread{Servers: 3, Needed: 2, Apart: true}},
		"two members of three GPUs share a server": {threes, model.LocalityNode, []string{"a"}, locality.Spread{Servers: 1, Needed: 2}},
		"across all": {threes, model.LocalityAny, []string{"a", "b"}, locality.Spread{Servers: 2, Needed: 2, Apart: true}},
	} {
		grant := model.Grant{Level: tc.level}
		for _, node := range tc.nodes {
			grant.Members = append(grant.Members, model.Member{Node: node})
		}
		must.Eq(t, tc.want, locality.Of(tc.gang, grant, levels, 8), must.Sprint(name))
	}
	must.False(t, locality.Apart(nil, model.LocalityAny), must.Sprint("a cluster without levels"))
}
