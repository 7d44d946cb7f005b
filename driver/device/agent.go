// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	nomadapi "github.com/hashicorp/nomad/api"

	"github.com/hashicorp/go-sockaddr"

	"github.com/nomad-muster/muster/driver/pluginconf"
)

// agent is what the plugin needs of the local Nomad agent.
type agent interface {
	// Self says who the agent is.
	Self(ctx context.Context) (agentSelf, error)
	// Allocations lists what Nomad has placed on a node, as its client reports it.
	Allocations(ctx context.Context, nodeID string) ([]allocation, error)
}

// agentSelf is a Nomad client agent's identity.
type agentSelf struct {
	node    string // name
	nodeID  string
	address string // advertised; empty: none
}

// allocation is what the plugin reads of a Nomad allocation.
type allocation struct {
	id          string
	namespace   string
	job         string
	parent      string // of a periodic or dispatched child; empty: none
	group       string
	jobCreated  uint64 // CreateIndex of its job; 0: not known
	created     uint64 // its own CreateIndex
	ended       bool   // its client says that it is over
	succeeded   bool   // it has ended well, by itself
	forgotten   bool   // Nomad gave it up without its client's word: only processes tell
	stopping    bool   // Nomad is ending it, or will not start it
	instanceIDs map[string][]string
}

// uses says whether the allocation names any instance of a reservation.
func (a allocation) uses(has func(instanceID string) bool) bool {
	for _, ids := range a.instanceIDs {
		if slices.ContainsFunc(ids, has) {
			return true
		}
	}
	return false
}

// nomadAgent asks a real agent.
type nomadAgent struct{ client *nomadapi.Client }

func newNomadAgent(c NomadConfig) (nomadAgent, error) {
	config := nomadapi.DefaultConfig()
	config.Namespace = "" // of whoever started the agent; nothing here has one
	pluginconf.Override(&config.Address, c.Address)
	pluginconf.Override(&config.SecretID, c.Token)
	pluginconf.Override(&config.TLSConfig.CACert, c.CAFile)
	pluginconf.Override(&config.TLSConfig.ClientCert, c.CertFile)
	pluginconf.Override(&config.TLSConfig.ClientKey, c.KeyFile)
	pluginconf.Override(&config.TLSConfig.TLSServerName, c.TLSServerName)
	client, err := nomadapi.NewClient(config)
	if err != nil {
		return nomadAgent{}, fmt.Errorf("nomad: %w", err)
	}
	return nomadAgent{client: client}, nil
}

// Self implements agent.
func (n nomadAgent) Self(ctx context.Context) (agentSelf, error) {
	// Agent().Self takes no context, so that a hanging agent would hang the caller.
	var answer nomadapi.AgentSelf
	if _, err := n.client.Raw().Query("/v1/agent/self", &answer, (&nomadapi.QueryOptions{}).WithContext(ctx)); err != nil {
		return agentSelf{}, fmt.Errorf("asking the Nomad agent who it is: %w", err)
	}
	self := agentSelf{nodeID: answer.Stats["client"]["node_id"]}
	if self.nodeID == "" {
		return agentSelf{}, errors.New("the Nomad agent that answers is not a client: set nomad { address } to the local client agent")
	}
	self.node, _ = answer.Config["NodeName"].(string)
	if self.node == "" {
		var err error
		if self.node, err = os.Hostname(); err != nil { // as Nomad does
			return agentSelf{}, fmt.Errorf("the Nomad agent has no name and the machine neither: %w", err)
		}
	}
	if advertised, ok := answer.Config["AdvertiseAddrs"].(map[string]any); ok {
		http, _ := advertised["HTTP"].(string)
		self.address = hostPart(http)
	}
	return self, nil
}

// hostPart cuts the port off; an address that means "all interfaces" is none.
func hostPart(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return ""
	}
	return host
}

// privateAddress is this machine's address in a private network.
func privateAddress() (string, error) {
	address, err := sockaddr.GetPrivateIP()
	if err == nil && address == "" {
		err = errors.New("this machine has none")
	}
	if err != nil {
		return "", fmt.Errorf("looking for a private address: %w; set the option `address`", err)
	}
	return address, nil
}

// Allocations implements agent.
func (n nomadAgent) Allocations(ctx context.Context, nodeID string) ([]allocation, error) {
	list, _, err := n.client.Nodes().Allocations(nodeID, (&nomadapi.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("asking the Nomad agent for this node's allocations: %w", err)
	}
	all := make([]allocation, 0, len(list))
	for _, a := range list {
		all = append(all, allocationOf(a))
	}
	return all, nil
}

func allocationOf(a *nomadapi.Allocation) allocation {
	out := allocation{
		id: a.ID, namespace: a.Namespace, job: a.JobID, group: a.TaskGroup, created: a.CreateIndex,
		ended:       a.ClientStatus == nomadapi.AllocClientStatusComplete || a.ClientStatus == nomadapi.AllocClientStatusFailed,
		succeeded:   a.ClientStatus == nomadapi.AllocClientStatusComplete && a.DesiredStatus == nomadapi.AllocDesiredStatusRun,
		forgotten:   a.ClientStatus == nomadapi.AllocClientStatusLost,
		stopping:    a.DesiredStatus != nomadapi.AllocDesiredStatusRun,
		instanceIDs: map[string][]string{},
	}
	if a.Job != nil {
		if a.Job.ParentID != nil {
			out.parent = *a.Job.ParentID
		}
		if a.Job.CreateIndex != nil {
			out.jobCreated = *a.Job.CreateIndex
		}
	}
	if a.AllocatedResources != nil {
		for task, resources := range a.AllocatedResources.Tasks {
			for _, d := range resources.Devices {
				out.instanceIDs[task] = append(out.instanceIDs[task], d.DeviceIDs...)
			}
		}
	}
	return out
}
