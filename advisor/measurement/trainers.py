"""A job's steps run by its framework's own loop: transformers' ``Trainer``, and TRL's ``SFTTrainer`` where it is installed.

The model and the optimizer are those of the plain loop; batches, autocast, clipping, accumulation and wrapping for several ranks are the
framework's. Its hooks and callbacks mark the phases.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from advisor.job import Job
from advisor.measurement.counting import CpuCounter, CudaCounter

ON_TRAINER = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift"})
Held = dict[str, dict[str, tuple[int, str]]]


def loop_of(job: Job, ranks: int) -> tuple[str | None, str | None]:
    """``(loop, note)``: ``trainer``, ``sft-trainer``, or ``None`` for a plain loop; the note says where that is not the job's own."""
    name = job.framework.name
    if name not in ON_TRAINER:
        return None, None
    if ranks > 1 and job.parallel.strategy != "ddp":
        return None, f"a plain loop ran, not {name}'s: it divides the model itself only where it also makes the optimizer"
    if name == "trl" and job.objective in (None, "sft"):
        if find_spec("trl") is not None:
            return "sft-trainer", None
        return "trainer", "transformers' Trainer ran, on which TRL's is built: trl is not installed here"
    if job.objective not in (None, "sft", "pretrain"):
        return "trainer", f"transformers' Trainer ran one model with a language-modelling loss; what {name} adds for {job.objective} was not measured"
    return "trainer", None if name == "hf-trainer" else f"transformers' Trainer ran, on which {name}'s is built"


def run(
    loop: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, job: Job, device: str, counter: CpuCounter | CudaCounter, *, warm: int, steps: int,
    held: Callable[[], dict[str, tuple[int, str]]], say: Callable[[str], None],
) -> Held:  # fmt: skip
    """Run ``warm`` + ``steps`` steps; ``counter`` has the peaks of the later ones. Returns what was ``held`` by part when each phase ended."""
    import transformers

    marks = _Marks(model, optimizer, counter, warm, held, say)

    class Marking(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            marks.step_begins()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.step_ends()

    length, vocab = job.batch.seq_len or 1, int(getattr(getattr(model, "config", None), "vocab_size", 2))
    rows = []
    for _ in range((warm + steps) * (job.batch.micro_batch or 1) * (job.batch.gradient_accumulation or 1)):
        ids = torch.randint(0, vocab, (length,)).tolist()
        rows.append({"input_ids": ids, "labels": ids})
    with tempfile.TemporaryDirectory() as folder, marks, contextlib.redirect_stdout(sys.stderr):  # the loop prints its own figures
        settings: dict[str, Any] = {
            "output_dir": folder, "per_device_train_batch_size": job.batch.micro_batch or 1, "max_steps": warm + steps, "report_to": [], "save_strategy": "no",
            "logging_strategy": "no", "gradient_accumulation_steps": job.batch.gradient_accumulation or 1, "use_cpu": device == "cpu", "disable_tqdm": True,
            "dataloader_pin_memory": device != "cpu", "remove_unused_columns": False,
            **({job.precision.compute: True} if job.precision.mixed == "autocast" and job.precision.compute in ("bf16", "fp16") else {}),
        }  # fmt: skip
        trainer = (_sft if loop == "sft-trainer" else _plain)(model, optimizer, settings, rows)
        trainer.add_callback(Marking())
        trainer.train()
        with contextlib.suppress(AttributeError):  # accelerate wraps the model's forward; what measures next must not meet it
            trainer.accelerator.free_memory()
    return marks.seen


def _plain(model: Any, optimizer: torch.optim.Optimizer, settings: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    import transformers

    arguments = transformers.TrainingArguments(**settings)
    arguments._n_gpu = min(1, arguments.n_gpu)  # else one process takes every card, as DataParallel
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=transformers.default_data_collator, optimizers=(optimizer, None)
    )  # fmt: skip


def _sft(model: Any, optimizer: torch.optim.Optimizer, settings: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    datasets, trl = import_module("datasets"), import_module("trl")  # optional: only where the job's framework is trl and it is installed
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    words = fast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")), pad_token="<pad>", eos_token="<pad>", unk_token="<pad>")  # noqa: S106
    arguments = trl.SFTConfig(**settings, max_length=None, packing=False, dataset_kwargs={"skip_prepare_dataset": True})
    arguments._n_gpu = min(1, arguments.n_gpu)
    return trl.SFTTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows), processing_class=words, optimizers=(optimizer, None))


class _Marks(contextlib.ExitStack):
    """Opens and closes the counter's phases where the loop passes them."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, counter: CpuCounter | CudaCounter, warm: int,
        held: Callable[[], dict[str, tuple[int, str]]], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__()
        self.seen: Held = {}
        self._counter, self._warm, self._held, self._say = counter, warm, held, say
        self._number = 0
        self._step, self._phase = contextlib.ExitStack(), contextlib.ExitStack()
        for hook in (
            model.register_forward_pre_hook(lambda *_: self._enter("forward")), model.register_forward_hook(lambda *_: self._forward_ends()),
            optimizer.register_step_pre_hook(lambda *_: self._optimizer_begins()), optimizer.register_step_post_hook(lambda *_: self._optimizer_ends()),
        ):  # fmt: skip
            self.callback(hook.remove)

    @property
    def _counts(self) -> bool:
        return self._number > self._warm

    def step_begins(self) -> None:
        """A step of the optimizer, with all its micro batches, begins."""
        self._number += 1
        self._say(f"step {self._number}")
        if self._counts:
            self._step.enter_context(self._counter.step(sum(size for size, _ in self._held().values())))

    def step_ends(self) -> None:
        """It has ended."""
        self._phase.close()
        self._step.close()

    def _enter(self, phase: str) -> None:
        if self._counts and not _in_graph():
            self._phase.close()
            self._phase.enter_context(self._counter.phase(phase))

    def _forward_ends(self) -> None:
        if not _in_graph():
            self._keep("forward")
            self._enter("backward")

    def _optimizer_begins(self) -> None:
        self.seen["backward"] = {part: found for part, found in self._held().items() if part != "gradients"}  # they are made while it runs
        self._enter("step")

    def _optimizer_ends(self) -> None:
        self._keep("step")
        self._phase.close()

    def _keep(self, phase: str) -> None:
        self.seen[phase] = self._held()


def _in_graph() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)  # a checkpoint's recomputation
