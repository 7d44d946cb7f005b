// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package config

import "flag"

// Flags are the options that the command line may override.
type Flags struct {
	region, name, logLevel, consulAddress, nomadAddress string
}

// Register adds the flags to a flag set.
func (f *Flags) Register(set *flag.FlagSet) {
	set.StringVar(&f.region, "region", "", "Nomad's region")
	set.StringVar(&f.name, "name", "", "name of this placer")
	set.StringVar(&f.logLevel, "log-level", "", "debug, info, warn or error")
	set.StringVar(&f.consulAddress, "consul-address", "", "address of Consul")
	set.StringVar(&f.nomadAddress, "nomad-address", "", "address of Nomad")
}

// Apply puts the flags that were set over a configuration. Validate it afterwards.
func (f *Flags) Apply(c Config) Config {
	setIf(&c.Region, f.region)
	setIf(&c.Name, f.name)
	setIf(&c.LogLevel, f.logLevel)
	setIf(&c.Consul.Address, f.consulAddress)
	setIf(&c.Nomad.Address, f.nomadAddress)
	return c
}
