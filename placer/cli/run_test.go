// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/cli"
	nomad "github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/placer/ledger"
)

// runWorld is what `muster run` talks to: a Nomad that keeps one job and its allocations, and a ledger into which the
// test writes as placer and drivers would.
type runWorld struct {
	t      *testing.T
	ledger *ledger.Ledger
	url    string

	mu      sync.Mutex
	changed chan struct{} // closed at each change
	index   uint64
	job     *nomad.Job
	source  *nomad.JobSubmission
	allocs  []*nomad.AllocationListStub
	output  map[string]string // by "<allocation>/<stdout or stderr>"
	ctx     context.Context   //nolint:containedctx // of the test
	gone    bool
	regions []string // of which Nomad and ledger were asked for
	tokens  []string // for Consul and Vault
}

func newRunWorld(t *testing.T) *runWorld {
	t.Helper()
	w := &runWorld{
		t: t, ledger: ledger.New(ledger.NewMemory(), "global"), changed: make(chan struct{}), index: 10,
		output: map[string]string{}, ctx: t.Context(),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/jobs", w.register)
	mux.HandleFunc("GET /v1/job/{id}", w.info)
	mux.HandleFunc("GET /v1/allocations", w.list)
	mux.HandleFunc("GET /v1/client/fs/logs/{id}", w.logs)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

func (w *runWorld) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.index++
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *runWorld) register(out http.ResponseWriter, in *http.Request) {
	var request registration
	must.NoError(w.t, json.NewDecoder(in.Body).Decode(&request))
	w.change(func() {
		w.job, w.source = request.Job.Job, request.Submission
		w.tokens = []string{request.Job.ConsulToken, request.Job.VaultToken}
		w.job.Version, w.job.CreateIndex, w.job.Stop = new(uint64(3)), new(uint64(7)), new(false)
	})
	_ = json.NewEncoder(out).Encode(nomad.JobRegisterResponse{Warnings: "a warning of Nomad's"})
}

func (w *runWorld) info(out http.ResponseWriter, _ *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone || w.job == nil {
		http.Error(out, "job not found", http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(out).Encode(w.job)
}

func (w *runWorld) list(out http.ResponseWriter, in *http.Request) {
	must.EqOp(w.t, `JobID == "train"`, in.URL.Query().Get("filter"))
	w.mu.Lock()
	changed, index, after := w.changed, w.index, in.URL.Query().Get("index")
	w.mu.Unlock()
	if fmt.Sprint(index) == after {
		select {
		case <-changed:
		case <-in.Context().Done():
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out.Header().Set("X-Nomad-Index", fmt.Sprint(w.index))
	_ = json.NewEncoder(out).Encode(w.allocs)
}

// logs streams an output as it grows, to its end unless it is followed.
func (w *runWorld) logs(out http.ResponseWriter, in *http.Request) {
	key, sent := in.PathValue("id")+"/"+in.URL.Query().Get("type"), 0
	_, err := fmt.Sscan(in.URL.Query().Get("offset"), &sent)
	must.NoError(w.t, err)
	for in.Context().Err() == nil {
		w.mu.Lock()
		text, started, changed := w.output[key], w.output[in.PathValue("id")+"/stdout"] != "", w.changed
		w.mu.Unlock()
		if !started {
			http.Error(out, "task not started yet", http.StatusNotFound)
			return
		}
		if len(text) > sent {
			_ = json.NewEncoder(out).Encode(nomad.StreamFrame{Data: []byte(text[sent:])})
			sent = len(text)
		} else {
			_, _ = out.Write([]byte("{}"))
		}
		if in.URL.Query().Get("follow") != "true" {
			return
		}
		out.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-in.Context().Done():
		}
	}
}

// place lets Nomad put a member on a slot.
func (w *runWorld) place(reservation string, rank int) {
	w.change(func() {
		w.allocs = append(w.allocs, &nomad.AllocationListStub{
			ID: fmt.Sprintf("%s-%d", reservation, rank), NodeID: "node", ClientStatus: "running", Namespace: "default",
			AllocatedResources: &nomad.AllocatedResources{Tasks: map[string]*nomad.AllocatedTaskResources{"train": {
				Devices: []*nomad.AllocatedDeviceResource{{
					Vendor: "muster", Type: "gang", Name: fmt.Sprintf("train.%d", rank), DeviceIDs: []string{"GPU-1@" + reservation},
				}},
			}}},
		})
	})
}

// print lets a member print something.
func (w *runWorld) print(reservation string, rank int, stream, text string) {
	w.change(func() { w.output[fmt.Sprintf("%s-%d/%s", reservation, rank, stream)] += text })
}

// end lets all members end.
func (w *runWorld) end(status string) {
	w.change(func() {
		for _, a := range w.allocs {
			a.ClientStatus = status
		}
	})
}

// gang writes the gang's document.
func (w *runWorld) gang(change func(g *ledger.Gang)) {
	g := ledger.Gang{
		Version: 1, Name: "train", Namespace: "default", Job: "train", CreateIndex: 7, JobVersion: 3, State: ledger.GangWaiting,
	}
	change(&g)
	value, err := json.Marshal(g)
	must.NoError(w.t, err)
	w.write(ledger.Op{Verb: ledger.Set, Key: w.ledger.Keys().Gang("train"), Value: value})
}

func (w *runWorld) write(op ledger.Op) {
	_, err := w.ledger.Store().Txn(w.ctx, []ledger.Op{op})
	must.NoError(w.t, err)
}

func granted(g *ledger.Gang, reservation string) {
	g.State = ledger.GangReserved
	g.Reservation = &ledger.Grant{ID: reservation, Placements: []ledger.Placement{
		{Node: "n1", Group: "worker", Members: 2, GPUs: 4}, {Node: "n2", Group: "worker", Rank: 2, Members: 1, GPUs: 4},
	}}
}

// command is one muster run under way.
type command struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan int
	out    *syncBuffer // standard output
	errs   *syncBuffer // standard error
}

func (w *runWorld) start(args ...string) *command {
	ctx, cancel := context.WithCancel(w.t.Context())
	c := &command{t: w.t, cancel: cancel, done: make(chan int, 1), out: &syncBuffer{}, errs: &syncBuffer{}}
	meta := Meta{
		UI: &cli.BasicUi{Writer: c.out, ErrorWriter: c.errs}, Stdout: c.out, Stderr: c.errs, Context: ctx, Now: func() time.Time { return noon },
		Open: func(region string) (*ledger.Ledger, error) {
			w.change(func() { w.regions = append(w.regions, "ledger "+region) })
			return w.ledger, nil
		},
		Nomad: func(region string) (*nomad.Client, error) {
			w.change(func() { w.regions = append(w.regions, "nomad "+region) })
			return nomad.NewClient(&nomad.Config{Address: w.url})
		},
	}
	go func() { c.done <- run(append([]string{"run"}, args...), c.errs, meta) }()
	return c
}

// prints waits until a text has been printed.
func (c *command) prints(in *syncBuffer, text string) {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(in.String(), text) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%q is not printed; standard output:\n%s\nstandard error:\n%s", text, c.out, c.errs)
		}
		time.Sleep(2 * time.Millisecond) // between two polls
	}
}

// exits waits for the end, and compares all that was said.
func (c *command) exits(code int, out, errs string) {
	c.t.Helper()
	select {
	case got := <-c.done:
		must.EqOp(c.t, code, got)
	case <-time.After(time.Minute):
		c.t.Fatalf("it goes on; standard output:\n%s\nstandard error:\n%s", c.out, c.errs)
	}
	c.cancel()
	must.EqOp(c.t, out, c.out.String())
	must.EqOp(c.t, errs, c.errs.String())
}

const submitted = "[muster 12:00:00] Nomad warns: a warning of Nomad's\n" +
	"[muster 12:00:00] submitted job train (version 3): gang train: 3 members x 4 GPUs = 12, anywhere, no checkpoints\n"

func jobFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "train.nomad.hcl")
	must.NoError(t, os.WriteFile(path, []byte(trainJob), 0o600))
	return path
}

