"""Jobs as each framework can run them, and lines read back as that framework's users would write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from advisor.frameworks.decode import decode
from advisor.frameworks.table import of_framework, stack, table
from advisor.job import read_job
from advisor.planner.lines import SCRIPT, changed_lines, following
from advisor.reading.configs import comments, from_json, from_overrides, from_python, from_shell, from_toml, from_yaml
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques

FRAMEWORKS = (
    "hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "torchtune", "torchtitan", "accelerate", "litgpt", "llm-foundry", "megatron-lm", "verl",
    "openrlhf", "ms-swift", "nemo",
)  # fmt: skip
SCRIPTED = frozenset({"hf-trainer", "trl", "accelerate", "unsloth"})
STRATEGIES: Mapping[str, tuple[str, ...]] = {
    "unsloth": (), "torchtune": ("fsdp2",), "torchtitan": ("fsdp2",), "litgpt": ("fsdp1",), "llm-foundry": ("fsdp1",), "megatron-lm": ("megatron-distributed",),
    "verl": ("fsdp1", "fsdp2"), "openrlhf": ("zero2", "zero3"), "nemo": ("fsdp2", "megatron-distributed"), "ms-swift": ("ddp", "zero2", "zero3"),
}  # fmt: skip
HF = ("ddp", "zero2", "zero3", "fsdp1", "fsdp2")
GENERATING = frozenset({"trl", "verl", "openrlhf", "nemo", "ms-swift"})
NO_ADAPTERS = frozenset({"torchtitan", "megatron-lm"})
NARROW = frozenset({"torchtitan", "torchtune", "megatron-lm", "accelerate", "axolotl", "llm-foundry", "hf-trainer", "trl"})  # a setting for FP8
BUDGETS = frozenset({"verl", "openrlhf"})  # batches by a number of tokens
NAMED_PARTS = frozenset({"torchtune", "litgpt"})  # adapters are asked for by part, and none is on the vocabulary
BITSANDBYTES = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "litgpt", "ms-swift", "unsloth"})


def _run(framework: str, **sections: Any) -> Run:
    job: dict[str, Any] = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "objective": "sft",
        "batch": {"micro_batch": 4, "seq_len": 4096},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8}, "framework": {"name": framework},
    }  # fmt: skip
    for name, content in sections.items():
        job[name] = {**job.get(name, {}), **content} if isinstance(content, dict) else content
    return resolve(read_job(job))


@cache
def jobs(framework: str) -> tuple[Run, ...]:
    """Runs whose settings this framework has."""
    one = {"gpus_per_node": 1}
    out = [_run(framework, hardware=one), _run(framework, hardware=one, batch={"gradient_accumulation": 4}, activations={"checkpointing": "none"})]
    if framework not in ("torchtune", "torchtitan", "litgpt", "unsloth", "nemo", "verl", "llm-foundry", "megatron-lm"):
        out.append(_run(framework, hardware=one, activations={"attention": "eager", "checkpointing": "full"}))
    if framework not in NO_ADAPTERS:
        out.append(_run(framework, hardware=one, method={"kind": "lora"}, batch={"gradient_accumulation": 4}))
        if framework not in ("torchtune", "verl", "nemo", "openrlhf", "litgpt", "unsloth"):
            out.append(
                _run(
                    framework, hardware=one, method={"kind": "lora", "modules_to_save": ["embed_tokens", "lm_head"]}, model={"name": "meta-llama/Llama-3.2-1B"}
                )
            )
    if framework in BITSANDBYTES:
        out.append(_run(framework, hardware=one, method={"kind": "lora", "base": "nf4", "double_quant": False}, batch={"gradient_accumulation": 4}))
    for strategy in STRATEGIES.get(framework, HF):
        ranks = {"replicate": 8} if strategy == "ddp" else {"shard": 8}
        out.append(_run(framework, parallel={"strategy": strategy, **ranks}, batch={"gradient_accumulation": 4}))
        out.append(_run(framework, parallel={"strategy": strategy, **ranks}, save={"format": "full"}))
        if framework not in NO_ADAPTERS:
            out.append(_run(framework, parallel={"strategy": strategy, **ranks}, method={"kind": "lora"}, batch={"gradient_accumulation": 4}))
    if "zero3" in STRATEGIES.get(framework, HF):
        out.append(_run(framework, parallel={"strategy": "zero3", "shard": 8}, offload={"optimizer": "cpu"}, optimizer={"name": "cpu-adam"}))
    if framework in GENERATING:
        strategy = STRATEGIES.get(framework, ("zero3",))[-1]
        rollout = {"engine": "vllm", "placement": "colocated", "memory_fraction": 0.5, "sleep": "none"}
        out.append(_run(framework, objective="grpo", reference="copy", rollout=rollout, batch={"generations": 8}, parallel={"strategy": strategy, "shard": 8}))
    if framework in ("trl", "axolotl", "llama-factory"):
        out.append(_run(framework, objective="dpo", reference="copy", hardware=one))
        out.append(_run(framework, objective="dpo", reference="copy", hardware=one, method={"kind": "lora"}))
    return (*out, *_rarer(framework, one))


def _rarer(framework: str, one: dict[str, Any]) -> Iterator[Run]:
    """What fewer jobs have: an evaluation, a resume, FP8, long samples, several nodes, experts, tensor groups without sequence parallelism."""
    yield _run(framework, hardware=one, eval={"micro_batch": 16, "accumulate": "device"})
    yield _run(framework, hardware=one, resume={"map": "device"})
    if framework in NARROW:
        yield _run(framework, hardware=one, precision={"compute": "fp8"})
    yield _run(framework, hardware=one, batch={"seq_len": 8192, "packed": False, "lengths": {"p50": 500, "p99": 3000, "max": 8192}})
    if framework in BUDGETS:
        yield _run(framework, hardware=one, batch={"token_budget": 65536})
    if framework not in NO_ADAPTERS:
        yield _run(framework, hardware=one, method={"kind": "lora"}, save={"merge": "device"})
        if framework not in NAMED_PARTS:
            yield _run(framework, hardware=one, method={"kind": "lora", "targets": ["q_proj", "k_proj", "o_proj", "lm_head"]})
    if framework == "unsloth":
        return
    for strategy in STRATEGIES.get(framework, HF):
        if strategy in ("fsdp1", "fsdp2"):
            yield _run(framework, parallel={"strategy": strategy, "shard": 16}, hardware={"nodes": 2})
            yield _run(framework, parallel={"strategy": strategy, "shard": 8}, load={"move_before_sharding": True})
        if strategy.startswith("megatron") or framework == "torchtitan":
            yield _run(framework, parallel={"strategy": strategy, "shard": 4, "tensor": 2, "sequence": False})
            yield _run(framework, parallel={"strategy": strategy, "shard": 8}, model={"name": "mistralai/Mixtral-8x7B-v0.1"})


def applied(framework: str, technique: str) -> Iterator[tuple[Run, Run]]:
    """Before and after, for each of the framework's jobs that the technique changes."""
    for before in jobs(framework):
        after = all_techniques()[technique].apply(before)
        if not isinstance(after, NotApplicable) and after.job != before.job:
            yield before, after


