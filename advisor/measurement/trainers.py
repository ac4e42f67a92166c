"""A job's steps run by its framework's own loop: transformers' ``Trainer``, and TRL's ``SFTTrainer`` and ``DPOTrainer`` where it is installed.

The model and the optimizer are those of the plain loop; batches, autocast, clipping, accumulation and wrapping for several ranks are the
framework's. Its hooks and callbacks mark the phases.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from advisor.job import Job
from advisor.measurement.counting import CpuCounter, CudaCounter
from advisor.measurement.parts import Made, Observed, WatchedStepRanOutError, several
from advisor.measurement.watching import buckets, failing, owned

ON_TRAINER = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift"})
OWN_REFERENCES = frozenset({"copy", "adapter-off"})  # of DPO: what is beside the policy without a pass of its own over the data
Held = dict[str, dict[str, tuple[int, str]]]


def loop_of(job: Job, ranks: int) -> tuple[str | None, str | None]:
    """``(loop, note)``: ``trainer``, ``sft-trainer``, or ``None`` for a plain loop; the note says where that is not the job's own."""
    name = job.framework.name
    if name not in ON_TRAINER:
        return None, None
    if ranks > 1 and job.parallel.strategy != "ddp":
        return None, f"a plain loop ran, not {name}'s: it divides the model itself only where it also makes the optimizer"
    own = "sft-trainer" if job.objective in (None, "sft") else "dpo-trainer" if job.objective == "dpo" and job.reference in OWN_REFERENCES else None
    if name == "trl" and own is not None:
        if find_spec("trl") is not None:
            return own, None
        missing = "" if own == "sft-trainer" else f"; what {name} adds for dpo was not measured"
        return "trainer", f"transformers' Trainer ran, on which TRL's is built: trl is not installed here{missing}"
    if job.objective not in (None, "sft", "pretrain"):
        return "trainer", f"transformers' Trainer ran one model with a language-modelling loss; what {name} adds for {job.objective} was not measured"
    return "trainer", None if name == "hf-trainer" else f"transformers' Trainer ran, on which {name}'s is built"


def run(
    loop: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, job: Job, device: str, counter: CpuCounter | CudaCounter, *, warm: int, steps: int,
    held: Callable[[torch.nn.Module], dict[str, tuple[int, str]]], say: Callable[[str], None], counted: Callable[[Held], None],
) -> tuple[Held, Made]:  # fmt: skip
    """Run ``warm`` + ``steps`` steps, whose later ones ``counter`` counts, and one more that is watched.

    Returns what was ``held`` by part when each phase ended, and what operators made in the last. ``counted`` gets the first before the last step begins.

    Raises:
        WatchedStepRanOutError: of several ranks, in the last step.
    """
    import transformers

    marks = _Marks(model, optimizer, counter, (warm, steps), held, say, counted)

    class Marking(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            marks.step_begins()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.step_ends()

    length, vocab = job.batch.seq_len or 1, int(getattr(getattr(model, "config", None), "vocab_size", 2))
    rows = []
    for _ in range((warm + steps + 1) * (job.batch.micro_batch or 1) * (job.batch.gradient_accumulation or 1)):
        ids = torch.randint(0, vocab, (length,)).tolist()
        rows.append({"input_ids": ids, "labels": ids})
    with tempfile.TemporaryDirectory() as folder, marks, contextlib.redirect_stdout(sys.stderr):  # the loop prints its own figures
        settings: dict[str, Any] = {
            "output_dir": folder, "per_device_train_batch_size": job.batch.micro_batch or 1, "max_steps": warm + steps + 1, "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no", "gradient_accumulation_steps": job.batch.gradient_accumulation or 1, "use_cpu": device == "cpu", "disable_tqdm": True,
            "dataloader_pin_memory": device != "cpu", "remove_unused_columns": False,
            **({job.precision.compute: True} if job.precision.mixed == "autocast" and job.precision.compute in ("bf16", "fp16") else {}),
        }  # fmt: skip
        if loop == "dpo-trainer":
            reference = copy.deepcopy(model).eval().requires_grad_(False) if job.reference == "copy" else None
            marks.beside(reference)
            trainer = _dpo(model, reference, optimizer, settings, len(rows), length)
        else:
            trainer = (_sft if loop == "sft-trainer" else _plain)(model, optimizer, settings, rows)
        trainer.add_callback(Marking())
        marks.backward_of(trainer.accelerator)
        made: Made = {}
        try:
            trainer.train()
            made = marks.made()
        except (RuntimeError, MemoryError) as error:  # what watching itself needs may be what no longer fits; the measured steps did
            if marks.counting or not failing.is_memory(error):
                raise
            if several():
                raise WatchedStepRanOutError from error
        with contextlib.suppress(AttributeError):  # accelerate wraps the model's forward; what measures next must not meet it
            trainer.accelerator.free_memory()
    return marks.seen, made


def _plain(model: Any, optimizer: torch.optim.Optimizer, settings: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    import transformers

    arguments = transformers.TrainingArguments(**settings)
    arguments._n_gpu = min(1, arguments.n_gpu)  # else one process takes every card, as DataParallel
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=transformers.default_data_collator, optimizers=(optimizer, None)
    )  # fmt: skip


def _sft(model: Any, optimizer: torch.optim.Optimizer, settings: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    datasets, trl = import_module("datasets"), import_module("trl")  # optional: only where the job's framework is trl and it is installed
    arguments = trl.SFTConfig(**settings, max_length=None, packing=False, dataset_kwargs={"skip_prepare_dataset": True})
    arguments._n_gpu = min(1, arguments.n_gpu)
    return trl.SFTTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows), processing_class=_words(), optimizers=(optimizer, None))


