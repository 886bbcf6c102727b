"""A gloo job of four processes that hangs, or does not, in a known way, and leaves the flight
recorder dumps of its ranks: `job.py CASE DIRECTORY`.

Writes DIRECTORY/pickle/rank_N and DIRECTORY/json/rank_N.json. The dumps are taken while the
ranks that wait are in their calls; then the processes end themselves.
"""

import os
import sys
import threading
import time
from datetime import timedelta

RANKS = 4
BEFORE = 5  # all_reduces that everybody makes first


def case_healthy(dist, torch, rank):
    for _ in range(BEFORE):
        dist.all_reduce(torch.ones(100))


def case_skip(dist, torch, rank):
    """Rank 2 leaves one all_reduce out and makes nothing any more."""
    if rank != 2:
        dist.all_reduce(torch.ones(100))


def case_extra(dist, torch, rank):
    """Rank 0 makes one all_reduce too many."""
    if rank == 0:
        dist.all_reduce(torch.ones(100))


def case_size(dist, torch, rank):
    """Rank 1 reduces a smaller tensor, and rank 2 does not come: gloo ends a process that is sent
    more than it expects, and rank 1's neighbour sends nothing."""
    if rank != 2:
        dist.all_reduce(torch.ones(60 if rank == 1 else 100000))


def case_function(dist, torch, rank):
    """Rank 3 broadcasts where the others reduce."""
    if rank == 3:
        dist.broadcast(torch.ones(100), src=0)
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(100))


def case_receive(dist, torch, rank):
    """Rank 1 receives from rank 3, which sends nothing; the others meet in a barrier."""
    if rank == 1:
        dist.recv(torch.ones(10), src=3)
    else:
        dist.barrier()


def case_exchange(dist, torch, rank):
    """Neighbours exchange in one batch, and rank 2 leaves the barrier after it out."""
    right, left = (rank + 1) % RANKS, (rank - 1) % RANKS
    batch = [dist.P2POp(dist.isend, torch.ones(10), right), dist.P2POp(dist.irecv, torch.ones(10), left)]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    if rank != 2:
        dist.barrier()


def case_subgroup(dist, torch, rank):
    """Ranks 0 and 1 meet in a group of their own, which rank 1 enters once only; 2 and 3
    go on."""
    left = dist.new_group([0, 1])
    right = dist.new_group([2, 3])
    group = left if rank < 2 else right
    dist.all_reduce(torch.ones(10), group=group)
    if rank != 1:
        dist.all_reduce(torch.ones(10), group=group)


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("case_")}


def work(case, rank, ready):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=timedelta(seconds=600))
    case_healthy(dist, torch, rank)
    threading.Thread(target=dumps, args=(rank, ready), daemon=True).start()
    CASES[case](dist, torch, rank)
    threading.Event().wait()


def dumps(rank, directory):
    """Dumps when all ranks have come to where they stay, and ends the process when all have."""
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    # No call tells that another process has reached the call in which it waits.
    time.sleep(float(os.environ.get("SETTLE_S", "3")))
    for kind, name, dump in (("pickle", f"rank_{rank}", _dump_fr_trace), ("json", f"rank_{rank}.json", _dump_fr_trace_json)):
        os.makedirs(f"{directory}/{kind}", exist_ok=True)
        written = dump(True, True, False) if kind == "pickle" else dump(True, False)
        with open(f"{directory}/{kind}/{name}.part", "wb") as file:
            file.write(written if isinstance(written, bytes) else written.encode())
        os.rename(f"{directory}/{kind}/{name}.part", f"{directory}/{kind}/{name}")
    while not all(os.path.exists(f"{directory}/json/rank_{other}.json") for other in range(RANKS)):
        time.sleep(0.05)
    os._exit(0)


def main():
    case, directory = sys.argv[1], sys.argv[2]
    if case == "--list":
        print(*CASES)
        return
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "200")
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            work(case, rank, directory)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
