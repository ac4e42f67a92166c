"""Several ranks: ``torchrun --nproc-per-node 2 torchrun_loop.py``. Each rank writes a log of its own: events.rank0.jsonl, events.rank1.jsonl."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from advisor import watch

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
if torch.cuda.is_available():
    model.to(torch.device("cuda", dist.get_node_local_rank()))
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

with watch(model, optimizer, log="events.jsonl") as seen:
    for _ in range(6):
        batch = torch.randn(8, 64, device=next(model.parameters()).device)
        wrapped(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"rank {dist.get_rank()}: {len(seen.findings)} faults")
dist.barrier()  # no rank leaves while another one still sends
dist.destroy_process_group()