// TestRun_AcrossStarts: the gang waits, runs, is preempted, runs again and finishes; rank 0's output comes whole, and
// nobody else's.
func TestRun_AcrossStarts(t *testing.T) {
	w := newRunWorld(t)
	c := w.start("-var", "gpus=4", jobFile(t))
	c.prints(c.errs, "submitted")
	w.gang(func(g *ledger.Gang) { g.Why = &ledger.Reason{Text: "needs 12 free GPUs; 8 of 16 are free"} })
	c.prints(c.errs, "needs 12")
	w.gang(func(g *ledger.Gang) { granted(g, "r1") })
	c.prints(c.errs, "granted")
	for rank := range 3 {
		w.place("r1", rank)
	}
	w.print("r1", 0, "stdout", "step 1\n")
	w.print("r1", 1, "stdout", "rank 1 is silent\n")
	w.print("r1", 0, "stderr", "careful\n")
	c.prints(c.out, "step 1")
	c.prints(c.errs, "careful")
	w.gang(func(g *ledger.Gang) { granted(g, "r1"); g.State = ledger.GangRunning })
	c.prints(c.errs, "runs")
	w.gang(func(g *ledger.Gang) {
		granted(g, "r1")
		g.State, g.After, g.Why = ledger.GangClosing, ledger.GangWaiting, &ledger.Reason{Text: "preempted by an operator"}
	})
	c.prints(c.errs, "ends")
	w.print("r1", 0, "stdout", "checkpoint\n")
	w.end("failed")
	c.prints(c.out, "checkpoint")
	w.gang(func(g *ledger.Gang) { g.Why = &ledger.Reason{Text: "needs 12 free GPUs; none is free"} })
	c.prints(c.errs, "none is free")
	w.gang(func(g *ledger.Gang) { granted(g, "r2") })
	w.place("r2", 0)
	w.print("r2", 0, "stdout", "step 2\n")
	c.prints(c.out, "step 2")
	w.print("r2", 0, "stdout", "done\n")
	w.end("complete")
	w.gang(func(g *ledger.Gang) { g.State = ledger.GangFinished })
	c.exits(0, "step 1\ncheckpoint\nstep 2\ndone\n", submitted+
		"[muster 12:00:00] waits: needs 12 free GPUs; 8 of 16 are free\n"+
		"[muster 12:00:00] granted: ranks 0-1 on n1, rank 2 on n2\n"+
		"careful\n"+
		"[muster 12:00:00] runs\n"+
		"[muster 12:00:00] ends: preempted by an operator; then it waits again\n"+
		"[muster 12:00:00] waits: needs 12 free GPUs; none is free\n"+
		"[muster 12:00:00] granted: ranks 0-1 on n1, rank 2 on n2\n"+
		"[muster 12:00:00] gang train has finished\n")
	must.EqOp(t, trainJob, w.source.Source)
	must.Eq(t, map[string]string{"gpus": "4"}, w.source.VariableFlags)
}

