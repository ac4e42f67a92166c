"""The tape's own rules, and the closed forms that tapes must give, without torch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from advisor.architecture import Block, Tensor
from advisor.architecture.shape import Experts
from advisor.arithmetic import settings
from advisor.arithmetic.blocks.block import count, settled
from advisor.arithmetic.blocks.operations import linear, parts
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Tape

HIDDEN, WIDTH, HEADS, KV, SIZE = 512, 1792, 8, 2, 64
KAPPA, RATIO = KV / HEADS, WIDTH / HIDDEN


def llama(**changes: Any) -> Block:
    """A Llama-like block."""
    tensors = (
        Tensor("q_proj", (HIDDEN, HIDDEN), "attention"), Tensor("k_proj", (KV * SIZE, HIDDEN), "attention"),
        Tensor("v_proj", (KV * SIZE, HIDDEN), "attention"), Tensor("o_proj", (HIDDEN, HIDDEN), "attention"),
        Tensor("gate_proj", (WIDTH, HIDDEN), "mlp"), Tensor("up_proj", (WIDTH, HIDDEN), "mlp"), Tensor("down_proj", (HIDDEN, WIDTH), "mlp"),
        Tensor("input_layernorm", (HIDDEN,), "norm", False), Tensor("post_attention_layernorm", (HIDDEN,), "norm", False),
    )  # fmt: skip
    values = {"kind": "attention", "count": 2, "tensors": tensors, "heads": HEADS, "kv_heads": KV, "head_dim": SIZE, "v_head_dim": SIZE}
    return Block(**{**values, "mlp_width": WIDTH, "gated": True, **changes})


ALL = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})


@pytest.mark.parametrize(
    ("how", "a_hidden"),
    [
        ({}, 20 + 4 * KAPPA + 8 * RATIO),  # 2 x (fp32 input 4 + normalised 2 + output 2) + q 2 + attention 2 + k, v + gate, act, up, product
        ({"trained": False}, 12 + 4 * KAPPA + 6 * RATIO),
        ({"autocast": True, "weight": 4, "norm": 4, "stream": 4}, 30 + 4 * KAPPA + 8 * RATIO),
        ({"fused": frozenset({"rmsnorm", "swiglu", "rope"})}, 12 + 4 * KAPPA + 6 * RATIO),
        ({"trained": False, "adapted": ALL, "rank": 8, "adapter": 2}, 16 + 4 * KAPPA + 8 * RATIO + 14 * 8 / HIDDEN),
        ({"trained": False, "adapted": ALL, "rank": 8, "adapter": 4}, 36 + 4 * KAPPA + 10 * RATIO + 28 * 8 / HIDDEN),
        ({"kernel": "eager"}, 24 + 8 * RATIO),
    ],
)  # fmt: skip
def test_a_llama_block_in_units_of_hidden_size(how: dict[str, Any], a_hidden: float) -> None:
    counted = count(llama(), HIDDEN, Setting(**how))
    statistics = 0.25  # log-sum-exp and the norms' rows
    assert counted.total[0] / HIDDEN == pytest.approx(a_hidden, abs=statistics)


def test_eager_scores_are_kept_in_fp32_and_in_16_bit() -> None:
    assert count(llama(), HIDDEN, Setting(kernel="eager")).total[1] == (4 + 2) * HEADS
    assert count(llama(), HIDDEN, Setting()).total[1] == 0


def test_megatron_divides_everything_by_its_ranks_under_sequence_parallelism() -> None:
    one = count(llama(), HIDDEN, Setting(source="megatron", kernel="te-fused"))
    two = count(llama(), HIDDEN, Setting(source="megatron", kernel="te-fused", tensor=2, sequence=True))
    assert two.total[0] == pytest.approx(one.total[0] / 2, rel=0.01)


def test_experts_keep_the_chosen_ones_work() -> None:
    from advisor.architecture import Experts

    experts = tuple(t for t in llama().tensors if t.role != "mlp")
    experts += (
        Tensor("gate", (8, HIDDEN), "router", False),
        Tensor("gate_up_proj", (2 * 256, HIDDEN), "expert", False, 8),
        Tensor("down_proj", (HIDDEN, 256), "expert", False, 8),
    )
    block = llama(tensors=experts, experts=Experts(8, 2, 256), mlp_width=0)
    sparse = count(block, HIDDEN, Setting()).total[0] - (20 + 4 * KAPPA) * HIDDEN
    assert sparse == pytest.approx(2 * (8 * 256 + 4 * HIDDEN), rel=0.04)  # chosen x (8 width + 4 hidden), and the router's


def test_a_loop_over_experts_needs_one_experts_temporaries() -> None:
    from advisor.architecture import Experts

    tensors = tuple(t for t in llama().tensors if t.role != "mlp")
    tensors += (*(Tensor(n, (256, HIDDEN), "expert", True, 8) for n in ("w1", "w3")), Tensor("w2", (HIDDEN, 256), "expert", True, 8))
    block = llama(tensors=tensors, experts=Experts(8, 2, 256), mlp_width=0)
    loop, grouped = (max(s.saved[0] + s.live[0] for s in count(block, HIDDEN, Setting(experts=kind)).backward) for kind in ("loop", "grouped"))
    assert loop < grouped
    assert count(block, HIDDEN, Setting(experts="loop")).total[0] == count(block, HIDDEN, Setting(experts="grouped")).total[0]


def test_a_stream_that_the_block_widens_is_wide_from_then_on() -> None:
    how = Setting(autocast=True, norm_kind="layer", base="nf4", trained=False, adapted=frozenset({"q_proj"}), rank=8)
    assert settled(llama(), HIDDEN, how).input[0] == 4 * HIDDEN
    assert count(llama(), HIDDEN, how).input[0] == 2 * HIDDEN


def test_a_frozen_fp32_weight_is_cast_and_the_cast_saved_under_autocast() -> None:
    frozen = count(llama(), HIDDEN, Setting(autocast=True, weight=4, norm=4, stream=4, trained=False))
    assert frozen.total[2] == 2 * sum(t.elements for t in llama().tensors if len(t.shape) == 2)


def test_the_per_operation_policy_keeps_every_second_product_and_attention() -> None:
    names = [s.name for s in count(llama(), HIDDEN, Setting()).by_policy]
    assert names == ["q_proj output", "v_proj output", "attention output", "attention log-sum-exp", "gate_proj output", "down_proj output"]


def test_the_per_operation_policy_makes_experts_grouped_products_and_the_router_again() -> None:
    """torch._grouped_mm is on none of the lists that torchtitan's policy keeps by, and ``moe.router.gate`` is made again by name, uncounted."""
    tensors = (
        *(t for t in llama().tensors if t.role != "mlp"), Tensor("gate", (16, HIDDEN), "router"),
        Tensor("gate_up_proj", (2 * 128, HIDDEN), "expert", False, 16), Tensor("down_proj", (HIDDEN, 128), "expert", False, 16),
    )  # fmt: skip
    block = llama(tensors=tensors, mlp_width=0, experts=Experts(number=16, chosen=2, width=128))
    names = [s.name for s in count(block, HIDDEN, Setting(source="torchtitan")).by_policy]
    assert names == ["q_proj output", "v_proj output", "attention output", "attention log-sum-exp"]


