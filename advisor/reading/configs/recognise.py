"""Whose config a text is: by the calls, programs and keys in it, the name of the file last."""

from __future__ import annotations

from fnmatch import fnmatch

from advisor.frameworks.table import Table, canonical, names, stack, table
from advisor.reading.configs.parsed import Parsed

_CALL, _PROGRAM, _IMPORT, _MARK, _FILE_MARK, _KEY = 10, 12, 6, 3, 2, 1
LAYERS = ("accelerate", "deepspeed", "fsdp", "peft", "bitsandbytes", "transformers", "torch", "launch")


def recognise(parsed: Parsed) -> str | None:
    """The table that explains most of the text; ``None`` where nothing in it is of one framework in particular."""
    scores = {name: _score(table(name), parsed) for name in names() if name not in ("custom", "launch", "torch", "transformers")}
    for name in names():  # a framework whose config takes another's keys too explains those as well
        heir = table(name)
        if heir.inherits in scores and scores.get(name, 0) >= _FILE_MARK:
            scores[name] += scores[heir.inherits]
    best = max(scores.values(), default=0)
    if best <= _MARK - 1:
        return None
    leaders = [name for name, score in scores.items() if score == best]
    return max(leaders, key=lambda name: (name not in LAYERS, len(stack(name))))


def _score(candidate: Table, parsed: Parsed) -> int:
    score = 0
    own = frozenset(candidate.scopes) | frozenset(candidate.calls)
    if parsed.form in ("python", "notebook"):
        called = {call.rsplit(".", 1)[-1] for call, _, _ in parsed.calls} | {call for call, _, _ in parsed.calls}
        score += _CALL * (1 + (candidate.framework is not None)) * len({s for s in own if s in called})
        score += _IMPORT * any(name == i or name.startswith(i + ".") for name in parsed.imports for i in candidate.imports)
        return score
    for program, _, _ in parsed.programs:
        score += _PROGRAM * any(fnmatch(program, pattern) for pattern in candidate.programs)
    seen = {canonical(key.path) for key in parsed.keys if not key.weak and key.scope not in ("env", "torchrun", "accelerate launch", "srun")}
    if parsed.form == "shell":
        seen -= {"config", "output_dir"}
    marks = {canonical(m) for m in candidate.marks}
    if parsed.form != "shell":
        lesser = {canonical(m) for m in candidate.file_marks}
        score += _FILE_MARK * len(seen & lesser)
        seen -= lesser
    score += _MARK * len(seen & marks) + _MARK * len({m for m in marks if m.endswith(".") and any(s.startswith(m) for s in seen)})
    common = table("hf-trainer").index if candidate.name != "hf-trainer" else {}  # keys that many trainers share speak for none of them
    keys = [k for k in seen - marks if k in candidate.index and k not in common]
    return score + _KEY * len(keys) if score or len(keys) >= 4 else 0
