// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

func TestASlotFromGrantToRelease(t *testing.T) {
	n := newNode(t, 4).start()
	n.config = `topology { rack = "r1" }`
	n.offers.become()
	eventually(t, "the inventory is published", func() bool {
		node := read[ledger.Node](n, n.books.Keys().Node(thisNode))
		return len(node.Machine.GPUs) == 4 && node.NodeID == thisNodeID && node.Address == "10.0.0.2" && node.BootID == thisBoot
	})

	s := slot("r1", 1, 0, 1)
	n.grant(1, s)
	n.offers.become("muster/gang/train.1")
	n.acknowledges(1)

	r, err := n.plugin.Reserve(instanceIDs(s))
	must.NoError(t, err)
	must.Eq(t, "10.0.0.1", r.Envs["MUSTER_MASTER_ADDR"])
	hosts, err := os.ReadFile(r.Envs["MUSTER_HOSTS_FILE"])
	must.NoError(t, err)
	must.Eq(t, "10.0.0.1 slots=2 # node=gpu-0 rank=0 group=worker\n10.0.0.2 slots=2 # node=gpu-1 rank=1 group=worker\n", string(hosts))

	// The driver claims, and a process runs.
	_, err = n.books.Claim(t.Context(), thisNode, claimOn(s, "driver", "a1"), func(ledger.Slot) error { return nil })
	must.NoError(t, err)
	n.gpus.set(func(f *fakeGPUs) { f.users[uuid(0)] = []gpu.Process{{PID: 7}} })
	n.runs("a1", s)

	n.grant(2, closing(s, "preempted by big"))
	n.offers.become()
	n.acknowledges(2)
	_, err = n.plugin.Reserve(instanceIDs(s))
	must.EqError(t, err, "slot train.1 is closing: preempted by big")

	// It is clear when claim, process and allocation are gone, in whatever order.
	eventually(t, "says what it waits for", func() bool { return n.log.count("used by process 7") > 0 })
	n.gpus.set(func(f *fakeGPUs) { f.users = nil })
	eventually(t, "says what it waits for", func() bool { return n.log.count("still has its claim") > 0 })
	must.NoError(t, n.books.Unclaim(t.Context(), thisNode, s.ID(), "a1"))
	eventually(t, "says what it waits for", func() bool { return n.log.count("allocation a1 has not ended") > 0 })
	n.acknowledges(2)
	n.agent.set(func(f *fakeAgent) { f.allocs[0].ClientStatus = nomadapi.AllocClientStatusFailed })
	n.acknowledges(2, "r1.1")

	n.grant(3)
	n.acknowledges(3)
	eventually(t, "the host file is removed", func() bool {
		_, err := os.Stat(r.Envs["MUSTER_HOSTS_FILE"])
		return errors.Is(err, os.ErrNotExist)
	})
	must.Eq(t, 1, n.log.count("used by process 7"), must.Sprint("once per change"))
}

