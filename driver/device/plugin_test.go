// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/placer/ledger"
)

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// fakeGPUs are GPUs that do what a test says.
type fakeGPUs struct {
	mu      sync.Mutex
	machine gpu.Machine
	health  map[string]gpu.Health
	users   map[string][]gpu.Process
	broken  error // NVML can't be opened, or stops answering
	on      func(gpu.XIDEvent)
}

func newFakeGPUs(n int) *fakeGPUs {
	m := pairsMachine(n)
	return &fakeGPUs{machine: m, health: allHealthy(m), users: map[string][]gpu.Process{}}
}

func (f *fakeGPUs) open(string) (Hardware, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f, f.broken
}

func (f *fakeGPUs) Discover() (gpu.Machine, map[string]gpu.Health, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.machine, maps.Clone(f.health), f.broken
}

func (f *fakeGPUs) Processes(uuid string) ([]gpu.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.users[uuid], nil
}

func (f *fakeGPUs) Stats() []gpu.Stats {
	var used, total uint64 = 512, 81920
	return []gpu.Stats{{UUID: uuid(0), MemoryUsedMiB: &used, MemoryTotalMiB: &total}}
}

func (f *fakeGPUs) Watch(ctx context.Context, on func(gpu.XIDEvent)) error {
	f.mu.Lock()
	f.on = on
	f.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (f *fakeGPUs) Shutdown() error { return nil }

func (f *fakeGPUs) set(change func(*fakeGPUs)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// sicken makes a GPU unhealthy and sends the event for it.
func (f *fakeGPUs) sicken(uuid string, h gpu.Health) {
	f.mu.Lock()
	f.health[uuid] = h
	on := f.on
	f.mu.Unlock()
	on(gpu.XIDEvent{UUID: uuid, XID: 79})
}

// fakeAgent is a local Nomad agent over HTTP.
type fakeAgent struct {
	*httptest.Server
	mu     sync.Mutex
	down   bool
	allocs []*nomadapi.Allocation
}

func newFakeAgent(t *testing.T) *fakeAgent {
	f := &fakeAgent{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agent/self", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"config":{"NodeName":%q,"AdvertiseAddrs":{"HTTP":"10.0.0.2:4646"}},"stats":{"client":{"node_id":%q}}}`, thisNode, thisNodeID)
	})
	mux.HandleFunc("GET /v1/node/"+thisNodeID+"/allocations", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(f.allocs)
	})
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.down {
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeAgent) set(change func(*fakeAgent)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// place is an allocation of the slot's owner on a slot.
func place(id string, s ledger.Slot, status string) *nomadapi.Allocation {
	created := s.Owner.CreateIndex
	return &nomadapi.Allocation{
		ID: id, Namespace: s.Owner.Namespace, JobID: s.Owner.Job, TaskGroup: s.Owner.Group, Job: &nomadapi.Job{CreateIndex: &created},
		DesiredStatus: nomadapi.AllocDesiredStatusRun, ClientStatus: status, CreateIndex: 20,
		AllocatedResources: &nomadapi.AllocatedResources{Tasks: map[string]*nomadapi.AllocatedTaskResources{
			s.Owner.Task: {Devices: []*nomadapi.AllocatedDeviceResource{{Vendor: slotVendor, Type: slotType, DeviceIDs: instanceIDs(s)}}},
		}},
	}
}

// runs makes the agent report one running allocation on a slot.
func (n *node) runs(id string, s ledger.Slot) {
	n.agent.set(func(f *fakeAgent) {
		f.allocs = []*nomadapi.Allocation{place(id, s, nomadapi.AllocClientStatusRunning)}
	})
}

// node is a node with its plugin, and the cluster around it.
type node struct {
	t      *testing.T
	store  *ledger.Memory
	books  *ledger.Ledger
	gpus   *fakeGPUs
	agent  *fakeAgent
	dir    string
	config string
	log    *logBuffer

	plugin *Plugin
	stop   context.CancelFunc
	offers *offers
}

func newNode(t *testing.T, gpus int) *node {
	store := ledger.NewMemory()
	_, err := store.Txn(t.Context(), []ledger.Op{{Verb: ledger.Set, Key: "other"}}) // a real store has changed before
	must.NoError(t, err)
	n := &node{
		t: t, store: store, books: ledger.New(store, "global"), gpus: newFakeGPUs(gpus), agent: newFakeAgent(t), dir: t.TempDir(),
		log: &logBuffer{},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(n.log.text.String())
		}
	})
	n.setID("machine-id", thisMachine)
	n.setID("boot-id", thisBoot)
	must.NoError(t, os.Mkdir(filepath.Join(n.dir, "dev"), 0o755))
	for i := range gpus {
		must.NoError(t, os.WriteFile(filepath.Join(n.dir, "dev", fmt.Sprintf("nvidia%d", i)), nil, 0o600))
	}
	return n
}

func (n *node) setID(name, id string) {
	must.NoError(n.t, os.WriteFile(filepath.Join(n.dir, name), []byte(id+"\n"), 0o600))
}

