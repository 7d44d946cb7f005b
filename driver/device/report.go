// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/placer/ledger"
)

// onChange logs a condition when it begins, changes or ends, and not while it lasts.
type onChange struct {
	log hclog.Logger

	mu   sync.Mutex
	last map[string]string // by topic
}

func newOnChange(log hclog.Logger) *onChange { return &onChange{log: log, last: map[string]string{}} }

// differs notes what is said about a topic, and says whether it is news.
func (o *onChange) differs(topic, text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, known := o.last[topic]; known && last == text {
		return false
	}
	o.last[topic] = text
	return true
}

// warn says what is wrong.
func (o *onChange) warn(topic, message string, pairs ...any) {
	if o.differs(topic, message+fmt.Sprint(pairs...)) {
		o.log.Warn(message, pairs...)
	}
}

// info says how things are.
func (o *onChange) info(topic, message string, pairs ...any) {
	if o.differs(topic, message+fmt.Sprint(pairs...)) {
		o.log.Info(message, pairs...)
	}
}

// clear says that what was wrong is over, if anything was.
func (o *onChange) clear(topic, message string, pairs ...any) {
	o.mu.Lock()
	_, known := o.last[topic]
	delete(o.last, topic)
	o.mu.Unlock()
	if known {
		o.log.Info(message, pairs...)
	}
}

// begins notes that a topic fails, and says whether it is the first with its prefix to do so.
func (o *onChange) begins(prefix, topic string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.failing(prefix) == 0
	o.last[prefix+topic] = ""
	return first
}

// ends notes that a topic fails no more, and says whether it was the last with its prefix that did.
func (o *onChange) ends(prefix, topic string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, failed := o.last[prefix+topic]
	delete(o.last, prefix+topic)
	return failed && o.failing(prefix) == 0
}

// failing counts the topics with a prefix; mu must be held.
func (o *onChange) failing(prefix string) int {
	n := 0
	for topic := range o.last {
		if strings.HasPrefix(topic, prefix) {
			n++
		}
	}
	return n
}

// Topics of requests to the ledger begin with one of these.
const (
	outageTopic  = "outage: "  // Consul does not answer: one line for all requests together
	refusedTopic = "refused: " // Consul answers this request with an error: one line each
)

// ledgerAnswered reports on one kind of request to the ledger.
func (e *engine) ledgerAnswered(ctx context.Context, request string, err error) {
	if ctx.Err() != nil {
		return
	}
	if (err == nil || !isOutage(err)) && e.once.ends(outageTopic, request) {
		e.log.Info("the ledger answers again")
	}
	var status consulapi.StatusError
	switch {
	case err == nil:
		e.once.clear(refusedTopic+request, "the ledger's answer is good again", "request", request)
	case isOutage(err):
		if e.once.begins(outageTopic, request) {
			e.log.Warn("the ledger can't be reached: this node goes on with what it last knew", "request", request, "error", err)
		}
	case errors.As(err, &status):
		e.once.warn(refusedTopic+request, "the ledger refuses a request: this node goes on with what it last knew; check the ACL policy of the plugin's Consul token",
			"request", request, "error", err)
	default:
		e.once.warn(refusedTopic+request, "the ledger's answer is of no use: this node goes on with what it last knew", "request", request, "error", err)
	}
}

// isOutage says whether an error means that Consul did not answer, or that it has no leader.
func isOutage(err error) bool {
	var status consulapi.StatusError
	var taken *ledger.NameTakenError
	var slot *ledger.SlotError
	var claimed *ledger.ClaimedError
	switch {
	case errors.As(err, &status):
		return status.Code >= 500
	case errors.As(err, &taken), errors.Is(err, ledger.ErrNotFound), errors.Is(err, ledger.ErrNewerVersion),
		errors.As(err, &slot), errors.As(err, &claimed), errors.Is(err, ledger.ErrConflict), errors.Is(err, ledger.ErrNoSession), errors.Is(err, ledger.ErrTooLarge):
		return false
	}
	return true
}
