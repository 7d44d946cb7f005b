#!/usr/bin/env python3
# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0
"""Starts an MPI program over the members of a gang with Open MPI 4 and without ssh.

Every member runs `mpi_launch.py PROGRAM ARGS...`. Rank 0 runs mpirun. Where mpirun would use ssh to start its helper
(orted) on another node, it is given this script instead, which only leaves the helper's command for the member that
waits for it: each other member fetches its own from rank 0, at the address and port that Muster gives to the gang, and
runs it. There is no other connection to make and no key to hand out. mpirun then starts one process for each GPU.

A program that asks for checkpoints gets the signal from Muster like any other: mpirun and orted are never the target.
"""

import functools
import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

FETCH_SECONDS = 300  # how long a member waits for rank 0's mpirun


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the files of one directory and logs nothing: members ask until their command is there."""

    def log_message(self, *args):
        pass


def slots():
    """How many processes each member gets, by rank: the host file has a line like "10.0.0.7 slots=8" for each."""
    with open(os.environ["MUSTER_HOSTS_FILE"]) as lines:
        return [int(re.search(r"\bslots=(\d+)", line).group(1)) for line in lines if line.strip()]


def loopback_options(address):
    """Open MPI leaves out the loopback interface unless told otherwise; a gang on one machine may have nothing else."""
    if not address.startswith("127."):
        return []
    return ["--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]


def run_mpirun(address, port, program):
    """Rank 0. Members are called muster-<rank>, since several of them may be on one machine."""
    directory = tempfile.mkdtemp(prefix="muster-mpi-")
    handler = functools.partial(Quiet, directory=os.path.join(directory, "commands"))
    os.mkdir(os.path.join(directory, "commands"))
    server = http.server.ThreadingHTTPServer((address, port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    per_member = slots()
    hosts = os.path.join(directory, "hosts")
    with open(hosts, "w") as out:
        for rank, count in enumerate(per_member):
            out.write(f"{'localhost' if rank == 0 else f'muster-{rank}'} slots={count}\n")
    agent = f"{sys.executable} {os.path.abspath(__file__)} --agent {directory}/commands"
    command = ["mpirun", "--hostfile", hosts, "-np", str(sum(per_member)), "--bind-to", "none",
               "--leave-session-attached",  # the helper stays a child of the member's task
               "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1",
               "--mca", "orte_keep_fqdn_hostnames", "1", *loopback_options(address)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    try:
        return run(command + program, {"TMPDIR": directory})
    finally:
        server.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


def leave_command(directory, arguments):
    """Called by mpirun in place of ssh, with a host and a command for it."""
    host = next(i for i, a in enumerate(arguments) if a.startswith("muster-"))
    rank, command = arguments[host].removeprefix("muster-"), " ".join(arguments[host + 1:])
    unfinished = os.path.join(directory, "." + rank)
    with open(unfinished, "w") as out:
        out.write(command)
    os.rename(unfinished, os.path.join(directory, rank))
    return 0


def run_helper(address, port, rank):
    """All other ranks: fetch the helper's command and run it."""
    deadline = time.monotonic() + FETCH_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}:{port}/{rank}", timeout=10) as answer:
                command = answer.read().decode()
            break
        except (urllib.error.URLError, OSError):  # not there yet
            if time.monotonic() > deadline:
                print(f"rank 0 has not started mpirun within {FETCH_SECONDS} s", file=sys.stderr)
                return 1
            time.sleep(0.1)
    # Open MPI names its shared memory after the machine: give each member a place of its own, or two on one machine mix.
    directory = tempfile.mkdtemp(prefix="muster-mpi-", dir="/dev/shm")
    try:
        return run(["/bin/sh", "-c", command], {"TMPDIR": directory, "OMPI_MCA_btl_vader_backing_directory": directory})
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(command, environment):
    """Runs a command to its end and returns its exit status. A SIGTERM is passed on, so that it can clean up."""
    process = subprocess.Popen(command, env={**os.environ, **environment})
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    status = process.wait()
    return status if status >= 0 else 128 - status


def main():
    if sys.argv[1] == "--agent":
        return leave_command(sys.argv[2], sys.argv[3:])
    address, port = os.environ["MUSTER_MASTER_ADDR"], int(os.environ["MUSTER_MASTER_PORT"])
    rank = int(os.environ["MUSTER_RANK"])
    if rank == 0:
        return run_mpirun(address, port, sys.argv[1:])
    return run_helper(address, port, rank)


if __name__ == "__main__":
    sys.exit(main())
