// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import "github.com/nomad-muster/muster/placer/ledger"

// Connect makes the ledger's client from the plugin's configuration, on Consul. Nothing is asked of anybody yet.
func Connect(c Config) (Ledger, error) {
	client, err := c.Consul.Client()
	if err != nil {
		return nil, err
	}
	return ledger.New(ledger.NewConsul(client), c.Region), nil
}
