// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package config

import "time"

// Config is everything that placer.hcl can say. A flag goes before an environment variable, that before the file, and
// that before the default.
type Config struct {
	// Region is Nomad's region. It is part of every key in Consul, so that two Nomad clusters on one Consul never meet.
	// Default "global", as Nomad's own; NOMAD_REGION is honoured.
	Region string
	// Name is what this placer calls itself in logs and as the leader. Default: the host's name.
	Name string
	// LogLevel is debug, info, warn or error. Default "info".
	LogLevel string
	// FenceTime is how long a node may be silent before its gang may go on elsewhere. Jobs are not admitted with a
	// shorter max_client_disconnect. Default 2m, at least 10s.
	FenceTime time.Duration
	// PlacementDeadline is how long after a grant Nomad may take until an allocation names every slot. After it all
	// slots are closed and the gang is queued again. Nomad's clients need 5 to 10 s to offer new slots, so at least
	// 20s. Default 60s.
	PlacementDeadline time.Duration
	// StartTimeout is how long after a grant every task may take to claim its slot: downloads, templates and prestart
	// tasks come before that. Default 15m, at least PlacementDeadline.
	StartTimeout time.Duration
	// MaxFailures is how many times in a row a gang's command may fail, at its start or later, before the gang fails for
	// good and its job is stopped with the reason. Drains, lost nodes and preemption are no failures, and a run of ten
	// minutes or a new version of the job starts the count anew. Default 8, 0 to 1000; 0 means no limit.
	MaxFailures int
	// Tick is how often the placer decides although nothing has changed, for deadlines and reasons that move with time.
	// Default 1s, 100ms to 1m.
	Tick time.Duration
	// RelistInterval is how often everything is listed from Nomad again although its event stream told of no change.
	// Default 30s, 1s to 10m.
	RelistInterval time.Duration
	// Topology names the levels above the node.
	Topology Topology
	// Ports are those that tasks without the muster driver meet on.
	Ports Ports
	// Consul is how to reach Consul.
	Consul Consul
	// Nomad is how to reach Nomad.
	Nomad Nomad
}

// Topology names the levels above the node.
type Topology struct {
	// Levels are the levels that muster_locality may name, outermost first, for example ["zone", "rack"]. A node's
	// labels come from its device plugin's config. Default: none.
	Levels []string
}

// Ports are those that tasks without the muster driver meet on (MUSTER_MASTER_PORT).
type Ports struct {
	// Base is the first port. A reservation takes three consecutive ones from here on the node of its rank 0. Put them
	// into the Nomad clients' reserved_ports. Default 20000, 1024 to 65000.
	Base int
}

// Consul is how to reach Consul. The CONSUL_* variables of Consul's own command line go before what is written here.
type Consul struct {
	// Address is host:port, or a URL with scheme. Default "127.0.0.1:8500"; CONSUL_HTTP_ADDR.
	Address string
	// Token is the ACL token. Default: none; CONSUL_HTTP_TOKEN.
	Token string
	// TLS is how https is spoken; CONSUL_CACERT, CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY, CONSUL_TLS_SERVER_NAME.
	TLS TLS
}

// Nomad is how to reach Nomad. The NOMAD_* variables of Nomad's own command line go before what is written here, except
// NOMAD_NAMESPACE: the placer looks at all namespaces.
type Nomad struct {
	// Address is a URL. Default "http://127.0.0.1:4646"; NOMAD_ADDR.
	Address string
	// Token is the ACL token. Default: none; NOMAD_TOKEN.
	Token string
	// TLS is how https is spoken; NOMAD_CACERT, NOMAD_CLIENT_CERT, NOMAD_CLIENT_KEY, NOMAD_TLS_SERVER_NAME.
	TLS TLS
}

// TLS is how https is spoken. All are paths of PEM files except ServerName.
type TLS struct {
	// CAFile holds the authorities to trust. Default: the system's.
	CAFile string
	// CertFile holds the certificate to show. Default: none.
	CertFile string
	// KeyFile holds the key of CertFile. Default: none.
	KeyFile string
	// ServerName is the name that the server's certificate must bear. Default: the host of the address.
	ServerName string
}

// Default is the configuration of an empty file on a host of that name.
func Default(hostname string) Config {
	return Config{
		Region:            "global",
		Name:              hostname,
		LogLevel:          "info",
		FenceTime:         2 * time.Minute,
		PlacementDeadline: time.Minute,
		StartTimeout:      15 * time.Minute,
		MaxFailures:       8,
		Tick:              time.Second,
		RelistInterval:    30 * time.Second,
		Ports:             Ports{Base: 20000},
		Consul:            Consul{Address: "127.0.0.1:8500"},
		Nomad:             Nomad{Address: "http://127.0.0.1:4646"},
	}
}
