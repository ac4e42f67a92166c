"""A small model whose loop keeps each step's loss for a plot, graph and all."""

import torch
from torch import nn

from advisor import watch

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(8192, 256), *[nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)], nn.Linear(256, 8192))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
losses = []
with watch(model, optimizer, log="events.jsonl"):
    for _ in range(8):
        tokens = torch.randint(0, 8192, (2, 64))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss + 0.0)
print(sum(float(l) for l in losses) / len(losses))