func TestATaskOfAnotherDriver(t *testing.T) {
	n := newNode(t, 4).start()
	s := foreign(slot("r1", 1, 0, 1))
	s.Checkpoint = "SIGUSR1"
	n.grant(1, s)
	n.offers.become("muster/gang/train.1")

	_, err := n.plugin.Reserve(instanceIDs(s))
	must.EqError(t, err, "slot train.1 can't be claimed for a task of driver docker: the Nomad agent knows no allocation that is to start on these GPUs "+
		"(does the plugin's Nomad token have read-job in namespace default?)")

	thief := place("a0", s, nomadapi.AllocClientStatusPending)
	thief.JobID = "thief"
	n.agent.set(func(f *fakeAgent) { f.allocs = []*nomadapi.Allocation{thief} })
	_, err = n.plugin.Reserve(instanceIDs(s))
	must.EqError(t, err, "slot train.1 can't be claimed for a task of driver docker: slot train.1 belongs to job train in namespace default, not to job thief in namespace default")

	n.agent.set(func(f *fakeAgent) { f.down = true })
	_, err = n.plugin.Reserve(instanceIDs(s))
	must.ErrorContains(t, err, "asking the Nomad agent for this node's allocations")

	n.agent.set(func(f *fakeAgent) {
		f.down = false
		f.allocs = []*nomadapi.Allocation{place("a1", s, nomadapi.AllocClientStatusPending)}
	})
	n.outage(true)
	n.plugin.pace.reserve = time.Second
	began := time.Now()
	_, err = n.plugin.Reserve(instanceIDs(s))
	must.ErrorContains(t, err, "slot train.1 can't be claimed")
	t.Logf("that took %s", time.Since(began))
	n.plugin.pace.reserve = 6 * time.Second
	must.Less(t, time.Minute, time.Since(began), must.Sprint("Consul is away for longer"))
	must.Less(t, 2*time.Second, productionPace().reserve, must.Sprint("the bound on a quiet machine"))
	n.offers.become()
	n.outage(false)
	n.offers.become("muster/gang/train.1")

	done := place("a9", s, nomadapi.AllocClientStatusComplete)
	done.DesiredStatus = nomadapi.AllocDesiredStatusRun
	n.agent.set(func(f *fakeAgent) { f.allocs = append(f.allocs, done) })
	_, err = n.plugin.Reserve(instanceIDs(s))
	must.EqError(t, err, "slot train.1 can't be claimed for a task of driver docker: its member has finished already, and waits only for the end of its gang")
	n.agent.set(func(f *fakeAgent) { f.allocs = f.allocs[:1] })

	for range 2 { // it may be called again
		_, err = n.plugin.Reserve(instanceIDs(s))
		must.NoError(t, err)
	}
	claim := read[ledger.Claim](n, n.books.Keys().Claim(thisNode, s.ID()))
	must.Eq(t, "a1", claim.Allocation)
	must.Eq(t, claimedByPlugin, claim.By)
	must.Eq(t, "train", claim.Task)

	// Its slot closes, and the placer ends the task: the claim ends with the allocation and its processes.
	n.gpus.set(func(f *fakeGPUs) { f.users[uuid(1)] = []gpu.Process{{PID: 7}} })
	n.grant(2, closing(s, "preempted by big"))
	n.acknowledges(2)
	n.agent.set(func(f *fakeAgent) { f.allocs[0].ClientStatus = nomadapi.AllocClientStatusFailed })
	n.gpus.set(func(f *fakeGPUs) { f.users = nil })
	n.acknowledges(2, "r1.1")
	must.Eq(t, ledger.Claim{}, read[ledger.Claim](n, n.books.Keys().Claim(thisNode, s.ID())))
}

func TestConsulIsAway(t *testing.T) {
	n := newNode(t, 4).start()
	s := slot("r1", 1, 0, 1)
	n.grant(1, s)
	n.offers.become("muster/gang/train.1")
	n.acknowledges(1)
	n.onDisk(`"master_port":29400`)

	n.outage(true)
	n.store.SetBack(n.store.Save()) // ends the blocking queries
	eventually(t, "it is logged", func() bool { return n.log.count("the ledger can't be reached") == 1 })
	_, err := n.plugin.Reserve(instanceIDs(s))
	must.NoError(t, err)

	// The same after a restart in the middle of the outage, from disk.
	n.restart()
	n.offers.become("muster/gang/train.1")
	_, err = n.plugin.Reserve(instanceIDs(s))
	must.NoError(t, err)
	eventually(t, "it is logged", func() bool { return n.log.count("the ledger can't be reached") == 2 })

	n.outage(false)
	n.grant(2, closing(s, "stopped"))
	n.offers.become()
	n.acknowledges(2, "r1.1")
	eventually(t, "it is logged", func() bool { return n.log.count("the ledger answers again") >= 1 })
	must.Eq(t, 2, n.log.count("the ledger can't be reached"))
}

func TestALedgerThatIsSetBack(t *testing.T) {
	n := newNode(t, 4).start()
	held, idle := slot("r1", 1, 0, 1), gangNamed(slot("r2", 0, 2), "other")
	n.runs("a1", held)
	n.grant(5, held, idle)
	n.offers.become("muster/gang/train.1", "muster/gang/other.0")
	early := n.store.Save()
	n.grant(6, held, idle)
	_, err := n.books.Claim(t.Context(), thisNode, claimOn(held, "driver", "a1"), func(ledger.Slot) error { return nil })
	must.NoError(t, err)
	n.acknowledges(6)
	n.onDisk(`"alloc":"a1"`, `"seq":6`)

	n.store.SetBack(early)
	n.offers.become("muster/gang/train.1")
	n.acknowledges(6) // the last sequence is said again, so that the placer sees it
	_, err = n.plugin.Reserve(instanceIDs(idle))
	must.EqError(t, err, "slot other.0 is not offered: the ledger was set back (its table is at 5, this node's at 6)")

	n.restart()
	n.offers.become("muster/gang/train.1")

	n.grant(7, held)
	n.acknowledges(7)
	n.grant(8, held, idle)
	n.offers.become("muster/gang/train.1", "muster/gang/other.0")
}

