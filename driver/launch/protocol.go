// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/nomad-muster/muster/driver/launch/proc"
	"golang.org/x/sys/unix"
)

// The protocol: one connection per request; a request and its answer are one line of JSON each. An exec request carries
// the three streams of the new process as file descriptors in the same message.

// operation is what a request asks for.
type operation string

const (
	opWait      operation = "wait"      // answered when the command has ended and its output was passed on
	opSignal    operation = "signal"    // to the listed processes, or to the command if none is listed
	opKill      operation = "kill"      // SIGKILL to all, until all are gone
	opExec      operation = "exec"      // run a command beside the task's; answered when it has ended
	opProcesses operation = "processes" // list the task's processes
	opStats     operation = "stats"     // CPU and memory
)

type request struct {
	Version  int       `json:"version"`
	Op       operation `json:"op"`
	Signal   int       `json:"signal,omitempty"`
	PIDs     []int     `json:"pids,omitempty"`
	Argv     []string  `json:"argv,omitempty"`
	Terminal bool      `json:"terminal,omitempty"` // the first stream is a terminal to control the new session by
}

type response struct {
	Error     string         `json:"error,omitempty"`
	Exit      *Exit          `json:"exit,omitempty"`
	Processes []proc.Process `json:"processes,omitempty"`
	Stats     *Stats         `json:"stats,omitempty"`
}

// maxRequestBytes bounds one request; a longer line is refused.
const maxRequestBytes = 1 << 20

// socketAddress is the socket of a task's directory by a path short enough for the kernel (108 bytes), whatever the
// directory's own. Close the file after use of the address.
func socketAddress(dir string) (*net.UnixAddr, *os.File, error) {
	handle, err := os.Open(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the task's directory: %w", err)
	}
	name := filepath.Join("/proc/self/fd", fmt.Sprint(handle.Fd()), socketFile)
	return &net.UnixAddr{Name: name, Net: "unix"}, handle, nil
}

// send writes one line, with file descriptors if there are any.
func send(conn *net.UnixConn, message any, files ...*os.File) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, 0, len(files))
		for _, file := range files {
			fds = append(fds, int(file.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	line = append(line, '\n')
	n, _, err := conn.WriteMsgUnix(line, rights, nil)
	if err == nil && n < len(line) {
		_, err = conn.Write(line[n:])
	}
	if err != nil {
		return fmt.Errorf("sending to the task's supervisor: %w", err)
	}
	return nil
}

// receiveRequest reads a request and the file descriptors that came with its first piece.
func receiveRequest(conn *net.UnixConn) (request, []*os.File, error) {
	buffer, rights := make([]byte, maxRequestBytes), make([]byte, unix.CmsgSpace(3*4))
	var files []*os.File
	for have := 0; have < len(buffer); {
		n, rightsBytes, _, _, err := conn.ReadMsgUnix(buffer[have:], rights)
		if err != nil || n == 0 {
			closeAll(files)
			return request{}, nil, errors.Join(errors.New("the request broke off"), err)
		}
		files = append(files, received(rights[:rightsBytes])...)
		have += n
		if buffer[have-1] == '\n' {
			var r request
			if err := json.Unmarshal(buffer[:have], &r); err != nil {
				closeAll(files)
				return request{}, nil, fmt.Errorf("decoding a request: %w", err)
			}
			return r, files, nil
		}
	}
	closeAll(files)
	return request{}, nil, errors.New("the request is too long")
}

func received(rights []byte) []*os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "stream"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}

// receiveResponse reads an answer.
func receiveResponse(conn *net.UnixConn) (response, error) {
	var r response
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return r, fmt.Errorf("the task's supervisor gave no answer: %w", err)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("decoding the supervisor's answer: %w", err)
	}
	return r, nil
}
