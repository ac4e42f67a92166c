"""The watcher as a transformers ``TrainerCallback``: ``Trainer(..., callbacks=[advisor.measurement.callback.watching(log="events.jsonl")])``."""

from __future__ import annotations

from typing import Any

from advisor.measurement.watching.failing import LastHook
from advisor.measurement.watching.session import Watch, watch


def watching(**options: Any) -> Any:
    """A callback with the options of :func:`advisor.watch`; its ``seen`` is the :class:`Watch` once training has begun.

    An exception of training reaches no callback: the interpreter's last hook notes it. In a notebook, which has none, put the callback in a
    ``with`` block around ``trainer.train()``.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import TrainerCallback  # only here: a plain loop needs no transformers

    class WatchingCallback(TrainerCallback):
        """Watches from the beginning of training to its end, its failure, or the next beginning."""

        seen: Watch | None = None
        _hook: LastHook | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any) -> None:
            """Begin to watch the unwrapped model."""
            del args, state, control
            self.close()
            self.seen = watch(getattr(model, "module", model), optimizer, **options)
            self.seen.framework = "hf-trainer"
            self._hook = LastHook(self.close)
            self.seen.__enter__()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """End it."""
            self.close()

        def close(self, error: BaseException | None = None) -> None:
            """End the watch, where it still runs; an exception gets its note."""
            if self._hook is not None:
                self._hook.remove()
            if self.seen is not None and self.seen.running:
                self.seen.__exit__(None if error is None else type(error), error, None)

        def __enter__(self) -> Any:
            """The callback itself: what fails within the block is explained."""
            return self

        def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
            """End the watch."""
            self.close(error)

    return WatchingCallback()
