"""One rank of a training job as people write them, on a real GPU over NCCL: `--program ddp` (a small GPT-2 of Hugging Face under
DistributedDataParallel with a data loader), `fsdp` (the same under fully_shard, gradients clipped), `pipeline` (four stages, 1F1B;
no collective ends its steps), `clipped` (the same, and the norm of the gradients over all stages in each step) or `tensor` (two by
two: tensor parallel in pairs, data parallel between them). The loss is read in every tenth step, so hosts run ahead. Ranks may
share one GPU (see train.py); models are small, so that hosts and not the shared GPU decide how fast a step is.

Prints one JSON line: rank and the time of each step, Unix seconds. Once the file named by --late-file exists the late rank is late."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--program", choices=["ddp", "fsdp", "pipeline", "clipped", "tensor"], required=True)
parser.add_argument("--late", choices=["loader", "spin", "gpu"])
parser.add_argument("--late-rank", type=int, default=2)
parser.add_argument("--late-file", default="")
parser.add_argument("--stop-file", required=True)
args = parser.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
torch.manual_seed(7)
dist.init_process_group("nccl", device_id=device)
LENGTH, WIDTH = 64, 64


def is_late(kind):
    return args.late == kind and rank == args.late_rank and os.path.exists(args.late_file)


class Tokens(Dataset):
    """Rows of random tokens; the late rank's take 5 ms each: 40 ms a batch."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        if is_late("loader"):
            time.sleep(0.005)
        return torch.randint(0, 1000, (LENGTH,))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.norm = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.w2(torch.relu(self.w1(self.norm(x))))


more = torch.randn(4096, 4096, device=device)


def between_steps():
    """What only the late rank does in each step: some 30 ms."""
    if is_late("spin"):
        until = time.perf_counter() + 0.03
        while time.perf_counter() < until:
            pass
    elif is_late("gpu"):
        for _ in range(8):
            more @ more


def language_model():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=LENGTH, n_embd=WIDTH, n_layer=4, n_head=4)).to(device)


def batches():
    loader = DataLoader(Tokens(), batch_size=8, num_workers=1, prefetch_factor=2, pin_memory=True)
    for batch in loader:
        yield batch.to(device, non_blocking=True)


def data_parallel():
    model = nn.parallel.DistributedDataParallel(language_model(), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in batches():
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        between_steps()
        yield loss


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    model = language_model()
    for layer in model.transformer.h:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in batches():
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        between_steps()
        yield loss


def pipeline(clipped=False):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage_module = nn.Sequential(*[Block() for _ in range(3)]).to(device)
    stage = PipelineStage(stage_module, rank, world, device)
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage_module.parameters(), lr=1e-4)
    x = torch.randn(64, WIDTH, device=device)
    while True:
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
        if clipped:
            norm = torch.stack([p.grad.norm() for p in stage_module.parameters()]).norm()
            dist.all_reduce(norm)
        optimizer.step()
        optimizer.zero_grad()
        between_steps()
        yield losses[0] if losses else x[0, 0]


def tensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(*[Block() for _ in range(4)]).to(device)
    for block in model:
        parallelize_module(block, mesh["tensor"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
    group = mesh["data"].get_group()
    x = torch.randn(64, WIDTH, device=device)
    while True:
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            grad = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            dist.all_reduce(grad, group=group)
        optimizer.step()
        optimizer.zero_grad()
        between_steps()
        yield loss


programs = {"ddp": data_parallel, "fsdp": fully_sharded, "pipeline": pipeline, "clipped": lambda: pipeline(True), "tensor": tensor}
steps = []
stop = torch.zeros(1, device=device)
for loss in programs[args.program]():
    steps.append(round(time.time(), 3))
    if len(steps) % 10 == 0:
        loss.item()  # a loop that logs its loss now and then
    if len(steps) % 20 == 0:
        stop.fill_(1.0 if os.path.exists(args.stop_file) else 0.0)
        dist.all_reduce(stop)
        if stop.item() > 0:
            break
print(json.dumps({"rank": rank, "steps": steps}), flush=True)
os._exit(0)  # data loader workers and NCCL have nothing left to do
