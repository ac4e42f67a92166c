"""NVFP4 linears of torchtitan: codes are kept in place of inputs, the per-operation policy keeps none of their outputs, and the last layers stay in bf16."""

from __future__ import annotations

from advisor.arithmetic import context, settings
from advisor.arithmetic.blocks.block import count
from advisor.arithmetic.blocks.tape import Counted
from advisor.run import resolve
from tests.arithmetic.jobs import TINY, job


def kinds(compute: str, source: str = "torchtitan") -> list[tuple[Counted, int]]:
    made = job(
        {"num_hidden_layers": 32}, precision={"weights": "fp32", "compute": compute, "mixed": "fsdp"}, parallel={"strategy": "fsdp2", "shard": 4},
        framework={"name": source if source == "torchtitan" else "hf-trainer"},
    ).but(model={"source": source})  # fmt: skip
    ctx = context.read(resolve(made))
    block, layers = ctx.blocks[0]
    return [(count(block, TINY["hidden_size"], s), n) for s, n in settings.parts(ctx, block, layers)]


def test_the_last_fifteen_percent_of_the_layers_stay_in_bf16() -> None:
    (low, many), (wide, few) = kinds("nvfp4")
    assert (many, few) == (27, 5)
    assert wide == kinds("bf16")[0][0]
    assert low.weights == wide.weights


def test_inputs_are_kept_as_codes_of_four_bits_and_a_scale_for_sixteen() -> None:
    low = kinds("nvfp4")[0][0]
    codes = [s for s in low.saved if s.name.endswith("input as nvfp4")]
    assert len(codes) == 7  # each linear quantises its own
    assert sum(s.size[0] for s in codes) == (0.5 + 1 / 16) * (6 * TINY["hidden_size"] + TINY["intermediate_size"])


def test_the_policy_keeps_attention_and_no_product() -> None:
    low, wide = (c for c, _ in kinds("nvfp4"))
    assert {s.name for s in low.by_policy} < {s.name for s in wide.by_policy}
    assert not [s for s in low.by_policy if s.name.endswith("_proj output")]


def test_other_modelling_code_has_no_such_layers() -> None:
    assert len(kinds("nvfp4", "huggingface")) == 1
