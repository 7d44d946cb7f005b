// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/jobspecs"
	"github.com/nomad-muster/muster/placer/config"
	"github.com/nomad-muster/muster/placer/ledger"
	"github.com/nomad-muster/muster/placer/nomad"
)

// agents are a Consul and a Nomad agent in -dev mode.
type agents struct {
	consulAddr, nomadAddr string
	nomad                 *nomadapi.Client
	ledger                *ledger.Ledger
}

// startAgents starts both; the test is skipped, with the reason, where there is none.
func startAgents(t *testing.T) agents {
	t.Helper()
	consulBin, nomadBin := binary(t, "consul"), binary(t, "nomad")
	p := freePorts(t, 7)
	start(t, consulBin, "agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", fmt.Sprintf("-http-port=%d", p[0]),
		fmt.Sprintf("-server-port=%d", p[1]), fmt.Sprintf("-serf-lan-port=%d", p[2]), fmt.Sprintf("-serf-wan-port=%d", p[3]),
		"-dns-port=-1", "-grpc-port=-1", "-grpc-tls-port=-1", "-log-level=err")
	a := agents{consulAddr: fmt.Sprintf("127.0.0.1:%d", p[0]), nomadAddr: fmt.Sprintf("http://127.0.0.1:%d", p[4])}

	file := filepath.Join(t.TempDir(), "nomad.hcl")
	text := fmt.Sprintf("bind_addr = \"127.0.0.1\"\nlog_level = \"ERROR\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\nconsul {\n  address = %q\n}\n",
		p[4], p[5], p[6], a.consulAddr)
	must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	start(t, nomadBin, "agent", "-dev", "-config", file)

	consul, err := consulapi.NewClient(&consulapi.Config{Address: a.consulAddr})
	must.NoError(t, err)
	a.ledger = ledger.New(ledger.NewConsul(consul), "global")
	a.nomad, err = nomadapi.NewClient(&nomadapi.Config{Address: a.nomadAddr})
	must.NoError(t, err)
	eventually(t, "both agents answer", func() error {
		if _, err := a.ledger.Load(t.Context()); err != nil {
			return err
		}
		nodes, _, err := a.nomad.Nodes().List(nil)
		if err == nil && (len(nodes) == 0 || nodes[0].Status != "ready") {
			err = fmt.Errorf("nomad's node is not ready")
		}
		return err
	})
	return a
}

func binary(t *testing.T, name string) string {
	t.Helper()
	candidates := []string{os.Getenv(map[string]string{"consul": "CONSUL_BIN", "nomad": "NOMAD_BIN"}[name]), "../../bin/" + name}
	for _, path := range candidates {
		if _, err := os.Stat(path); path != "" && err == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s: set CONSUL_BIN and NOMAD_BIN, or build the agents into bin/", name)
	}
	return path
}

func start(t *testing.T, binary string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-done
		}
	})
}

// freePorts finds ports below those that the kernel gives to outgoing connections, which might take one before its agent
// does.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, 0, n)
	for port := 10000 + rand.IntN(9000); len(ports) < n; port++ {
		must.Less(t, 20000, port, must.Sprint("too few free ports"))
		if listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			defer listener.Close()
			ports = append(ports, port)
		}
	}
	return ports
}

// eventually tries until there is no error, for at most two minutes.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond) // between two polls
	}
}

// gang waits until a gang's document passes a check.
func (a agents) gang(t *testing.T, name, what string, check func(ledger.Gang) bool) ledger.Gang {
	t.Helper()
	var found ledger.Gang
	eventually(t, what, func() error {
		g, err := a.ledger.GetGang(t.Context(), name)
		if err == nil && !check(g.Doc) {
			err = fmt.Errorf("gang %s is %s: %+v", name, g.Doc.State, g.Doc.Why)
		}
		found = g.Doc
		return err
	})
	return found
}

// run starts a placer that ends with the test.
func (a agents) run(t *testing.T) {
	t.Helper()
	c := config.Default("placer-1")
	c.Consul.Address, c.Nomad.Address = a.consulAddr, a.nomadAddr
	c.Tick = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c, slog.New(slog.NewTextHandler(os.Stderr, nil))) }()
	t.Cleanup(func() { cancel(); must.NoError(t, <-done) })
}

const spec = `
job "train" {
  type = "batch"
  group "worker" {
    count = COUNT
    max_client_disconnect = "15m"
    restart {
      attempts = 0
      mode = "fail"
    }
    reschedule {
      attempts = 0
      unlimited = true
      delay = "5s"
      delay_function = "constant"
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "sleep"
      }
      resources {
        device "muster/gang" {
          count = 2
          constraint {
            attribute = "${device.attr.gang}"
            value = "train"
          }
        }
      }
    }
  }
}
`

func (a agents) submit(t *testing.T, count string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "train.nomad.hcl")
	must.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(spec, "COUNT", count)), 0o600))
	job, _, findings := jobspecs.ParseFile(file, nil, nil)
	must.False(t, findings.HasErrors(), must.Sprint(findings))
	_, _, err := a.nomad.Jobs().Register(job, nil)
	must.NoError(t, err)
}

