// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package pluginconf

import (
	"fmt"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Consul says how to reach Consul. What is empty comes from the CONSUL_* variables, then from Consul's defaults.
type Consul struct {
	Address       string `codec:"address"`
	Token         string `codec:"token"`
	TokenFile     string `codec:"token_file"`
	Datacenter    string `codec:"datacenter"`
	CAFile        string `codec:"ca_file"`
	CertFile      string `codec:"cert_file"`
	KeyFile       string `codec:"key_file"`
	TLSServerName string `codec:"tls_server_name"`
}

// ConsulBlock is what Nomad checks the block "consul" against.
func ConsulBlock() *hclspec.Spec {
	return Strings("consul", "address", "token", "token_file", "datacenter", "ca_file", "cert_file", "key_file", "tls_server_name")
}

// Client makes a client. Nothing is asked of anybody yet.
func (c Consul) Client() (*consulapi.Client, error) {
	config := consulapi.DefaultConfig()
	Override(&config.Address, c.Address)
	Override(&config.Token, c.Token)
	Override(&config.TokenFile, c.TokenFile)
	Override(&config.Datacenter, c.Datacenter)
	Override(&config.TLSConfig.CAFile, c.CAFile)
	Override(&config.TLSConfig.CertFile, c.CertFile)
	Override(&config.TLSConfig.KeyFile, c.KeyFile)
	Override(&config.TLSConfig.Address, c.TLSServerName)
	if c.Token != "" {
		config.TokenFile = "" // the file would win over it, even one that comes from the environment
	}
	client, err := consulapi.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return client, nil
}

// Describe lists the effective configuration for the log, without secrets.
func (c Consul) Describe() []any {
	return []any{"consul_address", c.Address, "consul_token", Given(c.Token), "consul_token_file", c.TokenFile}
}
