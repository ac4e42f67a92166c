"""Trainers as people name them: "with verl", "LLaMA-Factory, 8 cards", "TRL's GRPOTrainer", "the HF Trainer".

A name within a path or an address is none. Some of them run another one inside (Unsloth and axolotl run TRL's trainers, those run Transformers'):
the outer one is the framework whose settings a user writes.
"""

from __future__ import annotations

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


def frameworks_in(sentence: str) -> Iterator[str]:
    """Ids of the frameworks that a sentence names, without those that another one of them runs inside."""
    found = [name for name, named in _NAMES if named.search(sentence)]
    outer = [name for name in found if name not in INNER]
    yield from outer or found[:1]
