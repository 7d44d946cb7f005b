// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/shoenig/test/must"
)

var update = flag.Bool("update", false, "write the golden documents anew")

// goldenDocs has every field of every document set, so that a changed name or form shows as a changed file: other
// versions of Muster read these bytes.
func goldenDocs() map[string]document {
	later := epochTime.Add(90 * time.Second)
	exit := 137
	owner := Owner{Gang: "resnet50", Value: "resnet50/worker", Namespace: "research", Job: "resnet-nightly", CreateIndex: 1234, Group: "worker", Task: "train"}
	slot := Slot{
		Reservation: "k3v9q1", Rank: 0, Size: 2, Owner: owner, Driver: "muster", GPUs: []string{"GPU-1", "GPU-2"}, State: SlotOpen,
		MachineID: "4c4c4544", BootID: "b1", Checkpoint: "SIGUSR1",
	}
	short := Slot{
		Reservation: "x7", Rank: 3, Size: 4, Owner: Owner{Gang: "bert", Value: "bert", Namespace: "default", Job: "bert", CreateIndex: 9, Group: "g", Task: "t"},
		Driver: "docker", GPUs: []string{"GPU-3"}, State: SlotClosing, Closing: 17, Why: "preempted", MachineID: "4c4c4544", BootID: "b0",
	}
	return map[string]document{
		"epoch": Epoch{Version: 1, ID: "V7TQ"},
		"node": Node{
			Version: 1, Node: "gpu-1", NodeID: "e3", Address: "10.0.0.7", MachineID: "4c4c4544", BootID: "b1",
			Topology: map[string]string{"rack": "r1"}, Unmanaged: []string{"GPU-9"}, Problem: "NVML is missing",
			Machine: gpu.Machine{DriverVersion: "570.1", CUDAVersion: "12.8", GPUs: []gpu.GPU{{UUID: "GPU-1", Model: "H100", MemoryMiB: 81559, PCIBusID: "0000:18:00.0"}}},
		},
		"health": Health{Version: 1, GPUs: map[string]gpu.Health{"GPU-1": {State: gpu.Lost, Reason: "XID 79"}}},
		"table":  SlotTable{Version: 1, Epoch: "V7TQ", Sequence: 17, Slots: []Slot{slot, short}, Rebuild: true, Former: &Lineage{Epoch: "K2", Sequence: 16}},
		"claim":  Claim{Version: 1, Reservation: "k3v9q1", Rank: 1, Allocation: "a1", Task: "train", Namespace: "research", Job: "resnet-nightly", By: "driver", BootID: "b1", At: epochTime},
		"ack": Ack{
			Version: 1, Epoch: "V7TQ", Sequence: 17, BootID: "b1", Clear: []string{"x7.3"}, Busy: map[string]string{"k3v9q1.0": "process 7"},
			Remembered: &Remembered{
				Asked: 17, Table: SlotTable{Version: 1, Epoch: "K2", Sequence: 15, Slots: []Slot{short}},
				Claims: []Claim{{Version: 1, Reservation: "x7", Rank: 3, Allocation: "a2", At: epochTime}}, Ports: map[string]int{"x7": 29503},
			},
		},
		"gang": Gang{
			Version: 1, Name: "resnet50", Namespace: "research", Job: "resnet-nightly", CreateIndex: 1234, JobVersion: 2,
			Spec: Spec{
				Groups: []GroupSpec{{Group: "worker", Value: "resnet50/worker", Count: 2, GPUs: 2, Task: "train", Driver: "muster", Checkpoint: "SIGUSR1"}},
				Shape:  "2x2", Priority: 50, Queue: "research", NVLink: "preferred", Locality: "rack", RelaxAfterS: 600, RelaxAuto: true, Comm: "low", MaxRuntimeS: 43200,
			},
			State: GangClosing, Submitted: epochTime, Since: later, Why: &Reason{Code: "preempted", Text: "preempted by gang big"},
			Reservation: &Grant{ID: "k3v9q1", At: epochTime, JobVersion: 2, Shape: "2x2", MasterPort: 29500,
				Placements: []Placement{{Node: "gpu-1", Address: "10.0.0.7", Group: "worker", Rank: 0, Members: 2, GPUs: 2}}},
			After: GangWaiting, Attempts: 3, NotBefore: &later, HoldUntil: &later, Avoid: []string{"gpu-2"}, Set: map[string]string{"priority": "80"},
			LastRun: &RunSummary{Reservation: "j1", Generation: 1, Started: &epochTime2, Ended: later, Result: "failed", Reason: Reason{Code: "exit", Text: "rank 1 ended with 1"}},
		},
		"refusal": Refusal{Version: 1, Namespace: "research", Job: "cron", CreateIndex: 5, JobVersion: 1, Gang: "cron", Why: Reason{Code: "type", Text: "system jobs form no gang"}, At: epochTime},
		"order": Order{
			Version: 1, ID: "Q2", Gang: "resnet50", Kind: OrderPreempt, Values: map[string]string{"queue": "research"}, HoldS: 600,
			Reservation: "k3v9q1", Reason: "maintenance", By: "alice@ops", At: epochTime, Answer: &Answer{Text: "there is no such gang", At: later},
		},
		"queues": Queues{
			Version: 1, By: "alice@ops", At: epochTime,
			Policy: Policy{HalfLifeS: 86400, MinRuntimeS: 600, ReclaimAbove: 0.9, Evictions: 3, AgeBoundS: 7200, Defragment: true},
			Queues: []Queue{{
				Name: "research", Quota: 64, Max: 96, Weight: 2, Namespaces: []string{"research"}, Priority: &PriorityRange{Min: 10, Max: 80},
				Preempt: true, Defaults: QueueDefaults{NVLink: "preferred", Locality: "rack", RelaxAfter: "auto"},
			}, {Name: "research.vision"}},
		},
		"usage": Usage{Version: 1, At: epochTime, HalfLifeS: 86400, Queues: map[string]float64{"research.vision": 3600.5}},
		"run":   Run{Version: 1, Generation: 2, Phase: RunFailed, MasterAddr: "10.0.0.7", MasterPort: 29500, Missing: []int{1}, Why: "rank 1 ended with 1", Started: &later},
		"member": Member{
			Version: 1, Rank: 1, Generation: 2, Allocation: "a1", Node: "gpu-1", Address: "10.0.0.7", Port: 29500, State: MemberFailed,
			Started: &epochTime2, Ended: &later, ExitCode: &exit, Why: "killed",
			Checkpoint: &Checkpoint{Count: 4, Requested: epochTime, Completed: &later, TookMS: 90000, Entry: "step-400", Problem: "none"},
		},
	}
}

