// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
)

// errNotFound says that Nomad has no such job or node.
var errNotFound = errors.New("unknown to Nomad")

// kind is what an event makes worth listing again.
type kind uint8

const (
	jobs kind = 1 << iota
	nodes
	allocs
	everything = jobs | nodes | allocs
)

// source is the part of Nomad's API that the follower reads. Each list bears the index that it was true at.
type source interface {
	Jobs(ctx context.Context) ([]*structs.JobListStub, uint64, error)
	Job(ctx context.Context, id JobID) ([]byte, error) // errNotFound
	Nodes(ctx context.Context) ([]nodeStub, uint64, error)
	Node(ctx context.Context, id string) (*structs.Node, error) // errNotFound
	Allocs(ctx context.Context) ([]*structs.AllocListStub, uint64, error)
	// Events sends what to list again, from an index on, until the context or the stream ends; then the channel closes.
	Events(ctx context.Context, index uint64) (<-chan kind, error)
}

// nodeStub is the part of a listed node that says whether it must be read again.
type nodeStub struct {
	ID          string
	ModifyIndex uint64
}

// client reads from Nomad's HTTP API.
type client struct{ api *api.Client }

const allNamespaces = "*"

func (c client) options(ctx context.Context, namespace string, params map[string]string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace, Params: params}).WithContext(ctx)
}

func (c client) Jobs(ctx context.Context) ([]*structs.JobListStub, uint64, error) {
	var out []*structs.JobListStub
	meta, err := c.api.Raw().Query("/v1/jobs", &out, c.options(ctx, allNamespaces, nil))
	if err != nil {
		return nil, 0, fmt.Errorf("listing Nomad's jobs: %w", err)
	}
	return out, meta.LastIndex, nil
}

func (c client) Job(ctx context.Context, id JobID) ([]byte, error) {
	body, err := c.api.Raw().Response("/v1/job/"+url.PathEscape(id.ID), c.options(ctx, id.Namespace, nil))
	if err != nil {
		return nil, readError("job "+id.String(), err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, readError("job "+id.String(), err)
	}
	return text, nil
}

func (c client) Nodes(ctx context.Context) ([]nodeStub, uint64, error) {
	var out []nodeStub
	meta, err := c.api.Raw().Query("/v1/nodes", &out, c.options(ctx, "", nil))
	if err != nil {
		return nil, 0, fmt.Errorf("listing Nomad's nodes: %w", err)
	}
	return out, meta.LastIndex, nil
}

func (c client) Node(ctx context.Context, id string) (*structs.Node, error) {
	out := &structs.Node{}
	if _, err := c.api.Raw().Query("/v1/node/"+url.PathEscape(id), out, c.options(ctx, "", nil)); err != nil {
		return nil, readError("node "+id, err)
	}
	return out, nil
}

func (c client) Allocs(ctx context.Context) ([]*structs.AllocListStub, uint64, error) {
	var out []*structs.AllocListStub
	params := map[string]string{"resources": "true", "task_states": "true"}
	meta, err := c.api.Raw().Query("/v1/allocations", &out, c.options(ctx, allNamespaces, params))
	if err != nil {
		return nil, 0, fmt.Errorf("listing Nomad's allocations: %w", err)
	}
	return out, meta.LastIndex, nil
}

func readError(what string, err error) error {
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound {
		return fmt.Errorf("%s: %w", what, errNotFound)
	}
	return fmt.Errorf("reading %s from Nomad: %w", what, err)
}

func (c client) Events(ctx context.Context, index uint64) (<-chan kind, error) {
	all := []string{"*"}
	topics := map[api.Topic][]string{
		api.TopicJob: all, api.TopicNode: all, api.TopicAllocation: all, api.TopicEvaluation: all,
	}
	stream, err := c.api.EventStream().Stream(ctx, topics, index, c.options(ctx, allNamespaces, nil))
	if err != nil {
		return nil, fmt.Errorf("opening Nomad's event stream: %w", err)
	}
	hints := make(chan kind)
	go func() {
		defer close(hints)
		for batch := range stream {
			if batch.Err != nil {
				return
			}
			select {
			case hints <- hintOf(batch.Events):
			case <-ctx.Done():
				return
			}
		}
	}()
	return hints, nil
}

// hintOf says what a batch of events makes worth listing again; nothing for a heartbeat. A purge in Nomad 1.6.3 shows
// as an evaluation only.
func hintOf(events []api.Event) kind {
	var hint kind
	for _, event := range events {
		switch event.Topic {
		case api.TopicJob:
			hint |= jobs
		case api.TopicNode:
			hint |= nodes
		case api.TopicAllocation:
			hint |= allocs
		case api.TopicEvaluation:
			if deregisters(event) {
				hint |= jobs | allocs
			}
		default: // we asked for no other
		}
	}
	return hint
}

func deregisters(event api.Event) bool {
	raw, err := json.Marshal(event.Payload["Evaluation"])
	if err != nil {
		return true
	}
	var evaluation struct{ TriggeredBy string }
	return json.Unmarshal(raw, &evaluation) != nil || evaluation.TriggeredBy == structs.EvalTriggerJobDeregister
}
