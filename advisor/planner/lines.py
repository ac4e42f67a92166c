"""The lines that a technique comes to in the user's own framework: keys of its files, or code where no key says it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from advisor import knowledge
from advisor.job import Job, JobError
from advisor.reading.pattern import pattern
from advisor.run import Run

if TYPE_CHECKING:
    from advisor.frameworks.settings import Writer
    from advisor.program import Program

TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SCRIPT = "script"  # beside the layers' names: lines of the training script itself
_DERIVED = frozenset({"default", "assumed", "inferred"})
# Fields in which an engine or a method brings values with it: they get a line only where the framework would not settle them so by itself.
_BROUGHT = (
    "precision.weights", "precision.gradients", "precision.master", "precision.mixed", "precision.reduce", "precision.compute", "optimizer.states",
    "optimizer.implementation", "parallel.shard", "parallel.replicate", "parallel.pipeline_rank", "parallel.reshard_after_forward", "method.adapter_dtype",
    "method.dropout", "method.base", "method.double_quant", "activations.attention", "method.kbit_preparation", "method.targets", "framework.keeps_outputs",
    "load.move_before_sharding", "save.to_host", "save.gather", "parallel.context_kind",
)  # fmt: skip
# What comes along with a change and has no setting of its own; where a change is about nothing else, it is the change.
_ALONG = frozenset({
    "precision.master", "precision.mixed", "precision.gradients", "precision.reduce", "optimizer.states", "parallel.pipeline_rank", "framework.keeps_outputs",
    "load.move_before_sharding", "save.gather", "save.to_host", "method.kbit_preparation", "method.adapter_dtype", "reference", "rollout.sync",
    "parallel.microbatches", "offload.gradients", "batch.lengths", "optimizer.implementation", "activations.selective",
})  # fmt: skip
_VALUE = pattern(r"<([a-z_]+(?:\.[a-z_]+)+)>")


def lines(before: Job, after: Job) -> Mapping[str, tuple[str, ...]]:
    """The lines of every difference."""
    from advisor.frameworks.settings import settings

    try:
        return settings(before, after, after.framework.name)
    except knowledge.KnowledgeError:  # a table that cannot be loaded costs the lines, not the plan
        return {}


def changed_lines(before: Run, after: Run, technique: str | None = None, *, end: Run | None = None) -> Mapping[str, tuple[str, ...]]:
    """The lines for what was changed on purpose: values that only follow from it are the framework's business.

    With ``technique``, the code of its page for this framework is added under :data:`SCRIPT` where no key says it. ``end``: the run of the whole
    plan; a key that a later step sets once more has its last value here already, so that no two lines of a plan disagree.
    """
    from advisor import program
    from advisor.frameworks.settings import settings
    from advisor.planner.flags import given
    from advisor.planner.loaders import by_loader
    from advisor.planner.places import fitted

    job = after.job if end is None or end is after else _at_last(before.job, after.job, end.job)
    own = program.of_run(after)
    follows = following(before, after)
    try:
        found = settings(before.job, job, job.framework.name, follows=follows, spelled=_spelled(after), written_as=_writer(after, own))
    except knowledge.KnowledgeError:
        found = {}
    found = {layer: text for layer, text in found.items() if layer not in program.layers_of(own.loop)}
    if own.xla:
        return snippets(technique, job, False, own.speaks(None)) if technique is not None else {}
    code = dict(snippets(technique, job, bool(found), own.speaks(job.framework.name))) if technique is not None else {}
    if own.flags and own.loop == "own" and (flags := given(before.job, job, after.seen)):
        return {**found, SCRIPT: flags}
    if SCRIPT in code:
        code[SCRIPT] = tuple(_named(line, own.model) for line in code[SCRIPT])
    code = dict(fitted(code, after.seen))
    return by_loader({**found, **{place: (*found.get(place, ()), *text) for place, text in code.items()}}, after)


def _spelled(run: Run) -> Mapping[str, str]:
    """Keys as the user's files have them, where a table writes them otherwise: ``fsdp_config.fsdp_offload_params`` for axolotl's ``offload_params``."""
    from advisor.frameworks.table import canonical

    if run.seen is None:
        return {}
    return {canonical(key): key for _, key, _ in run.seen.seen_keys if "." in key and not key.startswith("code.")}


def _writer(run: Run, own: Program) -> Writer | None:
    """How a program whose settings are flags is told them; ``None`` where they stand in code."""
    if not own.flags or run.job.framework.name not in ("trl", "hf-trainer"):
        return None
    from advisor.planner.flags import as_flags

    return partial(as_flags, trl=run.job.framework.name == "trl")


_MODEL = pattern(r"(?<![\w.\"])model(?![\w=\"])")


def _named(line: str, model: str) -> str:
    """The line with the model called as the script calls it: ``self.model`` in a LightningModule."""
    if model == "model":
        return line
    code, mark, comment = line.partition("  #")
    return f"{_MODEL.sub(model, code)}{mark}{comment}" if not code.lstrip().startswith("#") else line


def _at_last(before: Job, after: Job, end: Job) -> Job:
    """``after``, each field that this step changes with the value that it has in ``end``."""
    from advisor.frameworks.settings import changed

    moved: dict[str, dict[str, Any]] = {}
    for path, value in changed(before, after).items():
        section, _, name = path.partition(".")
        last = end.get(path)
        if name and "." not in name and last is not None and last != value:
            moved.setdefault(section, {})[name] = last
    try:
        return after.but(**moved) if moved else after
    except JobError:  # the last values need the steps between
        return after


def following(before: Run, after: Run) -> frozenset[str]:
    """Fields whose values were not set on purpose, or that the framework settles so by itself once the rest is set."""
    derived = frozenset(path for path, fact in after.facts.items() if fact.kind in _DERIVED and path not in after.changed)
    purposes = {p for p in after.changed if after.job.get(p) != before.job.get(p)}
    if "parallel.strategy" in purposes:
        derived |= purposes & {"parallel.replicate"}  # the new group is all ranks
    if "offload.optimizer" in purposes and _host_adam(before.job, after.job):
        derived |= {"optimizer.name"}
    if purposes - _ALONG - derived:
        derived |= purposes & _ALONG
    brought = [p for p in _BROUGHT if p in purposes and p not in derived and _was_open(before, p) and not _said(after, p)]
    if not brought:
        return derived
    cleared: dict[str, dict[str, Any]] = {}
    for path in brought:
        section, _, name = path.partition(".")
        if getattr(after.job, section) is not None:
            cleared.setdefault(section, {})[name] = None
    alone = after.but(**cleared).job
    return derived | {path for path in brought if alone.get(path) == after.job.get(path)}


def _said(after: Run, path: str) -> bool:
    """Whether a value is told all the same: a packed base, and groups that hold the same beside groups that divide (their number is one by default)."""
    value = after.job.get(path)
    return (path == "method.base" and value != "none") or (path == "parallel.replicate" and (value or 1) > 1)


def _host_adam(before: Job, after: Job) -> bool:
    """Whether the optimizer stays the user's Adam, and only where it steps changes its class.

    DeepSpeed 0.19 builds a configured AdamW as DeepSpeedCPUAdam once the states are on the host (runtime/engine.py _configure_basic_optimizer), and
    accelerate 1.15 exchanges a script's (utils/deepspeed.py map_pytorch_optim_to_deepspeed). The class is no ``optimizer.type`` of a config.
    """
    zero = ("zero1", "zero2", "zero3")
    names = {before.optimizer.name, after.optimizer.name} - {None}
    return "cpu-adam" in names and names <= {"adamw", "cpu-adam"} and (after.parallel.strategy in zero or before.parallel.strategy in zero)


def _was_open(run: Run, path: str) -> bool:
    fact = run.facts.get(path)
    return fact is None or fact.kind in _DERIVED


def snippets(technique: str, after: Job, has_lines: bool, speaks: Collection[str] = ()) -> Mapping[str, tuple[str, ...]]:
    """What the technique's page says for the job's framework, by where it goes (``at``, or :data:`SCRIPT`), with the job's numbers put in.

    Of each place the first entry that holds; none where keys say it all, but for those that go beside them (``always``).
    ``speaks``: whose lines the program takes where that is not the framework's (:mod:`advisor.program`): Lightning's, those of a library of images.
    """
    from advisor import program

    try:
        front, _ = knowledge.page("techniques", technique)
    except knowledge.KnowledgeError:
        return {}
    names = set(speaks) if program.XLA in speaks else {"*", *(speaks or (after.framework.name or "custom",))}
    found: dict[str, tuple[str, ...]] = {}
    for entry in front.get("code") or ():
        holds = all(after.get(field) in wanted for field, wanted in (entry.get("when") or {}).items())
        if holds and names & set(entry["for"]) and (entry.get("always") or not has_lines):
            lines = tuple(_VALUE.sub(lambda m: _text(after.get(m.group(1))), str(entry["lines"])).rstrip("\n").split("\n"))
            found.setdefault(entry.get("at", SCRIPT), lines)
    return found


def snippet(technique: str, after: Job, has_lines: bool, speaks: Collection[str] = ()) -> tuple[str, ...]:
    """The code of the technique's page for the training script; empty where it has none or keys say it all."""
    return snippets(technique, after, has_lines, speaks).get(SCRIPT, ())


def _text(value: Any) -> str:
    return "..." if value is None else repr(list(value)) if isinstance(value, tuple) else TORCH_NAMES.get(str(value), str(value))
