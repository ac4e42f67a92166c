"""The watcher as a transformers ``TrainerCallback``: ``Trainer(..., callbacks=[advisor.measurement.callback.watching(log="events.jsonl")])``."""

from __future__ import annotations

from typing import Any

from advisor.measurement.watching.session import Watch, watch


def watching(**options: Any) -> Any:
    """A callback with the options of :func:`advisor.watch`; its ``seen`` is the :class:`Watch` once training has begun.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import TrainerCallback  # only here: a plain loop needs no transformers

    class WatchingCallback(TrainerCallback):
        """Watches from the beginning of training to its end; where training fails, :meth:`close` (or the next begin) ends it."""

        seen: Watch | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any) -> None:
            """Begin to watch the unwrapped model."""
            del args, state, control
            self.close()
            self.seen = watch(getattr(model, "module", model), optimizer, **options)
            self.seen.__enter__()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """End it."""
            self.close()

        def close(self) -> None:
            """End the watch, where it still runs."""
            if self.seen is not None and self.seen.running:
                self.seen.__exit__(None, None, None)

    return WatchingCallback()