def wanted(before: Run, after: Run) -> dict[str, Any]:
    """What the technique set on purpose and the framework does not settle so by itself."""
    from advisor.frameworks.settings import changed

    follows = following(before, after)
    return {field: value for field, value in changed(before.job, after.job).items() if field not in follows}


def read_back(framework: str, lines: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The fields that the lines are read as."""
    tables = stack(of_framework(framework) or framework)
    found: dict[str, Any] = {}
    for layer, text in lines.items():
        if layer == SCRIPT:
            continue
        called = {line.partition("(")[0]: "(..." in line for line in text}  # with an ellipsis: what it leaves out is not its default
        implied = [(call, field, value) for t in tables for call, fields in t.calls.items() if call in called for field, value in fields.items()]
        found.update({field: value for call, field, value in implied if field.endswith(".kind") or not called[call]})
        for parsed in _parsed(layer, list(text)):
            found.update({fact.field: fact.value for fact in decode(parsed.keys, tables, layer).facts})
    return found


def _parsed(layer: str, lines: list[str]) -> Iterator[Any]:
    exports = [line for line in lines if line.startswith("export ")]
    if exports:
        yield from_shell.parse("\n".join(exports))
    rest = [line for line in lines if line not in exports]
    if not rest:
        return
    syntax = table(layer).syntax
    if syntax == "python":
        own = [line for line in rest if not line.split("=")[0].endswith("(...,") and "(...," not in line]
        calls = [line for line in rest if line not in own]
        scope = "SFTConfig" if layer == "unsloth" else next(iter(table(layer).scopes), "call")  # Unsloth's users write TRL's
        yield from_python.parse("\n".join([f"{scope}({', '.join(own)})" if own else "", *(call.replace("(..., ", "(") for call in calls)]))
    elif syntax == "flags":
        remarks = [line for line in rest if line.startswith("#")]  # "# without --sequence-parallel": a switch that is left out
        parsed = from_shell.parse("\n".join(["train.py " + " ".join(line for line in rest if line not in remarks), *remarks]))
        parsed.keys += comments.keys(parsed.comments)
        yield parsed
    else:
        yield {"yaml": from_yaml.parse, "json": from_json.parse, "toml": lambda t: from_toml.parse(t, named=True), "overrides": from_overrides.parse}[syntax](
            "\n".join(rest)
        )


# What a framework says otherwise, or settles from what it keeps: the samples of a step over all ranks, or the group that remains.
BY_TOTAL = frozenset({"torchtitan", "litgpt", "llm-foundry", "megatron-lm", "verl", "openrlhf", "nemo"})
SEEN = "batch.lengths"  # what the data is, not a setting
OPTIONAL = frozenset({"parallel.shard", "parallel.replicate", "precision.fp8_recipe"})
OWN: Mapping[str, frozenset[str]] = {
    "torchtune": frozenset({"activations.attention"}),
    "verl": frozenset({"parallel.context_kind"}), "ms-swift": frozenset({"parallel.context_kind"}), "openrlhf": frozenset({"batch.packed"}),
    "hf-trainer": frozenset({"parallel.context_kind"}), "trl": frozenset({"parallel.context_kind"}),
}  # fmt: skip
EITHER_WAY = frozenset({"method.kind", "method.dropout", "precision.mixed", "optimizer.implementation", "optimizer.states"})


def missing(framework: str, before: Run, after: Run, read: Mapping[str, Any]) -> dict[str, Any]:
    """What was wanted and is not read back."""
    excused = OPTIONAL | OWN.get(framework, frozenset()) | ({"batch.gradient_accumulation"} if framework in BY_TOTAL else frozenset())
    flat = dict(_flat(read))
    return {f: v for f, v in wanted(before, after).items() if f not in excused and not f.startswith(f"{SEEN}.") and not (f in flat and same(flat[f], v))}


def beyond(after: Run, read: Mapping[str, Any]) -> dict[str, Any]:
    """What is read back and is not so in the job."""
    return {f: v for f, v in _flat(read) if f not in EITHER_WAY and not same(after.job.get(f), v)}


def _flat(read: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for field, value in read.items():
        if isinstance(value, Mapping) and field != "framework.allocator":
            yield from ((f"{field}.{name}", item) for name, item in value.items())
        else:
            yield field, value


def same(value: Any, other: Any) -> bool:
    """Lists and tuples alike."""
    return (list(value) if isinstance(value, tuple) else value) == (list(other) if isinstance(other, tuple) else other)


__all__ = ["FRAMEWORKS", "SCRIPT", "applied", "beyond", "changed_lines", "missing", "read_back"]