def test_views_share_memory_and_their_gradients_are_joined_once() -> None:
    tape = Tape()
    x = tape.enter("x", 64, 2)
    whole = linear(tape, Setting(), x, "both", 128)
    left, right = parts(tape, whole, (("left", 64.0), ("right", 64.0)))
    out = tape.run("product", (left, right), 64, 2, saves=(left, right))
    counted = tape.count(out)
    assert sorted(s.name for s in counted.saved) == ["both output", "x"]
    assert counted.total[0] == 2 * 128 + 2 * 64
    assert (
        max(s.saved[0] + s.live[0] for s in counted.backward) == 2 * 128 + 2 * 3 * 64
    )  # at the product: what it read (the input is the caller's), its gradient and two more


def test_a_split_joins_gradients_in_new_memory() -> None:
    tape = Tape()
    x = tape.enter("x", 64, 2)
    whole = linear(tape, Setting(trained=False), x, "both", 128)
    left, right = parts(tape, whole, (("left", 64.0), ("right", 64.0)))
    counted = tape.count(tape.run("sum", (left, right), 64, 2))
    assert max(s.live[0] for s in counted.backward) == 2 * (64 + 64 + 128)  # two halves beside the joined whole


def test_an_empty_tape_says_what_is_missing() -> None:
    tape = Tape()
    with pytest.raises(ValueError, match="no input"):
        tape.count(tape.run("x", (), 1, 2))