func TestRun_AllRanks(t *testing.T) {
	w := newRunWorld(t)
	c := w.start("-all", "-var", "gpus=4", jobFile(t))
	w.gang(func(g *ledger.Gang) { granted(g, "r1") })
	for rank := range 3 {
		w.place("r1", rank)
		w.print("r1", rank, "stdout", "hel")
		w.print("r1", rank, "stdout", fmt.Sprintf("lo\nbye %d", rank))
		c.prints(c.out, fmt.Sprintf("[%d] hello\n", rank))
	}
	w.end("complete")
	w.gang(func(g *ledger.Gang) { g.State = ledger.GangFinished })
	must.EqOp(t, 0, <-c.done)
	for rank := range 3 {
		must.StrContains(t, c.out.String(), fmt.Sprintf("[%d] bye %d\n", rank, rank))
	}
}

func TestRun_Ends(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(w *runWorld)
		code    int
		says    string
	}{
		"the gang fails for good": {func(w *runWorld) {
			w.gang(func(g *ledger.Gang) {
				g.State, g.Why = ledger.GangFailed, &ledger.Reason{Text: "rank 1 on n2 failed: exit code 3, 8 times in a row"}
			})
		}, 1, "gang train has failed: rank 1 on n2 failed: exit code 3, 8 times in a row"},
		"the job is refused": {func(w *runWorld) {
			old, err := json.Marshal(ledger.Refusal{Version: 1, Namespace: "default", Job: "train", CreateIndex: 7, JobVersion: 2})
			must.NoError(w.t, err)
			value, err := json.Marshal(ledger.Refusal{
				Version: 1, Namespace: "default", Job: "train", CreateIndex: 7, JobVersion: 3,
				Why: ledger.Reason{Text: "the gang name train belongs to job other in namespace default, which asked first; choose another name"},
			})
			must.NoError(w.t, err)
			w.write(ledger.Op{Verb: ledger.Set, Key: w.ledger.Keys().Refusal("default", "train"), Value: old})
			w.write(ledger.Op{Verb: ledger.Set, Key: w.ledger.Keys().Refusal("default", "train"), Value: value})
		}, 1, "job train was refused: the gang name train belongs to job other in namespace default, which asked first; choose another name"},
		"this version had finished": {func(w *runWorld) {
			w.gang(func(g *ledger.Gang) { g.State = ledger.GangFinished })
		}, 0, "gang train has finished already; an unchanged job runs nothing"},
		"the job is purged before any placer has seen it": {func(w *runWorld) {
			w.change(func() { w.gone = true })
		}, 1, "job train was stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRunWorld(t)
			c := w.start("-var", "gpus=4", jobFile(t))
			c.prints(c.errs, "submitted")
			tc.happens(w)
			c.exits(tc.code, "", submitted+"[muster 12:00:00] "+tc.says+"\n")
		})
	}
}

