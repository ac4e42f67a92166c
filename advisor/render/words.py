"""The words and colours that every form of a report shares: one name for a part, a phase, a verdict, wherever it is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.evidence import Conflict, Fact
    from advisor.report import Report, Says

VERDICTS: Mapping[str, str] = {
    "fits": "Fits",
    "tight": "Tight",
    "ooms": "Does not fit",
    "not-memory": "Not this job's GPU memory",
    "incomplete": "More must be known",
    "unreadable": "Could not be read",
}

MOMENTS: Mapping[str, str] = {
    "load": "while the model loads",
    "rollout": "while text is generated",
    "sync": "when weights are handed to the engine",
    "forward": "in the forward pass",
    "loss": "at the loss",
    "backward": "in the backward pass",
    "step": "in the optimizer step",
    "eval": "in evaluation",
    "save": "while a checkpoint is saved",
    "resume": "while a checkpoint is resumed",
    "merge": "while adapters are merged",
    "unknown": "at an unknown moment",
    "none": "at an unknown moment",
}

PHASES: Mapping[str, str] = {
    "load": "Load",
    "rollout": "Generate",
    "sync": "Hand-over",
    "forward": "Forward",
    "loss": "Loss",
    "backward": "Backward",
    "step": "Optimizer step",
    "eval": "Evaluation",
    "save": "Save",
    "resume": "Resume",
    "merge": "Merge",
}

# part: (label, colour, what it is). The colours are Okabe and Ito's eight (https://jfly.uni-koeln.de/color/) and lighter or darker
# siblings for parts that seldom meet; neighbours in the order of the ledger differ in lightness as well as in hue.
_PARTS: Mapping[str, tuple[str, str, str]] = {
    "weights": ("Weights", "#0072B2", "the model's parameters, as they are resident on this card"),
    "gradients": ("Gradients", "#56B4E9", "one value for each trained parameter, and buffers that collect them"),
    "optimizer": ("Optimizer state", "#009E73", "moments, fp32 masters and the temporaries of the step"),
    "activations": ("Activations", "#E69F00", "what the forward pass keeps so that the backward pass can use it"),
    "logits": ("Logits and loss", "#D55E00", "one score for each word of the vocabulary and each token, and what the loss makes of them"),
    "attention": ("Attention scores", "#CC79A7", "the score matrix, where no fused kernel avoids it"),
    "communication": ("Communication", "#8C8C8C", "buckets and gathered shards"),
    "dequantised": ("Dequantised weights", "#7FB3D5", "wide copies of quantised weights, one layer at a time"),
    "decode-cache": ("Decode cache", "#B5651D", "keys and values kept for generation, which training does not read"),
    "reference": ("Reference model", "#6A51A3", "the frozen model that a preference objective compares with"),
    "reward": ("Reward model", "#9E9AC8", "the model that scores samples"),
    "critic": ("Critic", "#54278F", "the value model of PPO, with its state"),
    "rollout-weights": ("Engine weights", "#1B7837", "the generation engine's own copy of the weights"),
    "rollout-cache": ("Engine cache", "#7FBF7B", "the generation engine's keys and values"),
    "rollout-graphs": ("Engine graphs", "#A6DBA0", "CUDA graphs that the engine captured"),
    "workspace": ("Workspace", "#BDBDBD", "scratch memory of matrix and attention kernels"),
    "unattributed": ("Unattributed", "#E0C200", "measured, and not explained by any part"),
    "context": ("CUDA context", "#636363", "the driver's share for this process; torch does not count it"),
    "allocator": ("Allocator cache", "#D9D9D9", "reserved by PyTorch and not in use at the peak"),
}

KINDS: Mapping[str, str] = {
    "estimated": "computed from formulas, part by part",
    "probed": "taken from a run of the real model code without a device",
    "measured": "measured on a device",
    "quoted": "as a source prints it",
}

FACT_KINDS: Mapping[str, str] = {"stated": "you said", "read": "read", "default": "framework default", "assumed": "assumed", "inferred": "inferred"}


def origin(fact: Fact) -> str:
    """Where a value was read; of one that nobody wrote, why it is taken."""
    from advisor.resolving.draft import RESOLVER

    place = "" if fact.where == RESOLVER else fact.where or ""
    if fact.why and fact.kind in ("assumed", "inferred"):
        return f"{fact.why} ({place})" if place else fact.why
    return place or fact.why or FACT_KINDS[fact.kind]


TIERS: Mapping[str, str] = {
    "triage": "Is it this job's GPU memory at all?",
    "copies": "Held twice, or too long",
    "fallback": "Wider or larger than asked for",
    "shard": "Whole where it could be divided",
    "batch": "Batch, sequence, activations",
    "hardware": "Larger than these cards",
    "spare": "Speed given away",
}


def part(id: str) -> str:
    """A part's label."""
    return _PARTS[id][0] if id in _PARTS else id.replace("-", " ").capitalize()


