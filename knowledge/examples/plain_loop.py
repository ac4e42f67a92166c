"""A plain training loop, watched: the log tells what is held twice, widened, kept or not recomputed, and the line that did it."""

import torch
from torch import nn

from advisor import watch

model = nn.Sequential(nn.Embedding(256, 64), nn.Flatten(), nn.Linear(64 * 16, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with watch(model, optimizer, log="events.jsonl") as seen:
    for _ in range(8):
        tokens = torch.randint(0, 256, (4, 17))
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]), tokens[:, -1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

for finding in seen.findings:
    print(f"{finding.where}: {finding.title}")
print(f"{len(seen.findings)} faults; largest live size by phase: {seen.peak_bytes()}")
