"""Trainers as people name them: "with verl", "LLaMA-Factory, 8 cards", "TRL's GRPOTrainer", "the HF Trainer".

A name within a path or an address is none. Some of them run another one inside (Unsloth and axolotl run TRL's trainers, those run Transformers'):
the outer one is the framework whose settings a user writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.reading.pattern import pattern as lazily

INNER = ("hf-trainer", "trl")  # innermost first
_BEFORE, _BEHIND = r"(?<![\w/.@-])", r"(?![\w/]|[.-]\w)"
_NAMES = tuple(
    (name, lazily(_BEFORE + "(?:" + text + ")" + _BEHIND))
    for name, text in (
        ("verl", "verl|veRL|VeRL|VERL"),
        ("openrlhf", "OpenRLHF|openrlhf"),
        ("axolotl", "[Aa]xolotl"),
        ("llama-factory", "(?i:llama[- ]?factory)"),
        ("torchtune", "[Tt]orch[Tt]une"),
        ("torchtitan", "[Tt]orch[Tt]itan"),
        ("litgpt", "(?i:lit[- ]?gpt)"),
        ("unsloth", "[Uu]nsloth"),
        ("ms-swift", "(?i:ms-swift)"),
        ("megatron-lm", "(?i:megatron[- ]lm)|Megatron(?=[ ,.;:]|$)"),
        ("nemo-rl", "(?i:nemo[- ]?rl)"),
        ("llm-foundry", "(?i:llm[- ]foundry)"),
        ("xtuner", "(?i:xtuner)"),
        ("slime", "slime(?= (?:framework|RL|trainer|train))|THUDM slime"),
        ("trl", "TRL|(?:SFT|DPO|GRPO|KTO|PPO|RLOO|ORPO)Trainer|trl"),
        ("hf-trainer", "(?:HF|Hugging ?Face|[Tt]ransformers'?s?|hf) [Tt]rainer|Seq2SeqTrainer"),
    )
)
# a list of packages names what is installed: "pip install trl", "trl==0.9.6", "TRL version: 0.12", "- unsloth: 2024.11"
_INSTALLED = lazily(
    r"\b(?:pip3?|uv|conda|mamba|poetry) |\b(?:Requirement already|Successfully|Collecting|Downloading|Installing|installed)\b|[=~<>]=\s?\d|"
    r"\bversion\b\W{0,4}\d|^\W{0,4}[\w.-]{2,40}\s?:\s?v?\d"
)
# "moved from axolotl", "unlike TRL", "instead of verl": another trainer than the one that runs
_ANOTHER = lazily(
    r"\b(?:(?:moved|switched|migrated|came|ported|changed|copied|adapted|borrowed) (?:\w+ ){0,2}from|unlike|instead of|rather than|not|without|no|never|as in|"
    r"like in|inspired by|compared (?:to|with)) (?:the |any )?$",
    re.IGNORECASE,
)


def frameworks_in(sentence: str) -> Iterator[str]:
    """Ids of the frameworks that a sentence says to run, without those that another one of them runs inside."""
    if _INSTALLED.search(sentence) is not None:
        return
    found = [name for name, named in _NAMES if (m := named.search(sentence)) is not None and not _ANOTHER.search(sentence[max(0, m.start() - 40) : m.start()])]
    outer = [name for name in found if name not in INNER]
    yield from outer or found[:1]