def colour(id: str) -> str:
    """A part's colour, the same in every chart."""
    return _PARTS[id][1] if id in _PARTS else "#999999"


def meaning(id: str) -> str:
    """What a part is, in half a sentence."""
    return _PARTS[id][2] if id in _PARTS else ""


def moment(phase: str) -> str:
    """``at the loss``: a phase as part of a sentence."""
    return MOMENTS.get(phase, f"in the phase {phase}")


def phase(id: str) -> str:
    """A phase as a heading."""
    return PHASES.get(id, id.capitalize())


@cache
def title(kind: str, id: str) -> str:
    """The title of a cause or technique from its page in the knowledge base; its id in words where there is no page."""
    from advisor import knowledge

    try:
        front, _ = knowledge.page(kind, id)
    except knowledge.KnowledgeError:
        front = {}
    return str(front.get("title") or id.replace("-", " ").capitalize())


def distinct(evidence: Sequence[Says]) -> list[Says]:
    """Evidence by weight, each sentence once: two marks may say the same of one line."""
    return list({says.says: says for says in sorted(evidence, key=lambda e: abs(e.weight))}.values())[::-1]


def likely(confidence: float) -> str:
    """``72% likely``; never certain, however much speaks for it."""
    return "over 99% likely" if confidence >= 0.995 else f"{confidence:.0%} likely"


def remedy(saves_bytes: int | None) -> str:
    """What a finding's first remedy does, as the end of a sentence; empty where it is not known or nothing."""
    from advisor.units import show

    if not saves_bytes:
        return ""
    return f"its first remedy takes off {show(saves_bytes)}" if saves_bytes > 0 else f"its first remedy uses {show(-saves_bytes)} of the room"


def why_heading(verdict: str) -> str:
    """The heading over the causes: a run that fits has no failure to explain."""
    return "What stands out" if verdict in ("fits", "tight") else "Why, most likely first"


def plan_heading(verdict: str) -> str:
    """The heading over the plan."""
    return "What to do with the room" if verdict == "fits" else "What to change, first things first"


def value(shown: object) -> str:
    """A field's value as a person writes it."""
    if isinstance(shown, bool):
        return "yes" if shown else "no"
    if shown is None:
        return "not known"
    if isinstance(shown, (list, tuple)):
        return ", ".join(value(v) for v in shown) or "none"
    if isinstance(shown, dict):
        return ", ".join(f"{k} {value(v)}" for k, v in shown.items())
    if isinstance(shown, int):
        return f"{shown:,}"
    return str(shown)


@cache
def _fields() -> Mapping[str, Mapping[str, str]]:
    from advisor import knowledge

    loaded: Mapping[str, Mapping[str, str]] = knowledge.load_yaml("fields.yaml")
    return loaded


def field(path: str) -> str:
    """A job field as a person says it: ``Micro batch`` for ``batch.micro_batch``."""
    known = _fields().get(path)
    return known["label"] if known else path.replace("_", " ").replace(".", ": ").capitalize()


def field_help(path: str) -> str:
    """What a field is, in one sentence, with the name by which the job file knows it."""
    known = _fields().get(path)
    return f"{known['help']} In a job file: {path}." if known else f"In a job file: {path}."


def disagreements(report: Report) -> list[str]:
    """What does not agree: texts that differ about a setting, settings that cannot both hold, and other remarks of the engine."""
    found = [
        f"{differing(c, field(c.field))}: {value(c.kept.value)} ({c.kept.where or 'inferred'}) is used, {value(c.other.value)} "
        f"({c.other.where or 'inferred'}) is not."
        for c in report.conflicts
    ]
    return found + list(report.notes)


def differing(conflict: Conflict, label: str) -> str:
    """The beginning of that sentence: whether two texts say a field (by its ``label``) differently, or one text does so by itself."""
    kept, other = (_LINE.sub("", fact.where) if fact.where else None for fact in (conflict.kept, conflict.other))
    return f"One text gives two values of {label}" if kept is not None and kept == other else f"Two texts differ about {label}"


_LINE = re.compile(r":\d+$")  # a fact's place is the text's name and the line
