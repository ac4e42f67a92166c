"""The law of the tables: fields → lines → fields is the identity on what a table covers, through the real readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from advisor.frameworks.codecs import CODECS
from advisor.frameworks.decode import decode
from advisor.frameworks.derive import DERIVATIONS
from advisor.frameworks.settings import settings, written
from advisor.frameworks.syntax import WITHOUT, render
from advisor.frameworks.table import Entry, Table, names, of_framework, stack, table
from advisor.job import Job
from advisor.reading.configs import from_json, from_overrides, from_python, from_shell, from_toml, from_yaml
from advisor.reading.configs.parsed import Parsed

READERS = {
    "python": from_python.parse,
    "yaml": from_yaml.parse,
    "json": from_json.parse,
    "toml": lambda text: from_toml.parse(text, named=True),
    "flags": lambda text: from_shell.parse("train.py " + " ".join(text.splitlines())),
    "overrides": from_overrides.parse,
    "env": from_shell.parse,
}


def samples(entry: Entry) -> Iterator[dict[str, Any]]:
    """Fields that the entry can write."""
    if entry.field is not None:
        for value in CODECS[entry.codec or "count"].samples:
            yield {entry.field: value}
    elif entry.derive is not None:
        yield from (dict(s) for s in DERIVATIONS[entry.derive].samples)
    else:
        for case in entry.all_cases:
            if case.fields and not case.read_only and not case.weak and "*" not in case.when.values():
                yield dict(case.fields)


def job_with(fields: dict[str, Any]) -> Job:
    """A job that holds just these fields."""
    changes: dict[str, Any] = {}
    for path, value in fields.items():
        section, _, rest = path.partition(".")
        if not rest:
            changes[section] = value
            continue
        target = changes.setdefault(section, {})
        *parents, leaf = rest.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = value
    return Job().but(**changes)


def cases() -> Iterator[Any]:
    for name in names():
        for number, entry in enumerate(table(name).entries):
            if entry.read_only or entry.weak or table(name).syntax == "none":
                continue
            for position, fields in enumerate(samples(entry)):
                yield pytest.param(table(name), entry, fields, id=f"{name}-{number}-{entry.key or entry.keys[0]}-{position}")


def snippet(owner: Table, entry: Entry, lines: list[str]) -> str:
    """The lines as they stand in a file: keyword arguments within the table's own call."""
    if (entry.syntax or owner.syntax) == "python" and owner.scopes and not any("(" in line for line in lines):
        scope = next(iter(entry.scopes), owner.scopes[0])
        return f"{scope}({', '.join(lines)})"
    return "\n".join(lines)


@pytest.mark.parametrize(("owner", "entry", "fields"), list(cases()))
def test_fields_to_lines_to_fields(owner: Table, entry: Entry, fields: dict[str, Any]) -> None:
    job = job_with(fields)
    pairs = [(entry, key, raw) for key, raw, _ in written(entry, fields, job)]
    assert pairs, "nothing was written"
    lines = render(owner, pairs)
    if any(line.startswith(WITHOUT) for line in lines):  # told by leaving the switch out
        assert owner.switches == "bare"
        return
    text = snippet(owner, entry, lines)
    parsed = READERS[entry.syntax or owner.syntax](text)
    assert parsed is not None, text
    read = {fact.field: fact.value for fact in decode(parsed.keys, (owner,), "file").facts}
    for field, value in fields.items():
        expected = tuple(value) if isinstance(value, list) else value
        assert read.get(field) == expected, f"{text!r} was read as {read}"


@pytest.mark.parametrize("name", names())
def test_every_field_of_a_table_is_a_field_of_the_job(name: str) -> None:
    for entry in table(name).entries:
        for fields in samples(entry):
            job_with(fields)
        for case in entry.all_cases:
            job_with(dict(case.fields))
    for default in table(name).defaults:
        job_with(dict(default.fields))
    for implied in (*table(name).calls.values(), *table(name).programs.values()):
        job_with(dict(implied))


@pytest.mark.parametrize("name", names())
def test_layers_exist(name: str) -> None:
    assert all(layer.source for layer in stack(name))


def test_settings_name_the_layer_that_takes_the_key() -> None:
    before = Job().but(framework={"name": "trl"}, activations={"loss": "full-fp32"})
    after = before.but(activations={"loss": "fused-linear", "kernels": ("rmsnorm", "swiglu", "rope")}, batch={"micro_batch": 1})
    assert settings(before, after, "trl") == {"trl": ("per_device_train_batch_size=1", "use_liger_kernel=True")}


