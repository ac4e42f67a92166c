"""How commands begin where people paste them among other text."""

from __future__ import annotations

import re

from advisor.reading.pattern import pattern

# people name what they paste
_LABEL = r"(?:(?:[Ll]aunch(?:ed)?|[Cc]ommand|[Cc]md|CMD|[Rr]un|[Ss]tarted|启动命令|命令)(?: (?:command|with|by|as))?[ \t]?[:：][ \t]*)"
LABELS = pattern(rf"^([ \t]*){_LABEL}", re.MULTILINE)
STARTERS = pattern(
    r"^[ \t]*(?:[$>#][ \t]+)?"
    + _LABEL
    + r"?(?:export\s+)?(?:[A-Z_][A-Z0-9_]*=\S*\s+)*(torchrun|accelerate\s+launch|deepspeed|python3?|tune\s+run|litgpt|swift|megatron|trl|axolotl|"
    r"llamafactory-cli|srun|ray\s+job|composer|xtuner|fairseq-train|NPROC_PER_NODE=|uv\s+run|bash|colossalai|export\s+\w+=)\b",
    re.MULTILINE,
)
