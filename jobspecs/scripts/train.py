#!/usr/bin/env python3
# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0
"""Trains a tiny model with PyTorch's DistributedDataParallel: the pattern of a program that Muster can stop and resume.

Muster sends SIGUSR1 at the checkpoint interval and before it stops the task. All processes then save one checkpoint
together, after the step they are in. A new run goes on from the newest checkpoint.

torchrun starts this script, one process for each GPU. It works without GPUs, too.
"""

import argparse
import os
import signal
import sys

# Catch the signal before anything slow is imported: a SIGUSR1 that nobody catches ends the process.
asked = False


def on_signal(number, frame):
    global asked
    asked = True


signal.signal(signal.SIGUSR1, on_signal)

import time  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def newest(directory):
    """The newest finished checkpoint, or None. Files whose names start with a dot are not finished."""
    names = [n for n in os.listdir(directory) if n.startswith("step-")]
    return os.path.join(directory, max(names)) if names else None


def save(directory, step, model, optimizer):
    """Writes a checkpoint under a name of its own, and gives it its real name only when it is complete."""
    name = f"step-{step:08d}.pt"
    unfinished = os.path.join(directory, "." + name)
    torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    os.replace(unfinished, os.path.join(directory, name))
    print(f"checkpoint {name}", flush=True)


def any_rank(value, device):
    """Whether any process says so: the signal reaches the processes at different steps, but all must save together."""
    flag = torch.tensor(int(value), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def open_devices(local_rank):
    """Keeps this process's GPU device file open, as CUDA does, so that made-up GPUs show who uses them."""
    paths = [p for p in os.environ.get("MUSTER_GPU_DEVICES", "").split(",") if p]
    if local_rank >= len(paths):
        return None
    try:
        return open(paths[local_rank], "rb", buffering=0)
    except OSError as error:
        print(f"going on without {paths[local_rank]}: {error}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000, help="steps of the whole training, over all runs")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="how long a step takes at least")
    parser.add_argument("--checkpoints", required=True, help="a directory that all nodes share")
    options = parser.parse_args()
    os.makedirs(options.checkpoints, exist_ok=True)

    local_rank = int(os.environ["LOCAL_RANK"])  # set by torchrun
    held = None
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        held = open_devices(local_rank)
        dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = 0
    latest = newest(options.checkpoints)
    if latest:
        state = torch.load(latest, map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    print(f"rank {rank} of {size} starts at step {start}", flush=True)

    global asked
    for step in range(start + 1, options.steps + 1):
        inputs = torch.randn(16, 8, device=device)
        loss = ((model(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.step_seconds)

        mine, asked = asked, False
        if any_rank(mine, device) or step == options.steps:
            if rank == 0:
                save(options.checkpoints, step, model, optimizer)
            dist.barrier()
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    print(f"rank {rank} done after step {options.steps}", flush=True)
    if held:
        held.close()
    # All ranks are past the last barrier and everything is on disk. Taking the process group down in order may hang in
    # gloo (seen now and then with PyTorch 1.13), so the process just ends.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