// TestALedgerThatIsPutInOrder: the ledger was set back to before a gang was granted and claimed its slot. The node answers
// what it remembers; when the placer has written that down, the plugin makes the claim again, and nothing was withdrawn.
func TestALedgerThatIsPutInOrder(t *testing.T) {
	n := newNode(t, 4).start()
	s := foreign(slot("r1", 1, 0, 1))
	n.grant(5)
	n.acknowledges(5)
	early := n.store.Save()
	n.runs("a1", s)
	n.grant(6, s)
	n.offers.become("muster/gang/train.1")
	claim := claimOn(s, claimedByPlugin, "a1")
	_, err := n.books.Claim(t.Context(), thisNode, claim, func(ledger.Slot) error { return nil })
	must.NoError(t, err)
	n.acknowledges(6)
	eventually(t, "the claim is known", func() bool { w, _ := n.plugin.engine.world.get(); return w.claimed(s.ID()) })

	n.store.SetBack(early)
	eventually(t, "it is logged", func() bool { return n.log.count("its table is at 5, this node's at 6") > 0 })
	n.write(asking(of("e2", table(6))))
	n.acknowledges(6)
	answer := func() ledger.Ack { return read[ledger.Ack](n, n.books.Keys().Ack(thisNode)) }
	eventually(t, "the node answers", func() bool { return answer().Remembered != nil })
	must.Eq(t, "e2", answer().Epoch)
	must.Eq(t, []string{"r1.1"}, []string{answer().Remembered.Table.Slots[0].ID().String()})
	must.Eq(t, []ledger.Claim{claim}, answer().Remembered.Claims)
	must.Eq(t, map[string]int{"r1": 29400}, answer().Remembered.Ports)
	n.onDisk(`"asked":{"epoch":"e2"`)
	n.restart()
	n.offers.become("muster/gang/train.1")

	n.write(of("e2", table(7, s)))
	n.acknowledges(7)
	must.Nil(t, answer().Remembered)
	eventually(t, "the claim is made again", func() bool {
		return read[ledger.Claim](n, n.books.Keys().Claim(thisNode, s.ID())).Allocation == "a1"
	})
	must.Eq(t, []string{"muster/gang/train.1"}, names(n.offers.last()))
}

func TestALedgerThatIsLost(t *testing.T) {
	n := newNode(t, 4).start()
	s := slot("r1", 1, 0, 1)
	n.runs("a1", s)
	n.grant(5, s)
	_, err := n.books.Claim(t.Context(), thisNode, claimOn(s, "driver", "a1"), func(ledger.Slot) error { return nil })
	must.NoError(t, err)
	n.offers.become("muster/gang/train.1")
	n.acknowledges(5)
	eventually(t, "the claim is known", func() bool { w, _ := n.plugin.engine.world.get(); return w.claimed(s.ID()) })

	n.store.SetBack(ledger.Saved{})
	n.acknowledges(5)
	eventually(t, "the inventory is published again", func() bool {
		return len(read[ledger.Node](n, n.books.Keys().Node(thisNode)).Machine.GPUs) == 4
	})
	n.offers.become("muster/gang/train.1")
	eventually(t, "it is logged", func() bool { return n.log.count("the ledger has no slot table for this node any more") > 0 })
}

