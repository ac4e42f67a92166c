"""Lightning's Trainer, watched by a callback. Needs ``pip install lightning``."""

import lightning
import torch
from torch import nn

from advisor.measurement.lightning import watching


class Module(lightning.LightningModule):
    """A tiny model; its forward pass is called by its own step, as in most modules."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Embedding(96, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 96))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        (tokens,) = batch
        return nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randint(0, 96, (16, 16))), batch_size=2)
callback = watching(log="events.jsonl")
trainer = lightning.Trainer(max_epochs=1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False, callbacks=[callback])
trainer.fit(Module(), rows)
print(f"{len(callback.seen.findings)} faults; largest live size by phase: {callback.seen.peak_bytes()}")
