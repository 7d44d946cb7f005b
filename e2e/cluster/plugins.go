// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// deviceConfig is the body of the device plugin's config block for one client.
func (c *Cluster) deviceConfig(client *Client) string {
	var b strings.Builder
	fmt.Fprintf(&b, "    dev_root  = %q\n", client.DevRoot)
	fmt.Fprintf(&b, "    state_dir = %q\n", filepath.Join(client.Dir, "muster"))
	token := c.tokens.devices[client.Node.Name]
	fmt.Fprintf(&b, "    consul {\n      address = %q\n      token   = %q\n    }\n", c.consulAddr, token.Consul)
	fmt.Fprintf(&b, "    nomad {\n      address = %q\n      token   = %q\n    }\n", client.HTTP, token.Nomad)
	fmt.Fprintf(&b, "    topology {\n")
	for _, level := range slices.Sorted(maps.Keys(client.Node.Topology)) {
		fmt.Fprintf(&b, "      %s = %q\n", level, client.Node.Topology[level])
	}
	fmt.Fprintf(&b, "    }")
	return b.String()
}

// tasksSuffix ends the name of the cgroup below which a client's tasks have theirs.
const tasksSuffix = "-tasks"

// driverConfig is the body of the task driver's config block for one client.
func (c *Cluster) driverConfig(client *Client) string {
	var b strings.Builder
	token := c.tokens.drivers[client.Node.Name]
	fmt.Fprintf(&b, "    consul {\n      address = %q\n      token   = %q\n    }\n", c.consulAddr, token.Consul)
	fmt.Fprintf(&b, "    state_dir     = %q\n", filepath.Join(client.Dir, "muster-tasks"))
	fmt.Fprintf(&b, "    cgroup_parent = %q\n", string(c.Mark)+"-"+client.Node.Name+tasksSuffix)
	fmt.Fprintf(&b, "    dev_root      = %q", client.DevRoot)
	return b.String()
}
