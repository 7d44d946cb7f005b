// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/e2e/fakenvml"
)

// What every made-up machine has beside its GPUs.
const (
	nodeCPUMHz = 64000
	// NodeMemoryMB is the memory of a node.
	NodeMemoryMB = 512 << 10
	dynamicPorts = 400 // of each client, for tasks
)

// Node is one made-up GPU machine.
type Node struct {
	Name     string
	As       string            // its name in Nomad; empty: Name
	Topology map[string]string // level -> label
	Machine  fakenvml.Machine
}

// Client is the Nomad client agent of one node.
type Client struct {
	*Process
	Node    Node
	Dir     string            // its state
	HTTP    string            // URL of its API
	DevRoot string            // where its GPUs' device nodes are
	GPUs    *fakenvml.Control // changes its GPUs while it runs

	holder *Process // keeps the client's own mount namespace while the agent is ended and started again
}

func (c *Cluster) startClients(ctx context.Context) error {
	for i, node := range c.config.Nodes {
		client, err := c.newClient(ctx, i, node)
		if err != nil {
			return err
		}
		if err := client.Start(); err != nil {
			return err
		}
		c.Clients = append(c.Clients, client)
	}
	return nil
}

// AddClient starts the client of one more node.
func (c *Cluster) AddClient(ctx context.Context, node Node) (*Client, error) {
	client, err := c.newClient(ctx, len(c.Clients), node)
	if err != nil {
		return nil, err
	}
	c.Clients = append(c.Clients, client)
	return client, client.Start()
}

func (c *Cluster) newClient(ctx context.Context, i int, node Node) (*Client, error) {
	client, err := c.prepareClient(node)
	if err != nil {
		return nil, err
	}
	if err := c.startHolder(ctx, client); err != nil {
		return nil, err
	}
	ports, err := c.ports.takeThree()
	if err != nil {
		return nil, err
	}
	client.HTTP = "http://" + loopback(ports[0])
	first := 20000 + i*dynamicPorts
	config, err := c.configure("client", client.Node.Name, map[string]any{
		"Node": cmp.Or(node.As, node.Name), "Mark": c.Mark, "Dir": client.Dir, "Plugins": c.plugins(),
		"HTTP": ports[0], "RPC": ports[1], "Serf": ports[2], "Server": c.nomadRPC, "Consul": c.consulAddr,
		"CPU": nodeCPUMHz, "Memory": NodeMemoryMB, "FirstDynamic": first, "LastDynamic": first + dynamicPorts - 1,
		"Docker": c.dockerAddr, "Drivers": c.drivers(), "ACL": c.config.ACL,
		"DeviceConfig": c.deviceConfig(client), "DriverConfig": c.driverConfig(client),
	})
	if err != nil {
		return nil, err
	}
	// nsenter becomes the agent itself, so that a signal reaches the agent.
	args := []string{"--mount=/proc/" + strconv.Itoa(client.holder.PID()) + "/ns/mnt", "--", c.binaries.Nomad, "agent", "-config", config}
	client.Process = c.newProcess(node.Name, "nsenter", args, client.environ(c.binaries.NVML))
	return client, nil
}

func (c *Cluster) drivers() string {
	if c.dockerAddr != "" {
		return "muster,raw_exec,docker"
	}
	return "muster,raw_exec"
}

// prepareClient makes the files of a node: its machine, its device nodes and its identity.
func (c *Cluster) prepareClient(node Node) (*Client, error) {
	dir := filepath.Join(c.Dir(), node.Name)
	client := &Client{Node: node, Dir: dir, DevRoot: filepath.Join(dir, "dev")}
	// Nomad would make its data folder so that only root gets through it, and tasks are not run by root.
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		return nil, fmt.Errorf("folder of node %s: %w", node.Name, err)
	}
	_, err := fakenvml.MakeDevices(client.DevRoot, len(node.Machine.GPUs))
	if err != nil {
		return nil, fmt.Errorf("device nodes of node %s: %w", node.Name, err)
	}
	if err := node.Machine.Of(string(c.Mark)).WriteFile(client.machineFile()); err != nil {
		return nil, fmt.Errorf("machine of node %s: %w", node.Name, err)
	}
	if client.GPUs, err = fakenvml.NewControl(client.controlFile()); err != nil {
		return nil, fmt.Errorf("machine of node %s: %w", node.Name, err)
	}
	return client, client.NewBoot(true)
}

// NewBoot gives the node a new boot ID, as if it had been started anew; with a new machine ID as well it is another
// machine of the same name.
func (n *Client) NewBoot(newMachine bool) error {
	digits := make([]byte, 32)
	if _, err := rand.Read(digits); err != nil {
		return fmt.Errorf("identity of node %s: %w", n.Node.Name, err)
	}
	text := hex.EncodeToString(digits)
	boot := strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:32]}, "-")
	if err := os.WriteFile(n.bootFile(), []byte(boot+"\n"), 0o644); err != nil {
		return fmt.Errorf("boot ID of node %s: %w", n.Node.Name, err)
	}
	if !newMachine {
		return nil
	}
	if err := os.WriteFile(n.machineIDFile(), []byte(text[32:]+"\n"), 0o644); err != nil {
		return fmt.Errorf("machine ID of node %s: %w", n.Node.Name, err)
	}
	return nil
}

func (n *Client) machineFile() string   { return filepath.Join(n.Dir, "machine") }
func (n *Client) controlFile() string   { return filepath.Join(n.Dir, "control") }
func (n *Client) bootFile() string      { return filepath.Join(n.Dir, "boot_id") }
func (n *Client) machineIDFile() string { return filepath.Join(n.Dir, "machine-id") }

// environ makes go-nvml find the made-up GPUs of this node.
func (n *Client) environ(library string) []string {
	return []string{
		"LD_LIBRARY_PATH=" + filepath.Dir(library), "FAKENVML_MACHINE=" + n.machineFile(),
		"FAKENVML_CONTROL=" + n.controlFile(), "FAKENVML_DEV_ROOT=" + n.DevRoot,
	}
}

// startHolder makes a mount namespace in which the node's identity files lie over the machine's own, and keeps it.
func (c *Cluster) startHolder(ctx context.Context, client *Client) error {
	const script = `mount --bind "$1" /etc/machine-id && mount --bind "$2" /proc/sys/kernel/random/boot_id && echo ready && exec sleep infinity`
	name := client.Node.Name + "-namespace"
	client.holder = c.newProcess(name, "unshare", []string{
		"--mount", "--propagation", "private", "sh", "-c", script, "sh", client.machineIDFile(), client.bootFile(),
	}, nil)
	if err := client.holder.Start(); err != nil {
		return err
	}
	return Poll(ctx, "the mount namespace of node "+client.Node.Name, readyWithin, func(context.Context) (bool, string) {
		text := client.holder.Tail(5)
		return text == "ready", text
	})
}