// epochTime2 is a second later, to point to.
var epochTime2 = epochTime.Add(time.Second)

func TestGoldenDocuments(t *testing.T) {
	for name, doc := range goldenDocs() {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			must.NoError(t, json.Indent(&got, encode(doc), "", "  "))
			got.WriteByte('\n')
			path := filepath.Join("testdata", name+".json")
			if *update {
				must.NoError(t, os.WriteFile(path, got.Bytes(), 0o644))
			}
			want, err := os.ReadFile(path)
			must.NoError(t, err)
			must.EqOp(t, string(want), got.String())
			again, err := decodeAs(name, Entry{Key: name, Value: want, Index: 7})
			must.NoError(t, err)
			must.Eq(t, doc, again)
		})
	}
}

// decodeAs decodes the document of a kind.
func decodeAs(kind string, entry Entry) (document, error) {
	switch kind {
	case "epoch":
		return docOf[Epoch](entry)
	case "node":
		return docOf[Node](entry)
	case "health":
		return docOf[Health](entry)
	case "table":
		return docOf[SlotTable](entry)
	case "claim":
		return docOf[Claim](entry)
	case "ack":
		return docOf[Ack](entry)
	case "gang":
		return docOf[Gang](entry)
	case "refusal":
		return docOf[Refusal](entry)
	case "order":
		return docOf[Order](entry)
	case "queues":
		return docOf[Queues](entry)
	case "usage":
		return docOf[Usage](entry)
	case "run":
		return docOf[Run](entry)
	default:
		return docOf[Member](entry)
	}
}

func docOf[T document](entry Entry) (document, error) {
	doc, err := decode[T](entry)
	return doc.Doc, err
}

