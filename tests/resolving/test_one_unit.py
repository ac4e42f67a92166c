"""FSDP1 without a wrap policy is one unit, and the report says so."""

from __future__ import annotations

import pytest

from advisor.job import read_job
from advisor.reading import read
from advisor.resolving.contradictions import contradictions
from advisor.run import resolve

SCRIPT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = AutoModelForCausalLM.from_pretrained('gpt2-xl')\n{}\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("model = FSDP(model, device_id=0)", True),
        ("model = FullyShardedDataParallel(model)", True),
        ("model = FSDP(model, auto_wrap_policy=policy)", False),
        ("for i, layer in enumerate(layers):\n    layers[i] = FSDP(layer)\nmodel = FSDP(model)", False),
        ("with enable_wrap(wrapper_cls=FSDP):\n    model = wrap(model)", False),
        ("model = DistributedDataParallel(model)", False),
    ],
)
def test_a_model_that_is_one_unit_is_said(lines: str, said: bool) -> None:
    found = read([("train.py", SCRIPT.format(lines))])
    assert any("one unit" in sentence for sentence in contradictions(resolve(found.job, found.evidence))) is said


@pytest.mark.parametrize(
    ("fsdp", "version", "blocks"),
    [
        ("'full_shard'", "4.46.0", "root"),
        ("['shard_grad_op', 'offload']", "5.9.0", "root"),
        ("'full_shard'", None, "root"),
        ("'full_shard'", "5.12.0", None),
        ("'full_shard auto_wrap'", "4.46.0", None),
    ],
)
def test_the_trainer_s_word_decides_the_units_until_5_9(fsdp: str, version: str | None, blocks: str | None) -> None:
    versions = [("requirements.txt", f"transformers=={version}\n")] if version else []
    found = read([("args.py", f"TrainingArguments(output_dir='o', fsdp={fsdp}, bf16=True)"), *versions])
    run = resolve(found.job, found.evidence)
    wrap = run.job.parallel.wrap
    assert (wrap.blocks if wrap is not None else None) == blocks
    assert blocks is None or (run.facts["parallel.wrap.blocks"].kind == "assumed") is (version is None)


@pytest.mark.parametrize(("policy", "blocks"), [("NO_WRAP", "root"), ("TRANSFORMER_BASED_WRAP", "own unit")])
def test_accelerate_s_policy_is_read(policy: str, blocks: str) -> None:
    text = f"distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_auto_wrap_policy: {policy}\n"
    wrap = read([("acc.yaml", text)]).job.parallel.wrap
    assert wrap is not None
    assert wrap.blocks == blocks


def test_a_model_that_is_one_unit_is_wrapped_before_anything_else_is_changed() -> None:
    from advisor.planning import plan

    lines = "model = FSDP(model, device_id=0)\nloader = DataLoader(data, batch_size=1)"
    smi = "NVIDIA A100-SXM4-40GB\n" * 4
    found = read([("train.py", SCRIPT.replace("gpt2-xl", "meta-llama/Llama-3.1-8B").format(lines)), ("nvidia-smi.txt", smi)])
    run = resolve(found.job, found.evidence)
    assert run.job.parallel.wrap is not None
    changed = run.but(hardware={"gpu": "a100-40gb", "gpus_per_node": 4}, batch={"micro_batch": 1, "seq_len": 2048}, precision={"weights": "bf16"})
    assert plan(changed).steps[0].technique == "wrap-each-block"


def test_an_unknown_version_leaves_both_in_the_range() -> None:
    from advisor.arithmetic import estimate

    found = read([("args.py", "TrainingArguments(output_dir='o', fsdp='full_shard', bf16=True)")])
    sure = resolve(found.job, found.evidence).but(
        model={"name": "meta-llama/Llama-3.1-8B"}, batch={"micro_batch": 1, "seq_len": 1024}, hardware={"gpu": "a100-80gb", "gpus_per_node": 4}
    )
    total = estimate(sure).totals()["max_allocated"]
    wrapped = estimate(sure.but(parallel={"wrap": {"blocks": "own unit"}})).totals()["max_allocated"]
    assert total.low < wrapped.expected < 0.6 * total.expected


def test_what_a_version_derived_within_a_section_goes_with_that_version() -> None:
    """accelerate 1.14 makes the embedding a unit of its own; an older one does not, and neither does DDP."""
    job = read_job({
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "hardware": {"gpu": "h200", "gpus_per_node": 4},
        "framework": {"name": "accelerate", "versions": {"accelerate": "1.14.0"}}, "parallel": {"strategy": "fsdp2"},
    })  # fmt: skip
    run = resolve(job)
    assert run.job.parallel.wrap is not None and run.job.parallel.wrap.embeddings == "own unit"
    for changed in (run.but(framework={"versions": {"accelerate": "1.10.0"}}), run.but(parallel={"strategy": "ddp"})):
        again = changed.but(batch={"micro_batch": 1})  # nor is it taken for stated at the next change
        for known in (changed, again):
            wrap = known.job.parallel.wrap
            assert wrap is None or wrap.embeddings is None


def test_a_policy_that_stands_elsewhere_decides() -> None:
    axolotl = "base_model: meta-llama/Llama-3.1-8B\nfsdp:\n  - full_shard\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nmicro_batch_size: 1\n"
    for text, blocks in ((axolotl, None), (axolotl.replace("  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n", "  fsdp_offload_params: false\n"), "root")):
        found = read([("config.yaml", text)])
        wrap = resolve(found.job, found.evidence).job.parallel.wrap
        assert (wrap.blocks if wrap is not None else None) == blocks
