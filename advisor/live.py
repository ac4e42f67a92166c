"""Diagnose what is alive in this process: a model, its optimizer, the exception that was caught. Looked at, never run or changed.

Nothing is imported for it: a model is whatever has ``parameters()``, an optimizer whatever has ``param_groups``, and their own attributes
say the rest (``config``, ``peft_config``, ``is_gradient_checkpointing``). What they do not say is left open, as in a text.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advisor.accepting import Items, items_of
from advisor.object_kinds import attention_name, base_layout, optimizer_name

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.report import Report

WHERE = "the live objects"
MAX_TEXT = 200_000  # characters of an error's text
MAX_FRAMES = 200
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
TOKENS = ("input_ids", "inputs_embeds", "labels", "attention_mask")  # locals of a frame that tell batch and length


def diagnose(
    items: Items | BaseException = (),
    *,
    model: Any = None,
    optimizer: Any = None,
    error: BaseException | None = None,
    margin_bytes: int | None = None,
) -> Report:
    """What happened, why, what to change first: from named texts or files, from live objects, or from both.

    Args:
        items: a text, a file, a mapping of names to texts, or a sequence of them or of (name, text or path) pairs, in any order; an exception is an error.
        model: a module; with transformers and PEFT its config, adapters, dtypes and checkpointing are seen.
        optimizer: whatever steps it.
        error: the exception that was caught; batch and length are taken from the shapes in its frames.
        margin_bytes: room that the plan leaves below the card's usable memory; ``None``: the estimate's own uncertainty.

    Raises:
        TypeError: ``items``, ``model``, ``optimizer`` or ``error`` is none of these.
    """
    from advisor.diagnosis import diagnose_reading
    from advisor.reading import Reading, read
    from advisor.stating import state

    if isinstance(items, BaseException):
        error, items = error or items, ()
    _are_alive(model, optimizer, error)
    texts = items_of(items)
    if error is not None:
        texts.append(("error.txt", "".join(traceback.format_exception(error))[-MAX_TEXT:]))
    reading = read(texts)
    if error is not None:
        reading = Reading(reading.job, _without_quoted(reading.evidence))
    seen = facts(model, optimizer, error)
    if seen:
        reading = Reading(*state(reading.job, reading.evidence, seen, WHERE))
    return diagnose_reading(reading, margin_bytes=margin_bytes)


def _without_quoted(evidence: Evidence) -> Evidence:
    """The evidence without failures that Python code has in its strings: nothing is printed there, and the exception at hand is what happened."""
    from msgspec.structs import replace

    return replace(evidence, failures=tuple(failure for failure in evidence.failures if not failure.where.partition(":")[0].endswith(".py")))


def _are_alive(model: Any, optimizer: Any, error: Any) -> None:
    """Whether each is what its name says, before anything is read.

    Raises:
        TypeError: one is not.
    """
    for name, value, attribute, expected in (
        ("model", model, "parameters", "a module, as torch.nn.Module with parameters()"),
        ("optimizer", optimizer, "param_groups", "an optimizer, as torch.optim.Optimizer with param_groups"),
    ):
        if value is not None and (isinstance(value, type) or not hasattr(value, attribute)):
            what = f"the class {value.__name__} itself" if isinstance(value, type) else f"of type {type(value).__name__}"
            raise TypeError(f"diagnose: {name} is {what}; expected is the object that trains: {expected}. A name, a config or code is text: give it as items")
    if error is not None and not isinstance(error, BaseException):
        raise TypeError(f"diagnose: error is of type {type(error).__name__}; expected is the exception that was caught. Its text is given as items")


def facts(model: Any = None, optimizer: Any = None, error: BaseException | None = None) -> dict[str, Any]:
    """Job fields that the objects settle, by path."""
    found: dict[str, Any] = {}
    if model is not None:
        found |= dict(_of_model(model))
    if optimizer is not None:
        found |= dict(_of_optimizer(optimizer))
    if error is not None:
        found |= _shapes(error)
    if model is not None and (card := _card()):
        found["hardware.gpu"] = card
    return found


def found_in(names: Mapping[str, Any]) -> tuple[Any, Any]:
    """The one model and the one optimizer among a notebook's names; ``None`` where there is none, or more than one of different kinds."""
    models = [v for v in names.values() if hasattr(v, "named_modules") and hasattr(v, "config") and not isinstance(v, type)]
    optimizers = [v for v in names.values() if hasattr(v, "param_groups") and not isinstance(v, type)]
    return tuple(found[0] if found and all(v is found[0] for v in found) else None for found in (models, optimizers))  # type: ignore[return-value]  # two


def _of_model(model: Any) -> Iterator[tuple[str, Any]]:
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        name = str(getattr(config, "_name_or_path", "") or "")
        if name:
            yield "model.name", name
        yield "model.config", {k: v for k, v in config.to_dict().items() if isinstance(v, (int, float, str, bool, list, dict)) and not k.startswith("_")}
        if attention := attention_name(model):
            yield "activations.attention", attention
    parameters = list(model.parameters())
    adapters = getattr(model, "peft_config", None)
    yield from _of_adapters(next(iter(adapters.values()))) if isinstance(adapters, Mapping) and adapters else _of_method(parameters)
    sizes: dict[str, int] = {}
    for p in parameters:
        if (dtype := DTYPES.get(str(p.dtype).rpartition(".")[2])) is not None:
            sizes[dtype] = sizes.get(dtype, 0) + p.numel()
    if sizes:
        yield "precision.weights", max(sizes, key=sizes.__getitem__)
    if layout := base_layout(model):
        yield "method.base", layout
    checkpointed = getattr(model, "is_activation_checkpointing", None)  # transformers 5's name; asking for the older one there warns
    if checkpointed is None:
        checkpointed = getattr(model, "is_gradient_checkpointing", None)
    if isinstance(checkpointed, bool):
        yield "activations.checkpointing", "full" if checkpointed else "none"


def _of_method(parameters: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if parameters and all(p.requires_grad for p in parameters):
        yield "method.kind", "full"


def _of_adapters(config: Any) -> Iterator[tuple[str, Any]]:
    yield "method.kind", "dora" if getattr(config, "use_dora", False) else "lora"
    if isinstance(rank := getattr(config, "r", None), int) and rank > 0:
        yield "method.rank", rank
    targets = getattr(config, "target_modules", None)
    if isinstance(targets, (list, set, tuple)) and targets:
        yield "method.targets", sorted(str(t) for t in targets)


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper
    name = optimizer_name(inner)
    if name is not None:
        yield "optimizer.name", name


def _shapes(error: BaseException) -> dict[str, Any]:
    """Micro batch and sequence length from the tensors that the innermost frame with tokens holds: ``input_ids`` is [batch, length]."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-MAX_FRAMES:]
    for frame in reversed(frames):
        for name in TOKENS:
            shape = getattr(frame.f_locals.get(name), "shape", None)
            if isinstance(shape, Sequence) and len(shape) >= 2 and all(isinstance(n, int) and n > 0 for n in shape[:2]):  # another library's may be open: None
                return {"batch.micro_batch": int(shape[0]), "batch.seq_len": int(shape[1])}
    return {}


def _card() -> str | None:
    """The card of this process, where torch has already started one."""
    from advisor import cards

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    card = cards.find(torch.cuda.get_device_name())
    return card.id if card is not None else None