func TestHealth(t *testing.T) {
	n := newNode(t, 4)
	n.config = `fingerprint_period = "1h"` // events only
	n.start()
	eventually(t, "health is published", func() bool { return len(read[ledger.Health](n, n.books.Keys().Health(thisNode)).GPUs) == 4 })
	s := slot("r1", 1, 0, 1)
	n.grant(1, s)
	n.offers.become("muster/gang/train.1")
	must.Eq(t, "1", n.offers.attribute("train.1", "rev"))
	eventually(t, "events are watched", func() bool { n.gpus.mu.Lock(); defer n.gpus.mu.Unlock(); return n.gpus.on != nil })

	n.gpus.sicken(uuid(1), gpu.Health{State: gpu.Unhealthy, Reason: "XID 79"})
	eventually(t, "the revision rises", func() bool { return n.offers.attribute("train.1", "rev") == "2" })
	must.False(t, n.offers.last()[0].Devices[1].Healthy)
	eventually(t, "health is published", func() bool {
		return read[ledger.Health](n, n.books.Keys().Health(thisNode)).GPUs[uuid(1)].State == gpu.Unhealthy
	})
	_, err := n.plugin.Reserve(instanceIDs(s))
	must.EqError(t, err, "slot train.1: GPU GPU-1 is unhealthy: XID 79")

	n.gpus.sicken(uuid(1), gpu.Health{State: gpu.Healthy})
	eventually(t, "the revision rises", func() bool { return n.offers.attribute("train.1", "rev") == "3" })
	count := n.offers.count()
	for range 5 {
		n.gpus.sicken(uuid(1), gpu.Health{State: gpu.Healthy})
	}
	n.onDisk(`"rev":3`)
	n.restart()
	n.offers.become("muster/gang/train.1")
	must.Eq(t, "3", n.offers.attribute("train.1", "rev"), must.Sprint("a restart changes no attribute"))
	must.LessEq(t, 4, count, must.Sprint("only real changes are sent"))
}

func TestNVMLIsMissing(t *testing.T) {
	n := newNode(t, 2)
	n.gpus.broken = errors.New("NVML library missing: install the NVIDIA driver")
	n.start()
	n.offers.become()
	eventually(t, "the inventory says why", func() bool {
		return read[ledger.Node](n, n.books.Keys().Node(thisNode)).Problem == "NVML library missing: install the NVIDIA driver"
	})
	n.gpus.set(func(f *fakeGPUs) { f.broken = nil })
	n.grant(1, slot("r1", 1, 0, 1))
	n.offers.become("muster/gang/train.1")
	must.Eq(t, 1, n.log.count("no GPUs are offered"))

	// It stops answering while a slot is offered: the group stays, its GPUs are lost.
	n.gpus.set(func(f *fakeGPUs) { f.broken = errors.New("driver not loaded") })
	n.gpus.on(gpu.XIDEvent{})
	eventually(t, "the GPUs are lost", func() bool { return !n.offers.last()[0].Devices[0].Healthy })
	must.Eq(t, []string{"muster/gang/train.1"}, names(n.offers.last()))
	n.gpus.set(func(f *fakeGPUs) { f.broken = nil })
	eventually(t, "the GPUs are back", func() bool { return n.offers.last()[0].Devices[0].Healthy })
}

