"""Stand-ins against hand-worked bytes and, where it is installed, against the library's own tensors."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BF16 = {"precision": {"weights": "bf16", "compute": "bf16"}}
FLASH = {"activations": {"attention": "flash-2"}}
QLORA = {"method": {"kind": "lora", "rank": 4, "targets": "all-linear", "base": "nf4", "double_quant": True, "kbit_preparation": False}}


def _peak(recorder: Any) -> int:
    current = top = 0
    for event in recorder.events:
        current += -recorder.storages[event.id].requested if event.free else recorder.storages[event.id].requested
        top = max(top, current)
    return top


def _held(recorder: Any, ending: str) -> int:
    return sum(s.requested for s in recorder.storages.values() if s.name and s.name.endswith(ending))


def test_nf4_holds_half_a_byte_a_weight_and_its_scales() -> None:
    import torch

    from advisor.simulation.standins.bitsandbytes import Linear4bit, tensors_of

    with torch.device("meta"):
        layer = Linear4bit(torch.nn.Linear(1024, 512, bias=False), quant_type="nf4", double=True, compute_dtype=torch.bfloat16)
    beside = {name: t.nbytes for name, t in tensors_of(layer.weight).items()}
    assert layer.weight.nbytes == 1024 * 512 // 2
    assert beside == {"absmax": 8192, "quant_map": 64, "nested_absmax": 32 * 4, "nested_quant_map": 1024, "offset": 4}


@pytest.mark.parametrize("double", [True, False])
def test_nf4_is_what_bitsandbytes_holds(double: bool) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: the stand-in is checked by hand-worked bytes alone")
    import bitsandbytes
    import torch

    from advisor.simulation.standins.bitsandbytes import Linear4bit, tensors_of

    if getattr(bitsandbytes, "__standin__", False):
        pytest.skip("an earlier test has put the stand-in in the library's place")
    real = bitsandbytes.nn.Linear4bit(512, 256, bias=False, compress_statistics=double, quant_type="nf4").to("cpu")
    ours = Linear4bit(torch.nn.Linear(512, 256, bias=False), quant_type="nf4", double=double, compute_dtype=torch.bfloat16)
    assert (real.weight.shape, real.weight.dtype) == (ours.weight.shape, ours.weight.dtype)
    theirs = {k.replace("bitsandbytes__nf4", ""): v for k, v in real.weight.quant_state.as_dict(packed=False).items() if isinstance(v, torch.Tensor)}
    mine = tensors_of(ours.weight)
    assert {k: (tuple(v.shape), v.dtype) for k, v in theirs.items()} == {k: (tuple(v.shape), v.dtype) for k, v in mine.items() if k != "offset"}


def test_gptq_holds_half_a_byte_a_weight_and_a_scale_and_zero_a_group() -> None:
    import torch

    from advisor.simulation.standins.gptq import QuantLinear

    with torch.device("meta"):
        layer = QuantLinear(torch.nn.Linear(1024, 512, bias=False), group=128, shard_as=None)
        shared = QuantLinear(torch.nn.Linear(1024, 512, bias=False), group=128, shard_as=torch.float16)
    held = {name: t.nbytes for name, t in layer.named_buffers()}
    assert held == {"qweight": 1024 * 512 // 2, "qzeros": 8 * 512 // 2, "scales": 8 * 512 * 2, "g_idx": 1024 * 4}
    assert {name: p.nbytes for name, p in shared.named_parameters()} == {name: held[name] for name in ("qweight", "qzeros")}


def test_gptq_without_groups_has_one_scale_for_all_inputs_of_an_output() -> None:
    import torch

    from advisor.simulation.standins.gptq import QuantLinear

    with torch.device("meta"):
        layer = QuantLinear(torch.nn.Linear(1024, 512, bias=False), group=-1, shard_as=None)
    assert {name: t.nbytes for name, t in layer.named_buffers()} == {"qweight": 1024 * 512 // 2, "qzeros": 512 // 2, "scales": 512 * 2, "g_idx": 1024 * 4}


def test_a_quantised_base_is_widened_for_a_moment_only(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    plain = record(tiny("llama", **BF16, **FLASH, method={"kind": "lora", "rank": 4, "targets": "all-linear"}))
    packed = record(tiny("llama", **BF16, **FLASH, **QLORA))
    resting = {name: sum(s.requested for s in r.storages.values() if s.part == "weights") for name, r in (("plain", plain), ("packed", packed))}
    linear = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 160)
    assert resting["plain"] - resting["packed"] > linear * 1.3  # 2 bytes a weight become half a byte and scales
    widened = [i for i, s in packed.storages.items() if s.operator == "aten::empty.memory_format" and s.dtype == "bfloat16" and s.shape == (160, 64)]
    freed = {e.id for e in packed.events if e.free}
    assert widened
    assert freed.issuperset(widened)


def test_kbit_preparation_widens_what_is_not_quantised(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.building import build

    prepared = build(tiny("llama", **BF16, **FLASH, method={**QLORA["method"], "kbit_preparation": True}))
    names = {n: str(p.dtype) for n, p in prepared.named_parameters() if "lora" not in n}
    assert all(d == "torch.float32" for n, d in names.items() if "embed_tokens" in n or "norm" in n or "lm_head" in n)
    assert all(d == "torch.uint8" for n, d in names.items() if "_proj" in n)


def test_trl_puts_head_and_embedding_back_in_bf16(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.building import build

    job = {"method": {**QLORA["method"], "kbit_preparation": True}, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "autocast"}}
    for version, dtype in (("0.13.0", "torch.bfloat16"), ("1.16.0", "torch.float32")):
        model = build(tiny("llama", **job, **FLASH, framework={"name": "trl", "versions": {"trl": version}}))
        names = {n: str(p.dtype) for n, p in model.named_parameters() if "lora" not in n}
        assert {d for n, d in names.items() if "embed_tokens" in n or "lm_head" in n} == {dtype}
        assert {d for n, d in names.items() if "norm" in n} == {"torch.float32"}


def test_eight_bit_states_are_a_byte_and_small_ones_are_not(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    seen = record(tiny("llama", **BF16, optimizer={"name": "adamw-8bit"}, framework={"name": "hf-trainer", "versions": {"bitsandbytes": "0.46.0"}}))
    assert _held(seen, "q_proj.weight state1") == 2 * 64 * 64
    assert _held(seen, "q_proj.weight absmax1") == 2 * 64 * 64 // 256 * 4
    assert _held(seen, "layernorm.weight state1") == 4 * 64 * 4
    assert _held(seen, "embed_tokens.weight state1") == 256 * 64 * 4  # Trainer asks for 32 bit


def test_paged_states_are_not_torchs(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    big = {"model": {"config": {**tiny("llama").job.model.config, "vocab_size": 4096}}, "optimizer": {"name": "paged-adamw-8bit"}}
    seen = record(tiny("llama", **BF16, **big))
    assert _held(seen, "lm_head.weight state1") == 0
    assert _held(seen, "lm_head.weight absmax1") > 0


def test_fused_losses_make_fewer_copies_of_the_logits(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    long = {"batch": {"micro_batch": 4, "seq_len": 512}, "optimizer": {"name": "sgd", "implementation": "for-loop"}}
    peaks = {
        loss: _peak(record(tiny("llama", **BF16, **long, activations={"attention": "flash-2", "loss": loss})))
        for loss in ("full-fp32", "fused", "fused-linear")
    }
    logits = 4 * 512 * 256 * 4
    assert peaks["full-fp32"] - peaks["fused"] >= logits  # no log-softmax, no gradient of its own
    assert peaks["fused"] - peaks["fused-linear"] >= logits // 2  # no logits but a chunk's


def test_fused_norms_keep_their_input_alone(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    job = {**BF16, "batch": {"micro_batch": 4, "seq_len": 512}}
    plain = _peak(record(tiny("llama", **job, activations={"attention": "flash-2"})))
    fused = _peak(record(tiny("llama", **job, activations={"attention": "flash-2", "kernels": ["rmsnorm", "rope", "swiglu"]})))
    assert fused < plain


def test_an_optimizer_in_the_backward_pass_holds_no_gradients(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    job = {**BF16, "batch": {"micro_batch": 1, "seq_len": 4}}
    usual = record(tiny("llama", **job, optimizer={"name": "adamw", "implementation": "foreach"}))
    within = record(tiny("llama", **job, optimizer={"name": "adamw", "implementation": "foreach", "in_backward": True}))
    weights = sum(s.requested for s in usual.storages.values() if s.part == "weights")
    assert _peak(usual) - _peak(within) > 0.8 * weights
    assert _held(within, "q_proj.weight exp_avg") == _held(usual, "q_proj.weight exp_avg") > 0


def test_tokens_are_spread_evenly_over_experts() -> None:
    import torch

    from advisor.simulation.recorder import Recorder

    recorder = Recorder()
    recorder.experts = 8
    with recorder:
        place, token = torch.where(torch.empty(2, 4096, dtype=torch.bool, device="meta"))
    assert place.shape == token.shape == (1024,)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"parallel": {"strategy": "zero3", "shard": 8}, "offload": {"optimizer": "cpu"}}, "DeepSpeed's offloading"),
        ({"objective": "kto"}, "kto"),
        ({"activations": {"compile": True}}, "torch.compile"),
        ({"offload": {"gradients": "cpu"}}, "offload.gradients"),
        ({"method": {"kind": "lora", "base": "awq-int4"}}, "awq-int4"),
        ({"optimizer": {"name": "muon"}}, "muon"),
    ],
)
def test_what_has_no_stand_in_is_refused_by_name(section: dict[str, Any], says: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation import CannotProbe
    from advisor.simulation.step import record

    with pytest.raises(CannotProbe, match=says):
        record(tiny("llama", **section))


def test_only_known_packages_at_versions_are_installed() -> None:
    from advisor.simulation import versions

    written = {"transformers": "4.48.1", "torch": "2.4.1", "peft": "git+https://example.org/x", "trl": "0.13.0; rm", "flash_attn": "2.7.3"}
    assert versions.wanted(written) == {"transformers": "4.48.1"}
    assert versions.wanted({"transformers": versions.installed("transformers") or "0"}) == {}