@hypothesis_settings(deadline=None, max_examples=60)
@given(
    st.booleans(), st.sampled_from([0, 8, 64]), st.sampled_from([2, 4]), st.sampled_from([0.0, 0.1]),
    st.sampled_from(["flash", "efficient", "eager"]), st.sampled_from(["none", "nf4"]),
)  # fmt: skip
def test_laws_of_every_block(autocast: bool, rank: int, adapter: int, dropout: float, kernel: Any, base: str) -> None:
    adapted = ALL if rank else frozenset()
    how = Setting(
        autocast=autocast, adapted=adapted, rank=rank, adapter=adapter, dropout=dropout, kernel=kernel, trained=not rank, base=base if rank else "none"
    )
    counted = count(llama(), HIDDEN, how)
    assert all(part >= 0 for s in counted.saved for part in s.size)
    assert all(part >= -1e-6 for step in counted.backward for part in (*step.saved, *step.live))
    assert max(step.born for step in counted.backward) <= counted.weights
    whole = sum(s.size[0] for s in counted.saved)
    assert counted.total[0] == pytest.approx(whole)
    kept = [sum(counted.saved[i].size[0] for i in step.kept) for step in counted.backward]
    assert all(step.saved[0] == pytest.approx(k) for step, k in zip(counted.backward, kept, strict=True))


def test_targets_are_found_under_other_codes_names() -> None:
    assert settings.targets(llama(), "all-linear") == ALL
    assert settings.targets(llama(), ("model.layers.*.q_proj", "output_proj")) == {"q_proj", "o_proj"}


def test_one_function_for_adapters_keeps_input_gate_and_up_only() -> None:
    plain = count(llama(), HIDDEN, Setting(trained=False, adapted=ALL, rank=8, adapter=2))
    fused = count(llama(), HIDDEN, Setting(trained=False, adapted=ALL, rank=8, adapter=2, fused=frozenset({"lora"})))
    assert plain.total[0] - fused.total[0] == pytest.approx(2 * 2 * WIDTH, abs=HIDDEN / 4)  # act(gate) and the product, beside the low-rank parts


@pytest.mark.parametrize(
    ("wanted", "adapted"),
    [("qv", {"q_proj", "v_proj"}), ("all-linear", {"q_proj", "k_proj", "v_proj", "dense"}), (("q_proj",), {"q_proj"}), (("dense",), {"dense"})],
)
def test_litgpts_adapters_of_a_fused_matrix_are_those_of_its_parts(wanted: str | tuple[str, ...], adapted: set[str]) -> None:
    """LoRAQKVLinear keeps its dropped-out input and the padded sum whatever Hugging Face calls the matrix."""
    block = llama(tensors=(Tensor("query_key_value", ((HEADS + 2 * KV) * SIZE, HIDDEN), "attention"), Tensor("dense", (HIDDEN, HIDDEN), "attention")))
    assert settings.parted(settings.targets(block, wanted), wanted) == adapted