func TestUnmanagedGPUs(t *testing.T) {
	n := newNode(t, 4)
	n.config = `unmanaged = ["1", "GPU-3", "GPU-9"]`
	n.start()
	n.offers.become("nvidia/gpu/NVIDIA A100")
	r, err := n.plugin.Reserve(uuids(3, 1))
	must.NoError(t, err)
	must.Eq(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-3,GPU-1"}, r.Envs)
	_, err = n.plugin.Reserve(uuids(0))
	must.Error(t, err)
	eventually(t, "they are published", func() bool { return len(read[ledger.Node](n, n.books.Keys().Node(thisNode)).Unmanaged) == 2 })
	must.Eq(t, 1, n.log.count("names GPUs that this machine does not have"))
}

func TestTwoMachinesWithOneName(t *testing.T) {
	first := newNode(t, 4).start()
	s := slot("r1", 1, 0, 1)
	first.grant(1, s)
	first.offers.become("muster/gang/train.1")
	first.acknowledges(1)

	second := newNode(t, 2)
	second.store, second.books = first.store, first.books
	second.setID("machine-id", "machine-2")
	second.start()
	eventually(t, "it says so", func() bool { return second.log.count("node name gpu-1 is taken by another machine") > 0 })
	must.Eq(t, 1, second.log.count("node name gpu-1 is taken by another machine"))
	second.offers.become()
	must.Len(t, 4, read[ledger.Node](first, first.books.Keys().Node(thisNode)).Machine.GPUs)
	_, err := second.plugin.Reserve(instanceIDs(s))
	must.EqError(t, err, "slot train.1 was granted on another machine of this name")

	// The same machine takes its own name over at once.
	first.restart()
	first.grant(2, closing(s, "stopped"))
	first.acknowledges(2, "r1.1")
	must.Eq(t, 0, first.log.count("is taken by another machine"))
}

func TestTheSessionIsLost(t *testing.T) {
	n := newNode(t, 2).start()
	key := n.books.Keys().Node(thisNode)
	holder := func() string {
		entry, _ := n.store.Get(t.Context(), key)
		return entry.Session
	}
	eventually(t, "the inventory is held", func() bool { return holder() != "" })
	before := holder()
	must.NoError(t, n.store.DestroySession(t.Context(), before))
	eventually(t, "the inventory is held again", func() bool { return holder() != "" && holder() != before })
}

func TestAnotherBoot(t *testing.T) {
	n := newNode(t, 2).start()
	s := slot("r1", 1, 0, 1)
	n.grant(1, s)
	n.offers.become("muster/gang/train.1")
	_, err := n.books.Claim(t.Context(), thisNode, claimOn(s, "driver", "a1"), func(ledger.Slot) error { return nil })
	must.NoError(t, err)

	n.setID("boot-id", "boot-2")
	n.restart()
	n.offers.become()
	eventually(t, "the claim is void", func() bool {
		return read[ledger.Claim](n, n.books.Keys().Claim(thisNode, s.ID())) == ledger.Claim{}
	})
	n.grant(2, closing(s, "the machine started anew"))
	n.acknowledges(2, "r1.1")
}

func TestTheAgentAnswersLate(t *testing.T) {
	n := newNode(t, 2)
	n.agent.down = true
	n.start()
	n.offers.become()
	eventually(t, "it is logged", func() bool { return n.log.count("waiting for the local Nomad agent") > 0 })
	n.agent.set(func(f *fakeAgent) { f.down = false })
	n.grant(1, slot("r1", 1, 0, 1))
	n.offers.become("muster/gang/train.1")
	must.Eq(t, 1, n.log.count("waiting for the local Nomad agent"))
}

func TestNothingHappensBeforeFingerprint(t *testing.T) {
	n := newNode(t, 2)
	opened := false
	p := New(t.Context(), hclog.NewNullLogger(), func(string) (Hardware, error) { opened = true; return n.gpus, nil })
	p.connect = func(settings) (links, error) { opened = true; return links{}, errors.New("not now") }
	var encoded []byte
	must.NoError(t, base.MsgPackEncode(&encoded, parseConfig(t, "")))
	must.NoError(t, p.SetConfig(&base.Config{PluginConfig: encoded}))
	_, err := p.PluginInfo()
	must.NoError(t, err)
	_, err = p.ConfigSchema()
	must.NoError(t, err)
	must.False(t, opened)
}

func TestDisabled(t *testing.T) {
	p := New(t.Context(), hclog.NewNullLogger(), nil)
	_, err := p.Fingerprint(t.Context())
	must.ErrorIs(t, err, errNotConfigured)
	var encoded []byte
	must.NoError(t, base.MsgPackEncode(&encoded, parseConfig(t, "enabled = false")))
	must.NoError(t, p.SetConfig(&base.Config{PluginConfig: encoded}))
	_, err = p.Fingerprint(t.Context())
	must.EqError(t, err, "device is not enabled")
}

func TestAMachineWithoutID(t *testing.T) {
	n := newNode(t, 2)
	must.NoError(t, os.Remove(filepath.Join(n.dir, "machine-id")))
	n.start()
	n.offers.become()
	eventually(t, "it is logged", func() bool { return n.log.count("the plugin can't start") > 0 })
	n.setID("machine-id", thisMachine)
	n.grant(1, slot("r1", 1, 0, 1))
	n.offers.become("muster/gang/train.1")
	must.Eq(t, 1, n.log.count("the plugin can't start"))
}

func TestStatsStream(t *testing.T) {
	n := newNode(t, 2).start()
	n.grant(1, slot("r1", 1, 0, 1))
	n.offers.become("muster/gang/train.1")
	stream, err := n.plugin.Stats(t.Context(), 5*time.Millisecond)
	must.NoError(t, err)
	eventually(t, "statistics arrive", func() bool {
		message := <-stream
		must.NoError(t, message.Error)
		return len(message.Groups) == 1 && message.Groups[0].InstanceStats["GPU-0@r1"].Summary.IntNumeratorVal != nil
	})
}
