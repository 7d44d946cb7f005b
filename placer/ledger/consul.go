// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	consulapi "github.com/hashicorp/consul/api"
)

// requestTimeout is how long a request that does not wait for anything may take. Consul's agents keep a request for up
// to 7 s while the servers elect a leader.
const requestTimeout = 15 * time.Second

// lockDelay is the shortest that Consul's API can say; 0 would mean 15 s.
const lockDelay = time.Millisecond

// checkRetention is how long the dead service of a killed process is shown; Consul takes no less.
const checkRetention = "1m"

// Consul is a Store in Consul's KV, through the agent that the client speaks to. Tokens, TLS, namespace and partition
// are the client's.
type Consul struct{ client *consulapi.Client }

// NewConsul makes a store of a client.
func NewConsul(client *consulapi.Client) *Consul { return &Consul{client: client} }

// query makes the options of a consistent read that waits until an index is past after.
func query(ctx context.Context, after uint64, wait time.Duration) (*consulapi.QueryOptions, context.CancelFunc) {
	options := &consulapi.QueryOptions{RequireConsistent: true}
	if wait > 0 {
		options.WaitIndex, options.WaitTime = after, wait
	} else {
		wait = 0
	}
	// Consul adds up to a sixteenth to the wait, so that watches do not end all at once.
	ctx, cancel := context.WithTimeout(ctx, wait+wait/16+requestTimeout)
	return options.WithContext(ctx), cancel
}

// abandoned says that a watch ended early and without a change. Servers that restore a snapshot end all watches so, with
// what was there before; what is there now has to be read again, or the watcher would wait for an index that is far off.
func abandoned(index, after uint64, start time.Time, wait time.Duration) bool {
	return after > 0 && index <= after && time.Since(start) < wait
}

// Get implements Store.
func (c *Consul) Get(ctx context.Context, key string) (Entry, error) {
	entry, _, err := c.Watch(ctx, key, 0, 0)
	return entry, err
}

// List implements Store.
func (c *Consul) List(ctx context.Context, prefix string) (Listing, error) {
	return c.WatchPrefix(ctx, prefix, 0, 0)
}

