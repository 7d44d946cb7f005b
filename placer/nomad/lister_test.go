// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
)

// slow is a Nomad of which only so many jobs and nodes can be read before the time for a list is over.
type slow struct {
	*fake
	left int
}

var errTime = errors.New("out of time")

func (s *slow) Job(ctx context.Context, id JobID) ([]byte, error) {
	if s.left--; s.left < 0 {
		return nil, errTime
	}
	return s.fake.Job(ctx, id)
}

func (s *slow) Node(ctx context.Context, id string) (*structs.Node, error) {
	if s.left--; s.left < 0 {
		return nil, errTime
	}
	return s.fake.Node(ctx, id)
}

// TestListGoesOnWhereItBrokeOff: a cluster that takes longer to read than one list may take is read all the same.
func TestListGoesOnWhereItBrokeOff(t *testing.T) {
	from := &slow{fake: newFake()}
	for i := range 10 {
		node := fmt.Sprintf("node-%d", i)
		from.nodes[node] = &structs.Node{ID: node, ModifyIndex: 3}
		from.put(api.NewBatchJob(fmt.Sprintf("gang-%d", i), "", "global", 50))
		from.put(api.NewBatchJob(fmt.Sprintf("plain-%d", i), "", "global", 50))
	}
	l := newLister(from, func(job *api.Job) bool { return (*job.ID)[0] == 'g' })
	for range 10 {
		from.left = 4
		state, _, err := l.list(t.Context(), everything, nil)
		if err == nil {
			must.MapLen(t, 10, state.Nodes)
			must.MapLen(t, 10, state.Jobs)
			return
		}
		must.ErrorIs(t, err, errTime)
	}
	t.Fatal("the list starts from the beginning each time, so it never ends")
}
