"""One rank of a small data-parallel training job on a real GPU, over NCCL. Ranks may share one GPU: each then names itself
another host to NCCL (NCCL_HOSTID), which otherwise refuses two ranks on one device, and they meet over sockets.

Prints one JSON line: rank, steps, seconds, all_reduce calls made."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--late", choices=["sleep", "spin", "gpu", "copy"])
parser.add_argument("--late-rank", type=int, default=3)
parser.add_argument("--late-after", type=float, default=5)
parser.add_argument("--graph", action="store_true", help="capture the all-reduce into a CUDA graph and replay it")
args = parser.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gpus = torch.cuda.device_count()
torch.cuda.set_device(rank % gpus)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank % gpus))
width = 2048
weights = torch.randn(width, width, device="cuda") / width
batch = torch.randn(512, width, device="cuda")
more = torch.randn(6144, 6144, device="cuda")
on_host = torch.randn(32 << 20)  # 128 MiB, pageable


def late():
    """What only the late rank does in each step: some 20 to 40 ms."""
    if args.late == "sleep":
        time.sleep(0.03)
    elif args.late == "spin":
        until = time.perf_counter() + 0.03
        while time.perf_counter() < until:
            pass
    elif args.late == "gpu":
        for _ in range(3):
            more @ more
    elif args.late == "copy":
        on_host.cuda()


def step():
    out = batch
    for _ in range(4):
        out = torch.relu(out @ weights)
    gradient = batch.T @ out
    dist.all_reduce(gradient)
    return gradient


calls = 0
begin = time.time()
if args.graph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
            calls += 1
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    calls += 1
    replays = 200
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    print(json.dumps({"rank": rank, "calls": calls, "replays": replays}), flush=True)
    del graph  # NCCL waits for graphs that hold its calls before it ends a communicator
else:
    stop = torch.zeros(1, device="cuda")
    steps = 0
    while True:
        for _ in range(8):
            if args.late and rank == args.late_rank and time.time() - begin > args.late_after:
                late()
            loss = step()
            loss.sum().item()  # as a loop that logs its loss: the host waits for the device
            steps += 1
            calls += 1
        stop.fill_(1.0 if time.time() - begin > args.seconds else 0.0)
        dist.all_reduce(stop)
        calls += 1
        if stop.item() > 0:
            break
    print(json.dumps({"rank": rank, "steps": steps, "seconds": time.time() - begin, "calls": calls}), flush=True)
dist.destroy_process_group()
