"""The watcher as a Lightning ``Callback``: ``Trainer(..., callbacks=[advisor.measurement.lightning.watching(log="events.jsonl")])``.

Lightning calls ``training_step``, which need not call the module itself, and runs forward and backward pass within ``optimizer.step`` (its closure:
plugins/precision/precision.py, 2.6): so its own callbacks say where a step's phases begin, not hooks on the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from advisor.measurement.watching.session import Watch, watch

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # one library under two names, whose classes are not each other's
_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def watching(**options: Any) -> Any:
    """A callback with the options of :func:`advisor.watch`; its ``seen`` is the :class:`Watch` once training has begun.

    Where several optimizers train, the first counts the steps. An exception of training gets its note where Lightning tells of it.

    Raises:
        ImportError: neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    base: Any = _library().Callback

    class WatchingCallback(base):  # type: ignore[misc]  # the class is known only where it is installed
        """Watches from the beginning of training (after the sanity check) to its end or failure."""

        seen: Watch | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Begin to watch."""
            self.close()
            self.seen = watch(pl_module, next(iter(trainer.optimizers), None), **options)
            self.seen.framework = "custom"
            self.seen.driven = True
            self.seen.__enter__()

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            """A micro batch begins."""
            del pl_module, batch_idx
            if self.seen is not None:
                self.seen.batch_begins(_tensors(batch))
                self.seen.autocast = _MIXED.get(str(trainer.precision))  # entered only around training_step

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            """Its loss is made."""
            del trainer, pl_module, loss
            if self.seen is not None:
                self.seen.loss_made()

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            """The gradients are made."""
            del trainer, pl_module
            if self.seen is not None and getattr(optimizer, "optimizer", optimizer) is self.seen.optimizer:
                self.seen.gradients_made()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """End it."""
            del trainer, pl_module
            self.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """End it; where memory ran out the exception gets its note."""
            del trainer, pl_module
            self.close(exception)

        def close(self, error: BaseException | None = None) -> None:
            """End the watch, where it still runs."""
            if self.seen is not None and self.seen.running:
                self.seen.__exit__(None if error is None else type(error), error, None)

    return WatchingCallback()


def _library() -> Any:
    """The one that is in use, else the one that is installed."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        if find_spec(name.partition(".")[0]) is not None:
            return import_module(name)
    raise ImportError("Lightning is not installed here; pip install lightning")


def _tensors(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors of a batch: of tuples, lists and mappings, one within another."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < 4 and isinstance(batch, (Mapping, list, tuple)):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(value, depth + 1)
