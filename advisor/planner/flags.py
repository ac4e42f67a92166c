"""Lines for a program whose settings are flags of its command: ``--key value``, never keyword arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advisor.evidence import Evidence
from advisor.job import Job

if TYPE_CHECKING:
    from advisor.frameworks.table import Table

Pair = tuple[Any, str, Any]
# trl 1.16 trainer/model_config.py ModelConfig: what TRL's own commands and scripts call the arguments of LoraConfig and BitsAndBytesConfig
_LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_dora": "use_dora",
    "lora_dropout": "lora_dropout",
}
_BITS = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
_SETTLED = frozenset({"bnb_4bit_compute_dtype"})  # trl 1.16 model_config.py, trainer/utils.py get_quantization_config: the model's own dtype
_MODEL = {"attn_implementation": "attn_implementation", "torch_dtype": "dtype"}
_NAMES: Mapping[str, Mapping[str, str]] = {"peft": _LORA, "bitsandbytes": _BITS, "transformers": _MODEL}


def as_flags(table: Table, pairs: Sequence[Pair], *, trl: bool) -> list[str] | None:
    """The pairs as flags of a transformers ``HfArgumentParser``; ``None`` where the program has no such flags: then a line of code is as good as it gets.

    A dict is given as JSON (transformers 5.24 training_args.py ``_VALID_DICT_FIELDS``).
    """
    if table.name in _NAMES and not trl:
        return None
    names = _NAMES.get(table.name)
    own: dict[str, Any] = {}
    for _, key, raw in pairs:
        head, _, rest = key.partition(".")
        if head in _SETTLED:
            continue
        if names is not None and head not in names:
            return None
        head = names[head] if names is not None else head
        if rest:
            _put(own.setdefault(head, {}), rest.split("."), raw)
        else:
            own[head] = raw
    out = ["--use_peft"] if table.name == "peft" else []
    return out + [_flag(key, value) for key, value in own.items()]


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _flag(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"--{key} {shlex.quote(json.dumps(value))}"
    if isinstance(value, list | tuple):
        return f"--{key} {' '.join(map(str, value))}"
    return f"--{key} {shlex.quote(str(value))}"


def given(before: Job, after: Job, evidence: Evidence | None) -> tuple[str, ...]:
    """The flags that the command already gives, with their new values: ``--train_batch_size 4``, under the script's own name for it."""
    from advisor.frameworks.codecs import CODECS
    from advisor.frameworks.settings import changed
    from advisor.frameworks.table import table

    if evidence is None:
        return ()
    files = {where.rpartition(":")[0] for where, key, _ in evidence.seen_keys if key == "code.flags"}
    wanted, own, out = changed(before, after), table("custom"), dict[str, str]()
    for where, key, _ in evidence.seen_keys:
        if where.rpartition(":")[0] not in files:
            continue
        for entry in own.entries_for(key):
            if entry.field in wanted and entry.field not in out:
                out[entry.field] = _flag(key, CODECS[entry.codec or "count"].write(wanted[entry.field]))
    return tuple(out.values())
