#!/usr/bin/env python3
# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0
"""A launcher that hands out work and workers that do it: the program of a gang of two groups.

The launcher is rank 0, since its group comes first in the job. All members know its address and port from Muster. On
SIGUSR1 the launcher saves what is done so far, and a new run goes on from there.
"""

import argparse
import json
import os
import queue
import signal
import threading
import time
from multiprocessing.managers import BaseManager


class Pool(BaseManager):
    """The two queues that the launcher shares with the workers over the network."""


def connection():
    address = (os.environ["MUSTER_MASTER_ADDR"], int(os.environ["MUSTER_MASTER_PORT"]))
    return {"address": address, "authkey": os.environ["MUSTER_RESERVATION"].encode()}  # only members know it


def load(path):
    try:
        with open(path) as saved:
            return {int(item): result for item, result in json.load(saved).items()}
    except FileNotFoundError:
        return {}


def save(path, results):
    unfinished = os.path.join(os.path.dirname(path), "." + os.path.basename(path))
    with open(unfinished, "w") as out:
        json.dump(results, out)
    os.replace(unfinished, path)
    print(f"checkpoint: {len(results)} results", flush=True)


def launch(options):
    os.makedirs(options.checkpoints, exist_ok=True)
    path = os.path.join(options.checkpoints, "results.json")
    asked = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))

    work, done = queue.Queue(), queue.Queue()
    Pool.register("work", callable=lambda: work)
    Pool.register("done", callable=lambda: done)
    results = load(path)
    print(f"launcher starts with {len(results)} of {options.items} results", flush=True)
    for item in range(options.items):
        if item not in results:
            work.put(item)

    pool = Pool(**connection())
    server = pool.get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    workers = int(os.environ["MUSTER_SIZE"]) - 1
    while len(results) < options.items:
        try:
            item, result = done.get(timeout=0.1)
            results[item] = result
        except queue.Empty:
            pass
        if asked:
            asked.clear()
            save(path, results)
    for _ in range(workers):
        work.put(None)
    for _ in range(workers):
        done.get()
    save(path, results)
    print(f"sum of {options.items} squares: {sum(results.values())}", flush=True)


def do_work(options):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the launcher saves for all
    Pool.register("work")
    Pool.register("done")
    pool = Pool(**connection())
    while True:
        try:
            pool.connect()
            break
        except ConnectionRefusedError:  # the launcher is not ready yet
            time.sleep(0.1)
    work, done = pool.work(), pool.done()
    count = 0
    while (item := work.get()) is not None:
        time.sleep(options.seconds)
        done.put((item, item * item))
        count += 1
    print(f"worker did {count} items", flush=True)
    done.put(None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["launcher", "worker"])
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each item")
    parser.add_argument("--checkpoints", default="/tmp/muster/pool")
    options = parser.parse_args()
    if options.role == "launcher":
        launch(options)
    else:
        do_work(options)


if __name__ == "__main__":
    main()