// TestRun_Stopped: the gang's document goes when its job is stopped; documents of earlier versions say nothing.
func TestRun_Stopped(t *testing.T) {
	w := newRunWorld(t)
	w.gang(func(g *ledger.Gang) { g.State, g.JobVersion = ledger.GangFinished, 2 })
	c := w.start("-var", "gpus=4", jobFile(t))
	c.prints(c.errs, "submitted")
	w.gang(func(g *ledger.Gang) {})
	c.prints(c.errs, "waits")
	w.change(func() { w.job.Stop = new(true) })
	w.write(ledger.Op{Verb: ledger.Delete, Key: w.ledger.Keys().Gang("train")})
	c.exits(1, "", submitted+"[muster 12:00:00] waits\n[muster 12:00:00] job train was stopped\n")
}

// TestRun_Detached: Ctrl-C leaves the gang alone, and a later run follows it again.
func TestRun_Detached(t *testing.T) {
	w := newRunWorld(t)
	c := w.start("-var", "gpus=4", jobFile(t))
	w.gang(func(g *ledger.Gang) { granted(g, "r1") })
	w.place("r1", 0)
	w.print("r1", 0, "stdout", "step 1\n")
	c.prints(c.out, "step 1")
	c.cancel()
	c.exits(130, "step 1\n", submitted+"[muster 12:00:00] granted: ranks 0-1 on n1, rank 2 on n2\n"+
		"[muster 12:00:00] detached; gang train goes on. To stop it: nomad job stop train. To follow it again: muster run -follow train\n")

	c = w.start("-follow", "train")
	c.prints(c.out, "step 1")
	w.end("complete")
	w.gang(func(g *ledger.Gang) { g.State = ledger.GangFinished })
	c.exits(0, "step 1\n", "[muster 12:00:00] granted: ranks 0-1 on n1, rank 2 on n2\n[muster 12:00:00] gang train has finished\n")

	c = w.start("-detach", "-var", "gpus=4", jobFile(t))
	c.exits(0, "", submitted+"[muster 12:00:00] to follow it: muster run -follow train\n")
}

