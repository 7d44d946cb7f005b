// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"
)

// agentLifetime bounds the life of the Consul agent that the tests start.
const agentLifetime = 10 * time.Minute

// agent is the one Consul agent of this test binary, started by the first test that asks for it.
var agent struct {
	once sync.Once
	cmd  *exec.Cmd
	addr string
	skip string // why there is none
}

func TestMain(m *testing.M) {
	if addr := os.Getenv(candidateEnv); addr != "" {
		candidate(addr)
		return
	}
	flag.Parse()
	code := m.Run()
	if agent.cmd != nil {
		_ = agent.cmd.Process.Kill()
		_ = agent.cmd.Wait()
	}
	os.Exit(code)
}

// consulClient is a client of the agent; the test is skipped, with the reason, when there is no Consul.
func consulClient(tb testing.TB) *consulapi.Client {
	tb.Helper()
	agent.once.Do(startAgent)
	if agent.skip != "" {
		tb.Skip(agent.skip)
	}
	client, err := newClient(agent.addr)
	must.NoError(tb, err)
	return client
}

func newClient(addr string) (*consulapi.Client, error) {
	return consulapi.NewClient(&consulapi.Config{Address: addr})
}

// consulBinary finds Consul: CONSUL_BIN, the repository's bin folder, PATH.
func consulBinary() (string, error) {
	if path := os.Getenv("CONSUL_BIN"); path != "" {
		return path, nil
	}
	if path, err := filepath.Abs("../../bin/consul"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return exec.LookPath("consul")
}

func startAgent() {
	binary, err := consulBinary()
	if err != nil {
		agent.skip = "no Consul: set CONSUL_BIN, or build bin/consul"
		return
	}
	ports, err := freePorts(3)
	if err != nil {
		agent.skip = fmt.Sprintf("no free ports: %v", err)
		return
	}
	config := fmt.Sprintf(`ports { http = %d, server = %d, serf_lan = %d, serf_wan = -1, dns = -1, grpc = -1, grpc_tls = -1 }`, ports[0], ports[1], ports[2])
	ctx, cancel := context.WithTimeout(context.Background(), agentLifetime)
	context.AfterFunc(ctx, cancel)
	cmd := exec.CommandContext(ctx, binary, "agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-node=ledger-test", "-log-level=error", "-hcl", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		agent.skip = fmt.Sprintf("Consul does not start: %v", err)
		return
	}
	agent.cmd, agent.addr = cmd, fmt.Sprintf("127.0.0.1:%d", ports[0])
	if err := awaitAgent(); err != nil {
		agent.skip = fmt.Sprintf("Consul does not get ready: %v", err)
	}
}

// awaitAgent waits until sessions can be made, which needs a leader that knows this node.
func awaitAgent() error {
	client, err := newClient(agent.addr)
	if err != nil {
		return err
	}
	store := NewConsul(client)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		id, createErr := store.CreateSession(ctx, SessionSpec{Name: "ready"})
		cancel()
		if createErr == nil {
			return store.DestroySession(context.Background(), id)
		}
		err = createErr
		pause(context.Background(), 50*time.Millisecond)
	}
	return err
}

// freePorts finds ports that are free for TCP and UDP, below those that the kernel gives to outgoing connections, which
// might take one before the agent does.
func freePorts(n int) ([]int, error) {
	var ports []int
	for port := 10000 + rand.IntN(9000); port < 20000 && len(ports) < n; port++ {
		tcp, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer tcp.Close()
		udp, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer udp.Close()
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, errors.New("too few")
	}
	return ports, nil
}

// eachStore runs a test on a store in memory and on a real Consul.
func eachStore(t *testing.T, test func(t *testing.T, store Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, NewMemory()) })
	t.Run("consul", func(t *testing.T) { test(t, NewConsul(consulClient(t))) })
}

// eachLedger runs a test on an empty ledger of its own in memory and in a real Consul.
func eachLedger(t *testing.T, test func(t *testing.T, l *Ledger)) {
	t.Helper()
	eachStore(t, func(t *testing.T, store Store) {
		t.Helper()
		test(t, New(store, region(t)))
	})
	t.Helper()
}

// region makes a region of the test's own, so that tests share an agent; what is in it goes when the test ends.
func region(tb testing.TB) string {
	tb.Helper()
	name := tb.Name() + " " + time.Now().Format("150405.000000000")
	tb.Cleanup(func() {
		if agent.cmd == nil || agent.skip != "" {
			return
		}
		client, err := newClient(agent.addr)
		must.NoError(tb, err)
		_, err = client.KV().DeleteTree(NewKeys(name).Root(), nil)
		must.NoError(tb, err)
	})
	return name
}