// Watch implements Store.
func (c *Consul) Watch(ctx context.Context, key string, after uint64, wait time.Duration) (Entry, uint64, error) {
	start := time.Now()
	options, cancel := query(ctx, after, wait)
	defer cancel()
	pair, meta, err := c.client.KV().Get(key, options)
	if err != nil {
		return Entry{}, 0, fmt.Errorf("reading %s: %w", key, err)
	}
	if abandoned(meta.LastIndex, after, start, wait) {
		return c.Watch(ctx, key, 0, 0)
	}
	// Index 0 would make the next watch return at once, for ever.
	index := max(meta.LastIndex, 1)
	if pair == nil {
		return Entry{}, index, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	return entryOf(pair), index, nil
}

// WatchPrefix implements Store.
func (c *Consul) WatchPrefix(ctx context.Context, prefix string, after uint64, wait time.Duration) (Listing, error) {
	start := time.Now()
	options, cancel := query(ctx, after, wait)
	defer cancel()
	pairs, meta, err := c.client.KV().List(prefix, options)
	if err != nil {
		return Listing{}, fmt.Errorf("listing %s: %w", prefix, err)
	}
	if abandoned(meta.LastIndex, after, start, wait) {
		return c.WatchPrefix(ctx, prefix, 0, 0)
	}
	listing := Listing{Index: max(meta.LastIndex, 1), Entries: make([]Entry, 0, len(pairs))}
	for _, pair := range pairs {
		listing.Entries = append(listing.Entries, entryOf(pair))
	}
	return listing, nil
}

func entryOf(pair *consulapi.KVPair) Entry {
	return Entry{Key: pair.Key, Value: pair.Value, Index: pair.ModifyIndex, Session: pair.Session}
}

// Txn implements Store. The client's own call for transactions hides the status of an answer, which decides whether the
// outcome is known.
func (c *Consul) Txn(ctx context.Context, ops []Op) ([]Entry, error) {
	if err := checkSize(ops); err != nil {
		return nil, err
	}
	request := make(consulapi.TxnOps, 0, len(ops))
	for _, op := range ops {
		request = append(request, &consulapi.TxnOp{KV: &consulapi.KVTxnOp{
			Verb: consulapi.KVOp(op.Verb), Key: op.Key, Value: op.Value, Index: op.Index, Session: op.Session,
		}})
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	var response consulapi.TxnResponse
	_, err := c.client.Raw().Write("/v1/txn", request, &response, (&consulapi.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return nil, txnError(err, sent.Load(), ops)
	}
	return changedEntries(ops, response.Results), nil
}

// changedEntries are the results of the operations that set something; Consul also returns the keys that were checked.
func changedEntries(ops []Op, results consulapi.TxnResults) []Entry {
	entries := make([]Entry, 0, len(results))
	for _, result := range results {
		pair := result.KV
		if pair != nil && slices.ContainsFunc(ops, func(op Op) bool { return op.Key == pair.Key && op.sets() }) &&
			!slices.ContainsFunc(entries, func(e Entry) bool { return e.Key == pair.Key }) {
			entries = append(entries, Entry{Key: pair.Key, Index: pair.ModifyIndex, Session: pair.Session})
		}
	}
	return entries
}

// txnError tells apart: refused for a condition, refused otherwise, never sent, and unknown.
func txnError(err error, sent bool, ops []Op) error {
	var status consulapi.StatusError
	switch {
	case !errors.As(err, &status) && sent:
		return fmt.Errorf("transaction: %w: %w", ErrUnknownOutcome, err)
	case !errors.As(err, &status):
		return fmt.Errorf("transaction: not sent: %w", err)
	case status.Code == http.StatusForbidden:
		return fmt.Errorf("transaction: %w: %w", ErrForbidden, err)
	case status.Code == http.StatusConflict:
		return conflictOf(status.Body, ops)
	case status.Code == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("transaction: %w: %w (keep Consul's txn_max_req_len and kv_max_value_size at their defaults or above)", ErrTooLarge, err)
	case status.Code >= http.StatusInternalServerError:
		return fmt.Errorf("transaction: %w: %w", ErrUnknownOutcome, err)
	}
	return fmt.Errorf("transaction: %w", err)
}

// permissionDenied is how Consul begins to say that an operation's token lacks a right. It answers as if a condition had
// failed, but trying again does not help.
const permissionDenied = "Permission denied"

// conflictOf reads which operations failed.
func conflictOf(body string, ops []Op) error {
	var response consulapi.TxnResponse
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		return fmt.Errorf("transaction: %w: answer can't be read: %w", ErrConflict, err)
	}
	conflict := &ConflictError{}
	for _, e := range response.Errors {
		if strings.HasPrefix(e.What, permissionDenied) {
			return fmt.Errorf("transaction: %w: %s", ErrForbidden, e.What)
		}
		failed := OpError{Op: e.OpIndex, Why: e.What}
		if e.OpIndex >= 0 && e.OpIndex < len(ops) {
			failed.Verb, failed.Key = ops[e.OpIndex].Verb, ops[e.OpIndex].Key
		}
		conflict.Ops = append(conflict.Ops, failed)
	}
	return conflict
}

// CreateSession implements Store.
func (c *Consul) CreateSession(ctx context.Context, spec SessionSpec) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	entry := &consulapi.SessionEntry{
		Name: spec.Name, LockDelay: lockDelay,
		Behavior:   consulapi.SessionBehaviorRelease,
		NodeChecks: []string{"serfHealth"}, // the agent's own membership
	}
	if spec.Delete {
		entry.Behavior = consulapi.SessionBehaviorDelete
	}
	if spec.TTL > 0 {
		entry.TTL = spec.TTL.String()
	}
	for _, id := range spec.Checks {
		entry.ServiceChecks = append(entry.ServiceChecks, consulapi.ServiceCheck{ID: id})
	}
	id, _, err := c.client.Session().Create(entry, (&consulapi.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("creating session %q: %w", spec.Name, err)
	}
	return id, nil
}

// RenewSession implements Store.
func (c *Consul) RenewSession(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	entry, _, err := c.client.Session().Renew(id, (&consulapi.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("renewing session %s: %w", id, err)
	}
	if entry == nil {
		return fmt.Errorf("renewing session %s: %w", id, ErrNoSession)
	}
	return nil
}

// DestroySession implements Store.
func (c *Consul) DestroySession(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := c.client.Session().Destroy(id, (&consulapi.WriteOptions{}).WithContext(ctx)); err != nil {
		return fmt.Errorf("ending session %s: %w", id, err)
	}
	return nil
}

// RegisterCheck implements Store. It returns when the servers know of the check, so that a session can rest on it.
func (c *Consul) RegisterCheck(ctx context.Context, spec CheckSpec) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	service := &consulapi.AgentServiceRegistration{ID: spec.ID, Name: spec.Service, Check: &consulapi.AgentServiceCheck{
		CheckID: spec.ID, TTL: spec.TTL.String(), Status: consulapi.HealthPassing, DeregisterCriticalServiceAfter: checkRetention,
	}}
	if err := c.client.Agent().ServiceRegisterOpts(service, consulapi.ServiceRegisterOpts{}.WithContext(ctx)); err != nil {
		return fmt.Errorf("registering check %s: %w", spec.ID, err)
	}
	for index := uint64(0); ; {
		options := &consulapi.QueryOptions{RequireConsistent: true, WaitIndex: index, WaitTime: time.Second}
		checks, meta, err := c.client.Health().Checks(spec.Service, options.WithContext(ctx))
		if err != nil {
			return fmt.Errorf("waiting for check %s: %w", spec.ID, err)
		}
		if slices.ContainsFunc(checks, func(check *consulapi.HealthCheck) bool { return check.CheckID == spec.ID }) {
			return nil
		}
		index = max(meta.LastIndex, 1)
	}
}

// PassCheck implements Store.
func (c *Consul) PassCheck(ctx context.Context, spec CheckSpec) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := c.client.Agent().UpdateTTLOpts(spec.ID, "", consulapi.HealthPassing, (&consulapi.QueryOptions{}).WithContext(ctx)); err != nil {
		return fmt.Errorf("passing check %s: %w", spec.ID, err)
	}
	return nil
}

// RemoveCheck implements Store.
func (c *Consul) RemoveCheck(ctx context.Context, spec CheckSpec) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := c.client.Agent().ServiceDeregisterOpts(spec.ID, (&consulapi.QueryOptions{}).WithContext(ctx))
	var status consulapi.StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing check %s: %w", spec.ID, err)
	}
	return nil
}
