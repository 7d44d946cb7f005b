// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"

	consulapi "github.com/hashicorp/consul/api"

	"github.com/nomad-muster/muster/placer/ledger"
)

// Connect makes the ledger's client from the plugin's configuration, on Consul. Nothing is asked of anybody yet.
func Connect(c Config) (Ledger, error) {
	config := consulapi.DefaultConfig() // honours the CONSUL_* variables
	override(&config.Address, c.Consul.Address)
	override(&config.Token, c.Consul.Token)
	override(&config.TokenFile, c.Consul.TokenFile)
	override(&config.Datacenter, c.Consul.Datacenter)
	override(&config.TLSConfig.CAFile, c.Consul.CAFile)
	override(&config.TLSConfig.CertFile, c.Consul.CertFile)
	override(&config.TLSConfig.KeyFile, c.Consul.KeyFile)
	override(&config.TLSConfig.Address, c.Consul.TLSServerName)
	if c.Consul.Token != "" {
		config.TokenFile = "" // the file would win over it, even one that comes from the environment
	}
	client, err := consulapi.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return ledger.New(ledger.NewConsul(client), c.Region), nil
}

func override(to *string, with string) {
	if with != "" {
		*to = with
	}
}
