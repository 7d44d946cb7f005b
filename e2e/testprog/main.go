// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Command testprog stands in for a training program in the end-to-end tests: it opens the GPUs that it was given, holds
// them for a while, writes a checkpoint whenever it is asked to, and ends as its flags say.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lookEvery is how often the program looks for the file that ends it.
const lookEvery = 50 * time.Millisecond

type options struct {
	runFor     time.Duration
	until      string
	checkpoint string
	takes      time.Duration
	takesFrom  string
	holdWhile  string
	resume     string
	exit       int
	exitRank   int
	once       string
	apart      time.Duration
	stubborn   bool
}

func main() {
	var o options
	flag.DurationVar(&o.runFor, "for", time.Second, "how long to run")
	flag.StringVar(&o.until, "until", "", "end as soon as this file exists")
	flag.StringVar(&o.checkpoint, "checkpoint", "", "folder for a checkpoint at each SIGUSR1")
	flag.DurationVar(&o.takes, "takes", 0, "how long a checkpoint takes")
	flag.StringVar(&o.takesFrom, "takes-from", "", "file with how long the next checkpoint takes, one duration a line by rank, instead of -takes")
	flag.StringVar(&o.holdWhile, "hold-while", "", "finish no checkpoint while this file exists")
	flag.StringVar(&o.resume, "resume", "", "folder with folders of checkpoints: go on from the last one of this rank in any of them")
	flag.IntVar(&o.exit, "exit", 0, "exit code at the end")
	flag.IntVar(&o.exitRank, "exit-rank", -1, "the rank that ends with that code, others with 0; -1: all")
	flag.StringVar(&o.once, "once", "", "end with that code only if this file does not exist, and make it")
	flag.DurationVar(&o.apart, "apart", 0, "how much longer each rank runs than the one before it")
	flag.BoolVar(&o.stubborn, "stubborn", false, "ignore SIGTERM and SIGINT")
	flag.Parse()
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testprog:", err)
		os.Exit(70)
	}
	os.Exit(code)
}

func run(o options) (int, error) {
	requests := make(chan os.Signal, 8)
	if o.checkpoint != "" {
		signal.Notify(requests, syscall.SIGUSR1)
	}
	if o.stubborn {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	}
	gpus, err := openGPUs()
	if err != nil {
		return 0, err
	}
	defer closeAll(gpus)
	rank := os.Getenv("MUSTER_RANK")
	fmt.Printf("gang %s rank %s of %s, generation %s: %d GPUs open\n", os.Getenv("MUSTER_GANG"), rank,
		os.Getenv("MUSTER_SIZE"), os.Getenv("MUSTER_GENERATION"), len(gpus))

	done, err := o.resumeFrom(rank)
	if err != nil {
		return 0, err
	}
	n, _ := strconv.Atoi(rank) // without a gang there is none
	end := time.NewTimer(o.runFor + time.Duration(n)*o.apart)
	defer end.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for count := done + 1; ; {
		select {
		case <-requests:
			if err := writeCheckpoint(o, rank, count); err != nil {
				return 0, err
			}
			count++
		case <-look.C:
			if o.until != "" && exists(o.until) {
				return o.exitCode(rank), nil
			}
		case <-end.C:
			return o.exitCode(rank), nil
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// exitCode is how this rank ends.
func (o options) exitCode(rank string) int {
	fmt.Println("finished")
	if o.exitRank >= 0 && strconv.Itoa(o.exitRank) != rank {
		return 0
	}
	if o.once != "" {
		if exists(o.once) {
			return 0
		}
		if err := os.WriteFile(o.once, nil, 0o666); err != nil {
			fmt.Fprintln(os.Stderr, "testprog:", err)
			return 71
		}
	}
	return o.exit
}

// openGPUs opens the device nodes that the slot consists of, so that whoever looks sees the GPUs in use.
func openGPUs() ([]*os.File, error) {
	list := os.Getenv("MUSTER_GPU_DEVICES")
	if list == "" {
		return nil, errors.New("MUSTER_GPU_DEVICES is empty: this task got no GPUs")
	}
	var open []*os.File
	for _, path := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ':' || r == ' ' }) {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			closeAll(open)
			return nil, fmt.Errorf("opening a GPU: %w", err)
		}
		open = append(open, file)
	}
	return open, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// duration is how long a rank's next checkpoint takes.
func (o options) duration(rank string) (time.Duration, error) {
	if o.takesFrom == "" {
		return o.takes, nil
	}
	text, err := os.ReadFile(o.takesFrom)
	if err != nil {
		return 0, fmt.Errorf("how long a checkpoint takes: %w", err)
	}
	lines := strings.Fields(string(text))
	line, err := strconv.Atoi(rank)
	if err != nil || line >= len(lines) {
		return 0, fmt.Errorf("how long a checkpoint takes: %s has no line for rank %q", o.takesFrom, rank)
	}
	return time.ParseDuration(lines[line])
}

// resumeFrom returns the number of the rank's last finished checkpoint, 0 without one, and says that it goes on from there.
func (o options) resumeFrom(rank string) (int, error) {
	if o.resume == "" {
		return 0, nil
	}
	finished, err := filepath.Glob(filepath.Join(o.resume, "*", "rank"+rank+"-*.ckpt"))
	if err != nil {
		return 0, fmt.Errorf("looking for checkpoints: %w", err)
	}
	last := 0
	for _, file := range finished {
		var count int
		if _, err := fmt.Sscanf(filepath.Base(file), "rank"+rank+"-%d.ckpt", &count); err != nil {
			return 0, fmt.Errorf("%s is no checkpoint: %w", file, err)
		}
		last = max(last, count)
	}
	if last > 0 {
		fmt.Printf("rank %s goes on from checkpoint %d\n", rank, last)
	}
	return last, nil
}

// writeCheckpoint writes a file under another name first, as a real program would, so that none is ever half written.
func writeCheckpoint(o options, rank string, count int) error {
	if err := os.MkdirAll(o.checkpoint, 0o777); err != nil {
		return fmt.Errorf("folder for checkpoints: %w", err)
	}
	asked := time.Now()
	name := fmt.Sprintf("rank%s-%06d.ckpt", rank, count)
	part := filepath.Join(o.checkpoint, "."+name+".tmp")
	if err := os.WriteFile(part, []byte(asked.Format(time.RFC3339Nano)+"\n"), 0o666); err != nil {
		return fmt.Errorf("writing a checkpoint: %w", err)
	}
	takes, err := o.duration(rank)
	if err != nil {
		return err
	}
	time.Sleep(takes)
	for o.holdWhile != "" && exists(o.holdWhile) {
		time.Sleep(lookEvery)
	}
	if err := os.Rename(part, filepath.Join(o.checkpoint, name)); err != nil {
		return fmt.Errorf("finishing a checkpoint: %w", err)
	}
	fmt.Printf("checkpoint %d asked at %s\n", count, asked.Format(time.RFC3339Nano))
	return nil
}