// start starts a new plugin process and its Fingerprint stream.
func (n *node) start() *node {
	ctx, cancel := context.WithCancel(n.t.Context())
	n.stop = cancel
	n.t.Cleanup(n.end)
	p := New(ctx, hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: n.log, DisableTime: true}), n.gpus.open)
	p.connect = func(set settings) (links, error) {
		ways, err := connect(set)
		ways.store = n.store
		return ways, err
	}
	p.pace = pace{
		retry: 10 * time.Millisecond, watch: time.Minute, session: 20 * time.Millisecond, taken: 20 * time.Millisecond, hardware: 20 * time.Millisecond,
		closing: 10 * time.Millisecond, foreign: 10 * time.Millisecond, settle: time.Millisecond, reserve: 6 * time.Second,
		strangers: 20 * time.Millisecond, again: 10 * time.Millisecond, glance: 10 * time.Millisecond, unattended: 10 * time.Millisecond,
	}
	config := parseConfig(n.t, fmt.Sprintf(`
		state_dir       = "%[1]s/state"
		dev_root        = "%[1]s/dev"
		proc_root       = "%[1]s/proc"
		machine_id_file = "%[1]s/machine-id"
		boot_id_file    = "%[1]s/boot-id"
		nomad { address = "%[2]s" }
		%[3]s`, n.dir, n.agent.URL, n.config))
	var encoded []byte
	must.NoError(n.t, base.MsgPackEncode(&encoded, config))
	must.NoError(n.t, p.SetConfig(&base.Config{PluginConfig: encoded}))
	must.NoError(n.t, p.SetConfig(&base.Config{PluginConfig: encoded}), must.Sprint("Nomad does it twice"))
	stream, err := p.Fingerprint(ctx)
	must.NoError(n.t, err)
	n.plugin, n.offers = p, newOffers(n.t, stream)
	return n
}

// end ends the plugin's process.
func (n *node) end() {
	n.stop()
	n.offers.ended()
	if e, err := n.plugin.started(); err == nil {
		e.loops.Wait()
	}
}

// restart ends the plugin's process and starts another one.
func (n *node) restart() *node {
	n.end()
	return n.start()
}

// offers collects the messages of a Fingerprint stream.
type offers struct {
	t    *testing.T
	mu   sync.Mutex
	all  [][]*device.DeviceGroup
	done chan struct{}
}

func newOffers(t *testing.T, stream <-chan *device.FingerprintResponse) *offers {
	o := &offers{t: t, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for message := range stream {
			o.mu.Lock()
			if message.Error != nil {
				t.Errorf("the stream sent an error: %v", message.Error)
			}
			o.all = append(o.all, message.Devices)
			o.mu.Unlock()
		}
	}()
	return o
}

func (o *offers) ended() { <-o.done }

func (o *offers) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

func (o *offers) last() []*device.DeviceGroup {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) == 0 {
		return nil
	}
	return o.all[len(o.all)-1]
}

// become waits until the offer has just these groups.
func (o *offers) become(want ...string) {
	o.t.Helper()
	slices.Sort(want)
	eventually(o.t, "offered: "+strings.Join(want, ", "), func() bool { return o.count() > 0 && slices.Equal(names(o.last()), want) })
}

// attribute is an attribute of the only group that has the name.
func (o *offers) attribute(group, name string) string {
	for _, g := range o.last() {
		if g.Name == group {
			return fmt.Sprintf("%#v", g.Attributes[name])
		}
	}
	return ""
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// grant writes a table and the gangs of its slots, as the placer does.
func (n *node) grant(sequence uint64, slots ...ledger.Slot) {
	n.t.Helper()
	ops := []ledger.Op{n.set(n.books.Keys().Slots(thisNode), table(sequence, slots...))}
	gangs := map[string]bool{}
	for _, s := range slots {
		if gangs[s.Owner.Gang] {
			continue
		}
		gangs[s.Owner.Gang] = true
		ops = append(ops, n.set(n.books.Keys().Gang(s.Owner.Gang), ledger.Gang{
			Version: ledger.Version, Name: s.Owner.Gang,
			Reservation: &ledger.Grant{ID: s.Reservation, MasterPort: 29400, Placements: []ledger.Placement{
				{Node: "gpu-0", Address: "10.0.0.1", Group: "worker", Rank: 0, Members: 1, GPUs: 2},
				{Node: thisNode, Address: "10.0.0.2", Group: "worker", Rank: 1, Members: 1, GPUs: 2},
			}},
		}))
	}
	_, err := n.store.Txn(n.t.Context(), ops)
	must.NoError(n.t, err)
}

// write writes a table as it is.
func (n *node) write(table ledger.SlotTable) {
	n.t.Helper()
	_, err := n.store.Txn(n.t.Context(), []ledger.Op{n.set(n.books.Keys().Slots(thisNode), table)})
	must.NoError(n.t, err)
}

func (n *node) set(key string, doc any) ledger.Op {
	value, err := json.Marshal(doc)
	must.NoError(n.t, err)
	return ledger.Op{Verb: ledger.Set, Key: key, Value: value}
}

// read reads a document of this node; the zero value if there is none.
func read[T any](n *node, key string) (doc T) {
	entry, err := n.store.Get(n.t.Context(), key)
	if errors.Is(err, ledger.ErrNotFound) {
		return doc
	}
	must.NoError(n.t, err)
	must.NoError(n.t, json.Unmarshal(entry.Value, &doc))
	return doc
}

// acknowledges waits until the node has acknowledged a sequence with these slots clear.
func (n *node) acknowledges(sequence uint64, cleared ...string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("acknowledged %d, clear %v", sequence, cleared), func() bool {
		ack := read[ledger.Ack](n, n.books.Keys().Ack(thisNode))
		return ack.Sequence == sequence && slices.Equal(ack.Clear, cleared)
	})
}

// outage makes the ledger unreachable, or reachable again.
func (n *node) outage(on bool) {
	if !on {
		n.store.Inject(nil)
		return
	}
	n.store.Inject(func(ledger.Call) ledger.Fault { return ledger.Refuse })
}

// onDisk waits until the state file has all of some texts.
func (n *node) onDisk(texts ...string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("on disk: %v", texts), func() bool {
		data, _ := os.ReadFile(filepath.Join(n.dir, "state", "state.json"))
		return !slices.ContainsFunc(texts, func(text string) bool { return !bytes.Contains(data, []byte(text)) })
	})
}