def _dpo(model: Any, reference: Any, optimizer: torch.optim.Optimizer, settings: dict[str, Any], pairs: int, length: int) -> Any:
    datasets, trl = import_module("datasets"), import_module("trl")
    prompt = max(1, length // 2)
    answer = " ".join(["a"] * max(1, length - prompt - 1))  # the trainer adds an end
    rows = [{"prompt": " ".join(["a"] * prompt) + " ", "chosen": answer, "rejected": answer}] * pairs
    arguments = trl.DPOConfig(**settings, max_length=length)
    arguments._n_gpu = min(1, arguments.n_gpu)
    given = {"processing_class": _words(), "optimizers": (optimizer, None)}
    return trl.DPOTrainer(model=model, ref_model=reference, args=arguments, train_dataset=datasets.Dataset.from_list(rows), **given)


def _words() -> Any:
    """A tokenizer of one word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    known: Any = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1}, unk_token="<pad>"))  # noqa: S106  the word of a token
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast(tokenizer_object=known, pad_token="<pad>", eos_token="<pad>", unk_token="<pad>")  # noqa: S106


class _Marks(contextlib.ExitStack):
    """Opens and closes the counter's phases where the loop passes them."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, counter: CpuCounter | CudaCounter, counts: tuple[int, int],
        held: Callable[[torch.nn.Module], dict[str, tuple[int, str]]], say: Callable[[str], None], counted: Callable[[Held], None],
    ) -> None:  # fmt: skip
        super().__init__()
        self.seen: Held = {}
        self._counted = counted
        self._counter, (self._warm, self._measured), self._held, self._say = counter, counts, held, say
        self._model, self._optimizer = model, optimizer
        self._whole = model  # or DDP around it
        self._beside: dict[str, tuple[int, str]] = {}
        self._watched: Observed | None = None
        self._number = 0
        self._step, self._phase = contextlib.ExitStack(), contextlib.ExitStack()
        for hook in (
            model.register_forward_pre_hook(lambda *_: self._forward_begins()), model.register_forward_hook(lambda *_: self._forward_ends()),
            optimizer.register_step_pre_hook(lambda *_: self._optimizer_begins()), optimizer.register_step_post_hook(lambda *_: self._optimizer_ends()),
        ):  # fmt: skip
            self.callback(hook.remove)
        self.callback(self._step.close)
        self.callback(self._phase.close)

    @property
    def counting(self) -> bool:
        """Whether the steps that count are not yet over."""
        return self._number <= self._warm + self._measured

    def made(self) -> Made:
        """What operators made in the last step, once it has ended."""
        return {} if self._watched is None else self._watched.made

    @property
    def _counts(self) -> bool:
        return self.counting and self._number > self._warm

    def beside(self, reference: torch.nn.Module | None) -> None:
        """A model that is there beside the one that trains."""
        if reference is not None:
            sizes = owned.by_part(owned.by_storage(reference, None).values())["weights"]
            self._beside = {"reference": (sum(sizes.values()), max(sizes, key=lambda name: sizes[name]))}

    def backward_of(self, accelerator: Any) -> None:
        """The backward pass begins where the loop asks for it: its own loss, and a reference's pass, belong to the forward pass."""
        before = accelerator.backward

        def backward(*args: Any, **options: Any) -> Any:
            self._enter("backward")
            return before(*args, **options)

        accelerator.backward = backward

    def _all_held(self) -> dict[str, tuple[int, str]]:
        return self._held(self._whole) | self._beside

    def step_begins(self) -> None:
        """A step of the optimizer, with all its micro batches, begins."""
        self._number += 1
        self._say(f"step {self._number}")
        if not self.counting:
            self._counted(self.seen)
            self._watched = self._step.enter_context(Observed(self._model, self._optimizer))
        if self._counts:
            self._step.enter_context(self._counter.step(sum(size for size, _ in self._all_held().values())))

    def step_ends(self) -> None:
        """It has ended."""
        self._phase.close()
        self._step.close()

    def _enter(self, phase: str) -> None:
        if self._counts and not _in_graph():
            self._phase.close()
            self._phase.enter_context(self._counter.phase(phase))

    def _forward_begins(self) -> None:
        if not _in_graph():
            self._whole = buckets.around(self._model) or self._model
        self._enter("forward")

    def _forward_ends(self) -> None:
        if not _in_graph():
            self._keep("forward")

    def _optimizer_begins(self) -> None:
        if not self.counting:
            return
        self.seen["backward"] = {part: found for part, found in self._all_held().items() if part != "gradients"}  # they are made while it runs
        self._enter("step")

    def _optimizer_ends(self) -> None:
        self._keep("step")
        self._phase.close()

    def _keep(self, phase: str) -> None:
        if self.counting:
            self.seen[phase] = self._all_held()


def _in_graph() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)  # a checkpoint's recomputation