def test_settings_in_yaml_flags_and_json() -> None:
    before = Job()
    after = before.but(batch={"micro_batch": 2, "seq_len": 4096}, parallel={"strategy": "zero3"})
    assert settings(before, after, "axolotl")["axolotl"] == ("micro_batch_size: 2", "sequence_len: 4096")
    assert settings(before, after, "axolotl")["deepspeed"] == ('{"zero_optimization": {"stage": 3}}',)
    assert settings(before, after, "megatron-lm")["megatron-lm"] == ("--micro-batch-size 2", "--seq-length 4096")
    assert "accelerate" in settings(before, after, "trl")


@pytest.mark.parametrize(
    ("framework", "layer", "ring", "shard"),
    [
        ("trl", "accelerate", "parallelism_config_cp_size", "parallelism_config_dp_shard_size"),
        ("axolotl", "axolotl", "context_parallel_size", "dp_shard_size"),
    ],
)
def test_a_ring_is_divided_off_the_ranks_that_shard(framework: str, layer: str, ring: str, shard: str) -> None:
    """accelerate 1.15 ParallelismConfig.total_size: the product of all sizes must be the number of processes."""
    before = Job().but(framework={"name": framework}, parallel={"strategy": "fsdp2", "shard": 8})
    after = before.but(parallel={"context": 2, "context_kind": "ring"})
    lines = {line.strip() for line in settings(before, after, framework)[layer]}
    assert {f"{ring}: 2", f"{shard}: 4"} <= lines
    section = "parallelism_config." if layer == "accelerate" else ""
    raw = {f"{section}{ring}": 2, f"{section}{shard}": 4}
    read = DERIVATIONS[f"{layer}-context"].read(raw)
    assert (read["parallel.context"], read["parallel.shard"]) == (2, 8)
    assert DERIVATIONS[f"{layer}-context"].read({key: value for key, value in raw.items() if "shard" in key}) == {"parallel.shard": 4}


def test_no_class_of_deepspeed_is_written_as_the_type_of_its_config() -> None:
    """0.19.0 runtime/config.py DEEPSPEED_OPTIMIZERS: AdamW is a type, DeepSpeedCPUAdam and FusedAdam are what the engine builds of it."""
    zero = Job().but(parallel={"strategy": "zero3"}, optimizer={"name": "adamw"})
    after = zero.but(offload={"optimizer": "cpu"}, optimizer={"name": "cpu-adam"})
    assert settings(zero, after, "deepspeed") == {"deepspeed": ('{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}',)}
    assert settings(after, after.but(optimizer={"name": "adamw"}), "deepspeed") == {"deepspeed": ('{"optimizer": {"type": "AdamW"}}',)}


@pytest.mark.parametrize(
    ("transformers", "reshard", "layer", "line"),
    [
        ("4.45.1", True, "hf-trainer", "fsdp='full_shard auto_wrap offload'"),
        ("5.8.0", False, "hf-trainer", "fsdp='shard_grad_op auto_wrap offload'"),
        ("5.10.0", True, "fsdp", '{"fsdp_config": {"fsdp_cpu_offload": true}}'),
        (None, True, "fsdp", '{"fsdp_config": {"fsdp_cpu_offload": true}}'),
    ],
)
def test_fsdp_offload_by_the_release(transformers: str | None, reshard: bool, layer: str, line: str) -> None:
    """``cpu_offload`` is read from 5.10 on; before, offload is a word of ``fsdp``, and the key would be passed over in silence."""
    versions = {"versions": {"transformers": transformers}} if transformers else {}
    before = Job().but(framework={"name": "hf-trainer", **versions}, parallel={"strategy": "fsdp1", "shard": 8, "reshard_after_forward": reshard})
    after = before.but(offload={"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"})
    lines = settings(before, after, "hf-trainer")
    assert line in lines[layer]
    assert ("fsdp" in lines) is (layer == "fsdp")


def test_settings_of_an_unknown_framework_fall_back_to_the_trainer() -> None:
    after = Job().but(batch={"micro_batch": 2})
    assert settings(Job(), after, "colossalchat") == {"hf-trainer": ("per_device_train_batch_size=2",)}
    assert settings(after, after, "trl") == {}


def test_parsed_is_bounded() -> None:
    assert isinstance(Parsed("yaml").keys, list)


BUILT_ON = frozenset(
    {
        "slime",
        "ms-swift-megatron",
        "deepspeed-chat",
        "fairseq",
        "skyrl",
        "trlx",
        "openmmlab",
        "nemo-automodel",
        "gpt-neox",
        "nanotron",
        "olmo",
        "xtuner",
        "lightning",
    }
)  # a job names what these are built on; their own defaults are facts of the reader


@pytest.mark.parametrize("name", [n for n in names() if table(n).framework and n not in BUILT_ON])
def test_a_framework_finds_its_table(name: str) -> None:
    framework = table(name).framework
    assert framework is not None
    assert of_framework(framework) == name