// FuzzDecode feeds any bytes to every kind of document: what is accepted comes back the same, and nothing else happens.
func FuzzDecode(f *testing.F) {
	for _, doc := range goldenDocs() {
		f.Add(encode(doc))
	}
	f.Add([]byte(`{"version":2,"slots":[{"res":"a","boot":0}]}`))
	f.Add([]byte(`{"version":1,"slots":[{"res":"a","boot":-1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for kind := range goldenDocs() {
			doc, err := decodeAs(kind, Entry{Key: "muster/global/" + kind, Value: data})
			if err != nil {
				must.ErrorIs(t, err, ErrNewerVersion)
				continue
			}
			text := encode(doc)
			again, err := decodeAs(kind, Entry{Value: text})
			must.NoError(t, err, must.Sprint(string(text)))
			must.EqOp(t, string(text), string(encode(again)))
		}
	})
}

func FuzzSlotID(f *testing.F) {
	f.Add("k3v9q1.0")
	f.Add("a.b.1")
	f.Add(".1")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseSlotID(text)
		if err != nil {
			return
		}
		again, err := ParseSlotID(id.String())
		must.NoError(t, err)
		must.Eq(t, id, again)
	})
}

// TestNewerVersion puts documents of a newer version, and rubbish, under every key: they are listed, nothing else comes
// of them, and no call writes over them.
func TestNewerVersion(t *testing.T) {
	for name, value := range map[string]string{"newer": `{"version":2,"slots":7,"machine":"x"}`, "rubbish": `<html>`} {
		t.Run(name, func(t *testing.T) { testNewer(t, value) })
	}
}

func testNewer(t *testing.T, value string) {
	t.Helper()
	eachLedger(t, func(t *testing.T, l *Ledger) {
		t.Helper()
		lease := lead(t, l, "leader")
		k := l.Keys()
		id := SlotID{"r1", 0}
		keys := []string{
			k.Ack("n1"), k.Claim("n1", id), k.Epoch(), k.Gang("a"), k.Health("n1"), k.Node("n1"), k.Order("a"), k.Queues(), k.Refusal("default", "j"),
			k.Run("a", "r1"), k.Member("a", "r1", 0), k.Slots("n1"), k.Usage(),
		}
		for _, key := range keys {
			put(t, l.Store(), key, value)
		}
		before := load(t, l)
		must.Eq(t, keys, before.Newer)
		must.MapEmpty(t, before.Nodes)
		must.MapEmpty(t, before.Tables)
		must.MapEmpty(t, before.Gangs)
		must.MapLen(t, 1, before.Claims["n1"], must.Sprint("a claim that can't be read is a claim"))

		ctx := t.Context()
		run := Versioned[Run]{Doc: Run{Version: Version, Generation: 1}}
		_, claimErr := l.Claim(ctx, "n1", claimOf("r1", 0, "alloc"), anyone)
		_, runErr := l.PutRun(ctx, "a", "r1", "n1", 0, run)
		_, tableErr := l.WatchTable(ctx, "n1", 0, 0)
		_, gangErr := l.GetGang(ctx, "a")
		_, epochErr := l.NewEpoch(ctx, lease)
		_, readErr := l.GetQueues(ctx)
		_, usageErr := l.PutUsage(ctx, lease, Usage{})
		_, orderErr := l.PutOrder(ctx, Order{Gang: "a", Kind: OrderPreempt})
		node := session(t, l.Store(), NodeSession("n1"))
		for what, err := range map[string]error{
			"claim": claimErr, "run": runErr, "table": tableErr, "gang": gangErr, "epoch": epochErr, "order": orderErr, "queues": readErr, "usage": usageErr,
			"unclaim": l.Unclaim(ctx, "n1", id, "alloc"),
			"member":  l.PutMember(ctx, "a", "r1", Member{Version: Version, Node: "n1"}),
			"node":    l.PublishNode(ctx, node, inventory("n1", 1)),
			"health":  l.PublishHealth(ctx, "n1", Health{Version: Version}),
			"ack":     l.PublishAck(ctx, "n1", Ack{Version: Version}),
			"refusal": l.PutRefusal(ctx, lease, Refusal{Version: Version, Namespace: "default", Job: "j"}),
		} {
			must.ErrorIs(t, err, ErrNewerVersion, must.Sprint(what))
		}
		_, due := BuildAsk(before, "n1")
		must.False(t, due, must.Sprint("there is a table, whatever it says"))
		_, err := l.Commit(ctx, lease, Change{Gang: &Versioned[Gang]{Doc: asked("a", 1, 1)}})
		must.ErrorIs(t, err, ErrConflict)
		_, err = l.PutQueues(ctx, Versioned[Queues]{})
		must.ErrorIs(t, err, ErrConflict)
		must.EqOp(t, before.Index, load(t, l).Index, must.Sprint("nothing was written"))
	})
}
