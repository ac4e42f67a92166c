"""One cause in several forms, each from what a library's code prints or keeps, and what only looks like it."""

from __future__ import annotations

from advisor.diagnosis import diagnose
from advisor.evidence import Evidence, Line
from advisor.report import Report
from advisor.rules import growth
from advisor.rules.samples import oom, trace


def _report(**files: str) -> Report:
    return diagnose([(name.replace("_", "."), text) for name, text in files.items()])


def _marks(report: Report) -> set[str]:
    return {s.mark for f in report.findings for s in f.evidence}


def test_a_size_beside_the_word_step_is_no_count_of_steps() -> None:
    lines = ("before the first step: 32.8 GiB allocated", "each step 40 MiB more", "a step 12.5 s")
    assert growth.last_step(Evidence(lines=tuple(Line("log.txt:1", text) for text in lines))) is None
    assert growth.last_step(Evidence(lines=(Line("log.txt:1", "step: 32 memory: 8 GiB"),))) == 32


def test_a_hook_of_fully_shard_is_no_wrapping() -> None:
    hooks = ("torch/distributed/fsdp/_fully_shard/_fsdp_state.py|_pre_forward|args, kwargs = self._fsdp_param_group.pre_forward(module, args, kwargs)",)
    config = "model: Qwen/Qwen2.5-7B\ndistributed:\n  strategy: fsdp2\n  dp_size: 8\n"
    text = trace(*hooks, "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py|foreach_all_gather|all_gather_output = torch.empty(") + oom(
        "632.00 MiB", allocated=77.2
    )
    assert "moved-before-sharding-wrap" not in _marks(_report(config_yaml=config, error_txt=text))
    kept = _marks(_report(config_yaml=config + "  reshard_after_forward: false\n", error_txt=text))
    assert "communication-buffers-stays" in kept
    assert "communication-buffers-stays" not in _marks(_report(config_yaml=config + "  reshard_after_forward: true\n", error_txt=text))


def test_small_adapters_in_fp32_are_no_widening_of_the_model() -> None:
    text = "Upcasting trainable params to float32.\n" + oom("512.00 MiB", allocated=76.5)
    config = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nfinetuning_type: {}\nbf16: true\n"
    assert "framework-upcast-trainable" not in _marks(_report(config_yaml=config.format("lora"), error_txt=text))
    assert "framework-upcast-trainable" in _marks(_report(config_yaml=config.format("full"), error_txt=text))


def test_a_module_in_evaluation_mode_checkpoints_nothing_where_it_is_switched_on() -> None:
    failed = trace("diffusers/models/unets/unet_2d_condition.py|forward|sample = upsample_block(") + oom("270.00 MiB", allocated=22.6, capacity=23.65)
    on = _report(train_sh="accelerate launch train.py --gradient_checkpointing --train_batch_size=6\n", error_txt="unet.training False\n" + failed)
    assert on.findings[0].cause == "checkpointing-broken"
    assert "checkpointing-broken-mode-on" not in _marks(
        _report(train_sh="accelerate launch train.py --train_batch_size=6\n", error_txt="unet.training False\n" + failed)
    )


def test_a_card_without_bf16_computes_in_fp32_where_fp16_overflows() -> None:
    said = "Unsloth: Using float16 precision for gemma3 won't work! Using float32.\n"
    failed = trace("transformers/models/gemma3/modeling_gemma3.py|forward|hidden_states = self.mlp(hidden_states)") + oom(
        "160.00 MiB", allocated=13.9, capacity=14.74
    )
    assert _report(log_txt=said, error_txt=failed).findings[0].cause == "kernel-unsupported"
    assert "kernel-unsupported-wider" not in _marks(_report(log_txt="Using float16 precision.\n", error_txt=failed))
