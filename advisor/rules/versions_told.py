"""What changes between two versions that a reporter compares: the run is the same, and what the library does by default is not."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern

_TORCH = pattern(r"\b(?:py)?torch\s{0,2}(?:==|=|:|v|version )?\s{0,2}v?(\d)\.(\d{1,2})(?:\.\d+)?|(?<![\w.])(\d)\.(\d{1,2})\.\d\+cu\d{2,3}", re.IGNORECASE)
FOREACH_BY_DEFAULT = (2, 0)  # torch/optim/optimizer.py _default_to_fused_or_foreach, new in 2.0: lists of tensors in one kernel where all lie on CUDA


def torch_versions(evidence: Evidence) -> dict[tuple[int, int], str]:
    """The versions of torch that the texts name, and where each stands first."""
    found: dict[tuple[int, int], str] = {}
    for line in evidence.lines:
        for m in list(_TORCH.finditer(line.text))[:8] if len(line.text) <= 1500 else ():
            found.setdefault((int(m[1] or m[3]), int(m[2] or m[4])), line.where)
    return found


def foreach_became_default(evidence: Evidence) -> str | None:
    """Whether a version of torch before its optimizers made lists of temporaries is held beside one that does."""
    found = torch_versions(evidence)
    before, after = [v for v in found if v < FOREACH_BY_DEFAULT], [v for v in found if v >= FOREACH_BY_DEFAULT]
    if not before or not after:
        return None
    old, new = max(before), min(after)
    return f"torch {old[0]}.{old[1]} is compared with {new[0]}.{new[1]}, in {found[new]}: since 2.0 an optimizer's step works on all parameters at once"
