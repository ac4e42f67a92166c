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


def _adapters(trained: int, rank: int) -> set[str]:
    config = f"model_name_or_path: meta-llama/Llama-2-7b-hf\nstage: sft\nfinetuning_type: lora\nlora_rank: {rank}\nlora_target: all\n"
    count = f"trainable params: {trained:,} || all params: 7,000,000,000 || trainable%: 4.0\n"
    return _marks(_report(config_yaml=config, log_txt=count, error_txt=oom("500.00 MiB", allocated=22.6, capacity=23.65)))


def test_tables_among_what_is_trained_are_told_by_their_count() -> None:
    per_rank, table = 19_988_480 // 8, 32_000 * 4_096  # LoRA beside every matrix of Llama 2 7B at rank 8: 19,988,480
    assert "saved-module-copy-count" in _adapters(8 * per_rank + 2 * table, 8)
    assert "saved-module-copy-count" in _adapters(8 * per_rank + table, 8)
    assert "saved-module-copy-count" not in _adapters(128 * per_rank, 128)
    assert "saved-module-copy-count" not in _adapters(8 * per_rank, 8)


MAP = 'model = AutoModelForCausalLM.from_pretrained("facebook/opt-30b", torch_dtype=torch.float16, device_map="auto")\n'
TWO = "after load cuda:0 {} GiB, cuda:1 19.4 GiB\n"
FAILED = trace("transformers/models/opt/modeling_opt.py|forward|hidden_states = self.fc1(hidden_states)") + oom("224.00 MiB", allocated=38.4, capacity=39.59)


def test_layers_of_a_device_map_are_no_copies() -> None:
    full = _report(tune_py=MAP, log_txt=TWO.format("36.4"), error_txt=FAILED)
    assert full.findings[0].cause == "weights"
    assert "leave-headroom" in full.findings[0].remedies
    assert "weights-filled" not in _marks(_report(tune_py=MAP, log_txt=TWO.format("21.4"), error_txt=FAILED))
    launched = _report(run_sh="torchrun --nproc_per_node 2 tune.py\n", tune_py=MAP, log_txt=TWO.format("36.4"), error_txt=FAILED)
    assert "weights-filled" not in _marks(launched)


def test_two_orders_of_an_eight_bit_weight() -> None:
    frames = trace("bitsandbytes/autograd/_functions.py|forward|state.CxB, state.SB = F.transform(state.CB, to_order=formatB)")
    assert "duplicate-layout-orders" in _marks(_report(error_txt=frames + oom("100.00 MiB", allocated=22.7, capacity=23.69)))
    layers = "after from_pretrained allocated 12.0 GiB\n" + "".join(
        f"layer {n} of 40 allocated {12 + n * each:.2f} GiB\n" for each in (0.3,) for n in (10, 20, 30)
    )
    assert "duplicate-layout-layers" in _marks(_report(log_txt=layers, error_txt=oom("100.00 MiB", allocated=22.7, capacity=23.69)))
    light = "after from_pretrained allocated 12.0 GiB\n" + "".join(f"layer {n} of 40 allocated {12 + n * 0.1:.2f} GiB\n" for n in (10, 20, 30))
    assert "duplicate-layout-layers" not in _marks(_report(log_txt=light, error_txt=oom("100.00 MiB", allocated=22.7, capacity=23.69)))


def test_a_layer_s_scores_that_take_a_part_of_the_card() -> None:
    line = "transformers/models/qwen3/modeling_qwen3.py|eager_attention_forward|attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling"
    during = "transformers/trainer.py|evaluation_loop|losses, logits, labels = self.prediction_step(model, inputs, prediction_loss_only)"
    large = _report(log_txt="***** Running Evaluation *****\n", error_txt=trace(during, line) + oom("18.00 GiB", allocated=64.2, free=13.6))
    assert large.findings[0].cause == "attention-fallback"
    small = _report(error_txt=trace(during, line) + oom("128.00 MiB", allocated=77.2))
    assert "attention-fallback-large" not in _marks(small)


def test_a_tag_s_arguments_are_no_model() -> None:
    assert _report(config_yaml="base_model: !!python/object/apply:os.system ['echo']\n").verdict == "unreadable"
