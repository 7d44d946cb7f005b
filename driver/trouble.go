// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"sync"

	"github.com/hashicorp/go-hclog"
)

// trouble tells once when a task's ledger becomes unreachable, whatever it was doing, and once when all of that works
// again.
type trouble struct {
	logger hclog.Logger
	tell   func(string)

	mu      sync.Mutex // protects failing
	failing map[string]bool
}

func newTrouble(logger hclog.Logger, tell func(string)) *trouble {
	return &trouble{logger: logger, tell: tell, failing: map[string]bool{}}
}

// of makes the report function of one activity; nil reports that it works.
func (t *trouble) of(activity string) func(error) {
	return func(err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if (err != nil) == t.failing[activity] {
			return
		}
		before := len(t.failing)
		if err == nil {
			delete(t.failing, activity)
			if before == 1 {
				t.logger.Info("the ledger can be reached again")
				t.tell("Consul can be reached again")
			}
			return
		}
		t.failing[activity] = true
		t.logger.Warn("the ledger can't be reached; trying on", "activity", activity, "error", err)
		if before == 0 {
			t.tell("Consul can't be reached, trying on (" + activity + "): " + err.Error())
		}
	}
}