// TestAgainstRealAgents follows one job through a real Nomad and a real Consul. The node's plugin is played by the test,
// and offers nothing to Nomad, so that the gang never starts.
func TestAgainstRealAgents(t *testing.T) {
	a := startAgents(t)
	a.run(t)

	a.submit(t, "1")
	a.gang(t, "train", "admitted, with a reason", func(g ledger.Gang) bool { return g.State == ledger.GangWaiting && g.Why != nil })
	eventually(t, "the reason shows in Nomad", func() error {
		status, _, err := a.nomad.Jobs().ScaleStatus("train", nil)
		if err == nil && len(status.TaskGroups["worker"].Events) == 0 {
			err = fmt.Errorf("no scaling event")
		}
		return err
	})

	nodes, _, err := a.nomad.Nodes().List(nil)
	must.NoError(t, err)
	a.join(t, nodes[0].Name, nodes[0].ID)
	a.gang(t, "train", "granted", func(g ledger.Gang) bool { return g.State == ledger.GangReserved })

	a.submit(t, "2") // another shape
	a.gang(t, "train", "closing", func(g ledger.Gang) bool { return g.State == ledger.GangClosing && g.After == ledger.GangWaiting })
	a.ack(t, nodes[0].Name)
	a.gang(t, "train", "granted again", func(g ledger.Gang) bool { return g.State == ledger.GangReserved && g.Spec.Size() == 2 })

	_, _, err = a.nomad.Jobs().Deregister("train", true, nil)
	must.NoError(t, err)
	a.gang(t, "train", "closing after the purge", func(g ledger.Gang) bool { return g.State == ledger.GangClosing && g.After == "" })
	a.ack(t, nodes[0].Name)
	eventually(t, "nothing is left", func() error {
		s, err := a.ledger.Load(t.Context())
		if err == nil && (len(s.Gangs) > 0 || len(s.Tables[nodes[0].Name].Doc.Slots) > 0) {
			err = fmt.Errorf("left: %+v %+v", s.Gangs, s.Tables)
		}
		return err
	})
}

// TestEndsOfRealTasks lets ordinary tasks end in each way, and reads from Nomad's lists how they did.
func TestEndsOfRealTasks(t *testing.T) {
	a := startAgents(t)
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	follower := nomad.NewFollower(a.nomad, nomad.FollowerOptions{Asks: func(*nomadapi.Job) bool { return true }, Logger: logger})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); follower.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	for name, command := range map[string]string{"good": "exit 0", "bad": "exit 3", "killed": "exec sleep 60", "stopped": "exec sleep 60"} {
		a.runPlain(t, name, command)
	}
	alloc := func(job string) *nomad.Alloc {
		for _, list := range follower.State().Allocs {
			for _, a := range list {
				if a.Job.ID == job {
					return a
				}
			}
		}
		return nil
	}
	is := func(job, status string) *nomad.Alloc {
		var found *nomad.Alloc
		eventually(t, job+" is "+status, func() error {
			if found = alloc(job); found == nil || found.Client != status {
				return fmt.Errorf("it is %+v", found)
			}
			return nil
		})
		return found
	}
	nomad.NewSignaller(a.nomad, logger).Send(ctx, is("killed", "running"), "main", "SIGKILL")
	is("stopped", "running")
	_, _, err := a.nomad.Jobs().Deregister("stopped", false, nil)
	must.NoError(t, err)

	must.True(t, is("good", "complete").Tasks["main"].Succeeded())
	must.Eq(t, 3, *is("bad", "failed").Tasks["main"].Exit)
	must.Eq(t, 137, *is("killed", "failed").Tasks["main"].Exit)
	must.False(t, is("stopped", "complete").Tasks["main"].Succeeded(), must.Sprint("Nomad calls it complete, and it is not"))
	must.True(t, follower.State().Jobs[nomad.JobID{Namespace: "default", ID: "stopped"}].Stopped)
}

// runPlain runs a shell command as a job that is never restarted.
func (a agents) runPlain(t *testing.T, name, command string) {
	t.Helper()
	task := nomadapi.NewTask("main", "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", command})
	cpu, memory := 10, 10
	task.Require(&nomadapi.Resources{CPU: &cpu, MemoryMB: &memory})
	group := nomadapi.NewTaskGroup("g", 1).AddTask(task)
	attempts, mode, unlimited := 0, "fail", false
	group.RestartPolicy = &nomadapi.RestartPolicy{Attempts: &attempts, Mode: &mode}
	group.ReschedulePolicy = &nomadapi.ReschedulePolicy{Attempts: &attempts, Unlimited: &unlimited}
	_, _, err := a.nomad.Jobs().Register(nomadapi.NewBatchJob(name, name, "global", 50).AddTaskGroup(group), nil)
	must.NoError(t, err)
}

// join plays the device plugin of a node with four GPUs.
func (a agents) join(t *testing.T, name, id string) {
	t.Helper()
	n := ledger.Node{Version: ledger.Version, Node: name, NodeID: id, Address: "127.0.0.1", MachineID: "m", BootID: "b"}
	for i := range 4 {
		n.Machine.GPUs = append(n.Machine.GPUs, gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Model: "H100", MemoryMiB: 81920})
	}
	session, err := a.ledger.Store().CreateSession(t.Context(), ledger.NodeSession(name))
	must.NoError(t, err)
	must.NoError(t, a.ledger.PublishNode(t.Context(), session, n))
	eventually(t, "the node has a slot table", func() error {
		_, err := a.ledger.WatchTable(t.Context(), name, 0, 0)
		return err
	})
	a.ack(t, name)
}

// ack acknowledges a node's table, with all closing slots clear.
func (a agents) ack(t *testing.T, node string) {
	t.Helper()
	table, err := a.ledger.WatchTable(t.Context(), node, 0, 0)
	must.NoError(t, err)
	ack := ledger.Ack{Version: ledger.Version, Epoch: table.Doc.Epoch, Sequence: table.Doc.Sequence, BootID: "b"}
	if table.Doc.Rebuild {
		ack.Remembered = &ledger.Remembered{Asked: table.Doc.Sequence}
	}
	for _, slot := range table.Doc.Slots {
		ack.Clear = append(ack.Clear, slot.ID().String())
	}
	must.NoError(t, a.ledger.PublishAck(t.Context(), node, ack))
}
