// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"
)

// Environ applies the variables that have an option of their own: NOMAD_REGION, and for each client the addresses,
// tokens and TLS files of its own command line. The lookup is os.LookupEnv.
func (c Config) Environ(lookup func(string) (string, bool)) Config {
	for name, into := range map[string]*string{
		"NOMAD_REGION":           &c.Region,
		"CONSUL_HTTP_ADDR":       &c.Consul.Address,
		"CONSUL_HTTP_TOKEN":      &c.Consul.Token,
		"CONSUL_CACERT":          &c.Consul.TLS.CAFile,
		"CONSUL_CLIENT_CERT":     &c.Consul.TLS.CertFile,
		"CONSUL_CLIENT_KEY":      &c.Consul.TLS.KeyFile,
		"CONSUL_TLS_SERVER_NAME": &c.Consul.TLS.ServerName,
		"NOMAD_ADDR":             &c.Nomad.Address,
		"NOMAD_TOKEN":            &c.Nomad.Token,
		"NOMAD_CACERT":           &c.Nomad.TLS.CAFile,
		"NOMAD_CLIENT_CERT":      &c.Nomad.TLS.CertFile,
		"NOMAD_CLIENT_KEY":       &c.Nomad.TLS.KeyFile,
		"NOMAD_TLS_SERVER_NAME":  &c.Nomad.TLS.ServerName,
	} {
		if value, set := lookup(name); set && value != "" {
			*into = value
		}
	}
	return c
}

// Client is the configuration of Consul's client. Variables that have no option here (CONSUL_HTTP_SSL and others) hold
// as Consul's own client reads them.
func (c Consul) Client() *consulapi.Config {
	out := consulapi.DefaultConfig()
	out.Address = c.Address
	if c.Token != "" {
		out.Token, out.TokenFile = c.Token, ""
	}
	setIf(&out.TLSConfig.CAFile, c.TLS.CAFile)
	setIf(&out.TLSConfig.CertFile, c.TLS.CertFile)
	setIf(&out.TLSConfig.KeyFile, c.TLS.KeyFile)
	setIf(&out.TLSConfig.Address, c.TLS.ServerName)
	return out
}

// Client is the configuration of Nomad's client for one region. The namespace of the environment is dropped: a placer
// that runs as a Nomad job would else see its own namespace only.
func (n Nomad) Client(region string) *nomadapi.Config {
	out := nomadapi.DefaultConfig()
	out.Address = n.Address
	out.Region = region
	out.Namespace = ""
	setIf(&out.SecretID, n.Token)
	setIf(&out.TLSConfig.CACert, n.TLS.CAFile)
	setIf(&out.TLSConfig.ClientCert, n.TLS.CertFile)
	setIf(&out.TLSConfig.ClientKey, n.TLS.KeyFile)
	setIf(&out.TLSConfig.TLSServerName, n.TLS.ServerName)
	return out
}

func setIf(into *string, value string) {
	if value != "" {
		*into = value
	}
}
