"""Settings of a project that no table knows, by the names that most projects give them: they fill only what nothing else says.

A key's last part decides (``--data.batch_size 8``, ``trainer.seq_len: 4096``, ``Namespace(valid_batch_size=32)``). A framework whose table
is known is left to its table: there the same word can mean the batch of all ranks.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from advisor.architecture import presets
from advisor.evidence import Fact
from advisor.reading import handoff
from advisor.reading.lines import Excerpt
from advisor.reading.merge import GUESS, PROSE, Ranked
from advisor.reading.pattern import pattern as lazily

NAMES: Mapping[str, frozenset[str]] = {
    "batch.micro_batch": frozenset({
        "batch_size", "micro_batch_size", "per_device_batch_size", "per_gpu_batch_size", "batch_size_per_gpu", "samples_per_gpu", "bs", "local_batch_size",
        "batch_size_per_device", "device_batch_size", "micro_bsz", "train_micro_batch_size",
    }),
    "eval.micro_batch": frozenset({"valid_batch_size", "val_batch_size", "eval_batch_size", "test_batch_size", "batch_size_val", "batch_size_eval"}),
    "batch.seq_len": frozenset({
        "seq_len", "seq_length", "max_seq_len", "max_seq_length", "sequence_length", "block_size", "max_target_length", "context_length", "ctx_len",
    }),
    "batch.gradient_accumulation": frozenset({"accum_count", "accumulation_steps", "accumulate_grad_batches", "grad_accum_steps", "grad_accum", "update_freq"}),
    "parallel.expert": frozenset({"ep", "ep_size", "expert_parallel_size", "expert_model_parallel_size", "expert_parallel"}),
    "method.rank": frozenset({"lora_rank", "lora_r", "lora_dim"}),
    "hardware.gpus_per_node": frozenset({"gpu_per_node", "gpus_per_node", "num_gpus_per_node", "n_gpus_per_node"}),
}  # fmt: skip
WORDS: tuple[tuple[str, frozenset[str], Mapping[str, str]], ...] = (  # settings whose value is a word
    ("rollout.engine", frozenset({"engine_type", "rollout_engine", "rollout_backend", "inference_engine"}), {"vllm": "vllm", "sglang": "sglang"}),
    ("method.base", frozenset({"load_in_8bit"}), {"true": "int8"}),
    ("method.base", frozenset({"load_in_4bit"}), {"true": "nf4"}),
    (
        "activations.checkpointing",
        frozenset({"checkpoint_activations", "activation_checkpointing", "gradient_checkpointing", "use_gradient_checkpointing", "grad_checkpointing"}),
        {"true": "full", "1": "full", "false": "none", "0": "none"},
    ),
    ("parallel.strategy", frozenset({"distributed_mode", "dist_strategy", "distributed_strategy"}), {"fsdp": "fsdp1", "fsdp2": "fsdp2", "ddp": "ddp"}),
)
_ADAPTER = lazily(r"(?:peft|lora)[\w-]{0,30}\.r$", re.IGNORECASE)  # peft's own key of the rank, under a section that is named for it
MODEL = frozenset({"model", "model_name", "model_path", "model_name_or_path", "base_model", "pretrained_model", "pretrained", "hf_model", "checkpoint", "ckpt"})
LARGEST = 1 << 24
BESIDE = PROSE + 1  # names of settings in a sentence: more than its words, less than any file
_COMMAND = lazily(r"\[('[^'\]]{1,400}'(?:, '[^'\]]{0,400}'){1,200})\] exits with return code")  # deepspeed launcher/launch.py sigkill_handler


def facts_of(seen: Sequence[tuple[str, str, Any]]) -> Iterator[Ranked]:
    """Facts by the keys' last parts, in the order of what was read."""
    keys = {key.rpartition(".")[2].replace("-", "_").lower() for _, key, _ in seen}
    for where, key, value in seen:
        leaf = key.rpartition(".")[2].replace("-", "_").lower()
        text = str(value).strip().strip("'\"")
        if leaf in MODEL and "/" in text and presets.find(text) is not None:
            yield _fact("model.name", text, where, key)
        for field, names, values in WORDS:
            if leaf in names and text.lower() in values:
                yield _fact(field, values[text.lower()], where, key)
        if not re.fullmatch(r"\d{1,8}", text) or not 1 <= int(text) <= LARGEST:
            continue
        for field, names in NAMES.items():
            if leaf in names:
                yield _fact(field, int(text), where, key)
        if _ADAPTER.search(key):
            yield _fact("method.rank", int(text), where, key)
        if leaf == "max_tokens" and {"arch", "criterion"} <= keys:  # fairseq: tokens of a batch, all sentences together
            yield _fact("batch.token_budget", int(text), where, key)


_PAIRS = lazily(r"(?<![\w.-])([A-Za-z]\w{0,40}(?:_\w{1,40})?)[\"']?(?:\s?[=:]\s?)(\"[^\"]{0,80}\"|'[^']{0,80}'|[\w.\-/]{1,80})(?=[\s,;)]|$)")


_OF_MEMORY = lazily(
    r"batch|len|length|checkpoint|lora|adapter|load_in|optim|bf16|fp16|dtype|precision|memory_util|parallel|generations|model|accum|offload|shard|zero|fsdp|attn|"
    r"packing|liger|vocab|pixels|tokens",
    re.IGNORECASE,
)


_OF_AN_ENGINE = frozenset({"max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager", "kv_cache_dtype"})


def inline(where: str, text: str) -> Iterator[Ranked]:
    """Settings that stand side by side on a line of a log or a letter (``micro_batch_size: 2, gradient_checkpointing: true``).

    By the table of the framework whose names they are, as if they stood in its config; else by the names that most projects give them.
    """
    pairs = [(where, m[1], m[2].strip("\"'")) for m in _PAIRS.finditer(text)] if "_" in text and len(text) <= 600 else []
    if len(pairs) < 2:
        return
    yield from facts_of(pairs)
    if not any(_OF_MEMORY.search(key) for _, key, _ in pairs):
        return  # what a run prints at each step: no table is asked for it
    found = handoff.read_config("printed.json", json.dumps({key: _literal(value) for _, key, value in pairs}))
    if found is not None and not found.problem:
        serves = any(key.replace("-", "_").lower() in _OF_AN_ENGINE for _, key, _ in pairs)
        for fact in found.facts:
            if fact.field == "model.config" or (serves and fact.field.partition(".")[0] in ("load", "precision", "model")):
                continue  # a few keys are no config, and what an engine serves need not be what is trained
            rank = GUESS if fact.kind == "inferred" else BESIDE
            yield Ranked(replace(fact, where=where, why=fact.why or "settings in a remark", text=text.strip()[:200]), rank)


def _literal(value: str) -> object:
    if value.lower() in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(value.lower())
    try:
        return ast.literal_eval(value) if value[:1].isdigit() or value[:1] in "-." else value
    except (ValueError, SyntaxError):
        return value


def _fact(field: str, value: object, where: str, key: str) -> Ranked:
    return Ranked(Fact(field, value, "read", where, why="by its name: no table knows this project", text=f"{key} = {value}"), GUESS)


def commands_of(text: Excerpt) -> Iterator[tuple[str, str]]:
    """``(where, command)`` that a launcher prints as a list when its process ends."""
    for line in text.lines:
        if "exits with return code" in line.text and (found := _COMMAND.search(line.text)) is not None:
            try:
                words = ast.literal_eval(f"[{found[1]}]")
            except (ValueError, SyntaxError):
                continue
            yield text.where(line), shlex.join(str(word) for word in words)