// TestRun_AsNomadJobRun: region and tokens come from where 'nomad job run' takes them.
func TestRun_AsNomadJobRun(t *testing.T) {
	elsewhere := strings.Replace(trainJob, `type = "batch"`, "type = \"batch\"\n  region = \"west\"", 1)
	for name, tc := range map[string]struct {
		file   string
		flags  []string
		env    map[string]string
		region string
		tokens []string
	}{
		"nothing is said":            {file: trainJob, region: "global"},
		"the environment":            {file: trainJob, env: map[string]string{"NOMAD_REGION": "east"}, region: "east"},
		"the flag before the former": {file: trainJob, flags: []string{"-region=north"}, env: map[string]string{"NOMAD_REGION": "east"}, region: "north"},
		"the file before all":        {file: elsewhere, flags: []string{"-region=north"}, env: map[string]string{"NOMAD_REGION": "east"}, region: "west"},
		"tokens":                     {file: trainJob, env: map[string]string{"CONSUL_HTTP_TOKEN": "c", "VAULT_TOKEN": "v"}, region: "global", tokens: []string{"c", "v"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"NOMAD_REGION", "CONSUL_HTTP_TOKEN", "VAULT_TOKEN"} {
				t.Setenv(variable, tc.env[variable])
			}
			w := newRunWorld(t)
			path := filepath.Join(t.TempDir(), "train.nomad.hcl")
			must.NoError(t, os.WriteFile(path, []byte(tc.file), 0o600))
			w.gang(func(g *ledger.Gang) { g.State = ledger.GangFinished })
			c := w.start(append(tc.flags, "-var", "gpus=4", path)...)
			must.EqOp(t, exitDone, <-c.done)
			must.Eq(t, []string{"nomad " + tc.region, "ledger " + tc.region}, w.regions)
			if tc.tokens == nil {
				tc.tokens = []string{"", ""}
			}
			must.Eq(t, tc.tokens, w.tokens)
		})
	}
}

func TestRun_Refuses(t *testing.T) {
	w := newRunWorld(t)
	dir := t.TempDir()
	faulty, plain := filepath.Join(dir, "faulty.nomad.hcl"), filepath.Join(dir, "plain.nomad.hcl")
	must.NoError(t, os.WriteFile(faulty, []byte(strings.Replace(trainJob, `mode     = "fail"`, `mode     = "delay"`, 1)), 0o600))
	must.NoError(t, os.WriteFile(plain, []byte("job \"x\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n    }\n  }\n}\n"), 0o600))

	c := w.start("-var", "gpus=4", faulty)
	must.EqOp(t, 2, <-c.done)
	must.StrContains(t, c.errs.String(), "faulty.nomad.hcl:")
	must.Nil(t, w.job)
	c = w.start(plain)
	c.exits(1, "", "Error: "+plain+" asks for no gang: it is an ordinary job; submit it with 'nomad job run'\n")
	c = w.start("-follow", "nosuch")
	c.exits(1, "", "Error: no gang named \"nosuch\"; 'muster gangs' lists all\n")
	c = w.start()
	c.exits(1, "", "this command takes one job file; for additional help try 'muster run -h'\n")
}

const trainJob = `variable "gpus" {
  type = number
}

job "train" {
  type = "batch"

  group "worker" {
    count                 = 3
    max_client_disconnect = "15m"

    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts       = 0
      unlimited      = true
      delay          = "5s"
      delay_function = "constant"
    }

    task "train" {
      driver       = "muster"
      kill_timeout = "20s"

      config {
        command = "train"
      }

      resources {
        device "muster/gang" {
          count = var.gpus

          constraint {
            attribute = "${device.attr.gang}"
            value     = "train"
          }
        }
      }
    }
  }
}
`

// syncBuffer is a buffer that one writes while another looks.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(data)
}

// String is all that was written.
func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
