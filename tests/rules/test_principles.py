"""What numbers and code imply, whatever words stand around them: each principle with a text that shows it and one that must not."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.report import Report
from advisor.rules.samples import oom, trace

OLD = "RuntimeError: CUDA out of memory. Tried to allocate {} (GPU 0; {} GiB total capacity; {} GiB already allocated; {} MiB free; {} MiB cached)\n"


def _of(*texts: str, script: str = "") -> Report:
    return diagnose([(f"part{n}.txt", text) for n, text in enumerate(texts)] + ([("train.py", script)] if script else []))


def _share(report: Report, *causes: str) -> float:
    return sum(f.confidence for f in report.findings if f.cause in causes)


LEAKS = ("retained-graph", "retained-objects")


@pytest.mark.parametrize(
    "rows",
    [
        "".join(f"layer 0 iter {n} max memory_allocated {9000.5 + 1500 * n}\n" for n in range(5)),  # no unit: MiB by size
        "".join(f"batch {n}, it {n}, memory_allocated: {1_900_000_000 + 200_000_000 * n}\n" for n in range(5)),  # bytes
        "".join(f"Epoch 0, it {1000 * n}  gpu mem {6 + 2.5 * n:.1f} GB\n" for n in range(5)),  # what the card shows
        "step  mem\n" + "".join(f"{n}  {1834 + 300 * n}\n" for n in range(6)),  # columns of bare numbers
    ],
)
def test_even_growth_is_something_that_is_kept(rows: str) -> None:
    assert _share(_of(rows + oom("128.00 MiB", allocated=77.0)), *LEAKS) > 0.4
    flat = "".join(line.rsplit(" ", 1)[0] + " 7.6 GB\n" for line in rows.splitlines()[1:])
    assert _share(_of(flat + oom("128.00 MiB", allocated=77.0)), *LEAKS) < 0.15


def test_a_peak_that_follows_the_length_is_no_leak() -> None:
    rows = "".join(f"step {n}  len {512 * (n + 1)}  allocated_peak {20 + 6 * n}.0 GiB\n" for n in range(6))
    assert _share(_of(rows + oom("128.00 MiB", allocated=77.0)), *LEAKS) < 0.3


def test_figures_without_a_unit_are_of_the_unit_that_their_size_allows() -> None:
    from advisor.reading import read

    for text, bytes_ in (("memory_allocated 17002.5", 17002.5 * 2**20), ("memory_allocated 3.41", 3.41 * 2**30), ("memory_allocated 1923082240", 1923082240)):
        (sample,) = read([("log", f"iter 3 {text}\n")]).evidence.samples
        assert sample.allocated_bytes == round(bytes_)
    (sample,) = read([("log", "Peak reserved memory = 28.701 GB.\nPeak reserved memory % of max memory = 72.668 %.\n")]).evidence.samples
    assert sample.peak_reserved_bytes == round(28.701 * 2**30)


def test_counted_quantised_modules_that_are_none() -> None:
    config = "load_in_4bit: true\nbase_model: Qwen/Qwen2.5-14B\nadapter: qlora\n"
    asked = ">>> len([m for m in model.modules() if isinstance(m, bnb.nn.Linear4bit)])\n{}\n"
    assert _of(config, asked.format(0)).findings[0].cause == "quantization-not-applied"
    assert _share(_of(config, asked.format(280)), "quantization-not-applied") < 0.2


def test_a_dtype_that_is_shown() -> None:
    script = "model = AutoModel.from_pretrained(path)\nprint(next(model.parameters()).dtype)\n"
    full = oom("48.00 MiB", allocated=22.9, free=0.03, capacity=23.5)
    assert _of("torch.float32\n", full, script=script).findings[0].cause == "default-fp32-load"
    assert _share(_of("torch.bfloat16\n", full, script=script), "default-fp32-load") < 0.3


def test_a_model_that_is_widened_as_a_whole() -> None:
    frames = trace(
        "llamafactory/model/adapter.py|init_adapter|model = model.float()",
        "torch/nn/modules/module.py|float|return self._apply(lambda t: t.float() if t.is_floating_point() else t)",
    )
    assert _of(frames + oom("268.00 MiB", allocated=46.8, free=0.1, capacity=47.5)).findings[0].cause == "framework-upcast"


def test_keys_joined_to_earlier_keys_in_a_training_step() -> None:
    frames = trace(
        "transformers/trainer.py|training_step|loss = self.compute_loss(model, inputs)",
        "transformers/models/llama/modeling_llama.py|forward|key_states = torch.cat([past_key_value[0], key_states], dim=2)",
    )
    assert _of(frames + oom("256.00 MiB", allocated=77.9)).findings[0].cause == "decode-cache-in-training"


def test_what_a_context_does_not_take_is_someone_elses() -> None:
    held = OLD.format("40.00 MiB", "5.80", "3.63", "16.81", "80.22")
    alone = OLD.format("40.00 MiB", "5.80", "4.63", "16.81", "80.22")
    assert _of(held).findings[0].cause == "other-process"
    assert _share(_of(alone), "other-process") < 0.3


@pytest.mark.parametrize("function", ["test", "validate", "evaluate", "val_epoch", "run_validation", "eval_model"])
def test_a_scripts_own_evaluation_loop(function: str) -> None:
    inside = trace(f"main.py|{function}|out = model(x)", "torch/nn/modules/module.py|_call_impl|return forward_call(*input)", "net.py|forward|x = self.conv(x)")
    scoring = trace(f"main.py|{function}|stats = score(results)", "common.py|score_all|scores[~mask] += bias")
    report = _of(inside + oom("392.00 MiB", allocated=76.0))
    assert report.phase == "eval" and report.findings[0].cause == "eval-batch"
    report = _of(scoring + oom("40.00 GiB", allocated=38.0, free=30.0))
    assert report.phase == "eval" and report.findings[0].cause == "eval-accumulation"


def test_a_test_of_a_test_suite_is_no_evaluation() -> None:
    frames = trace("tests/test_model.py|test|train_one(model)", "torch/autograd/__init__.py|backward|Variable._execution_engine.run_backward(")
    assert _of(frames + oom("392.00 MiB", allocated=76.0)).phase == "backward"


def test_tokens_by_rank() -> None:
    rows = "rank 0  layer 3  tokens routed to the local experts  {:,}\nrank 1  layer 3  tokens routed to the local experts  14,016\n" + (
        "rank 2  layer 3  tokens routed to the local experts  12,640\n"
    )
    assert _of(rows.format(702_976) + oom("8.05 GiB", allocated=71.0)).findings[0].cause == "expert-imbalance"
    assert _share(_of(rows.format(15_976) + oom("8.05 GiB", allocated=71.0)), "expert-imbalance") < 0.2


@pytest.mark.parametrize(
    "text", ["{'loss': nan, 'grad_norm': nan}\n", "RuntimeWarning: Non-finite gradient norm at step 3\n", "Loss is nan, stopping training\n"]
)
def test_values_that_are_not_finite_are_no_memory(text: str) -> None:
    assert diagnose([("log.txt", text)]).verdict == "not-memory"
    assert _of(text + oom("512.00 MiB", allocated=76.5)).verdict == "ooms"


def test_more_allocated_than_the_card_is_kept_and_the_step_is_named() -> None:
    text = (
        '  File "D:\\ai\\sft.py", line 1109, in main\n    optimizer.step()\n'
        '  File "D:\\ai\\py312\\Lib\\site-packages\\torch\\optim\\adam.py", line 181, in _init_group\n    state["exp_avg_sq"] = torch.zeros_like(\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 MiB. GPU 0 has a total capacity of 15.93 GiB of which 0 bytes is free. "
        "Of the allocated memory 29.97 GiB is allocated by PyTorch\n"
    )
    report = _of(text)
    assert report.verdict == "ooms" and report.phase == "step" and report.findings[0].cause == "optimizer-state"


def test_a_quarter_of_the_card_in_one_piece_is_less_of_fragmentation() -> None:
    small, large = (_of(oom(size, allocated=40.0, unallocated=30.0, free=2.0)) for size in ("12.00 GiB", "31.00 GiB"))
    assert _share(large, "fragmentation") < _share(small, "fragmentation")


def test_logits_that_were_asked_for_speak_against_scores_and_against_a_default_that_makes_none() -> None:
    script = (
        'model, tok = FastLanguageModel.from_pretrained(model_name="unsloth/llama-3-8b-bnb-4bit", max_seq_length=8192, load_in_4bit=True)\n'
        'model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing="unsloth")\n'
        "trainer = SFTTrainer(model=model, args=TrainingArguments(per_device_train_batch_size=1, fp16=True))\n# T4\n"
    )
    report = _of(oom("3.91 GiB", allocated=10.4, capacity=14.75, free=3.6), script=script)  # 8192 x 128256 x 4
    assert report.findings[0].cause == "logits"


def test_a_detectors_evaluator_is_an_evaluation() -> None:
    frames = trace(
        "detectron2/evaluation/evaluator.py|inference_on_dataset|outputs = model(inputs)", "detectron2/modeling/postprocessing.py|paste|masks = big(x)"
    )
    assert _of(frames + oom("2.15 GiB", allocated=70.0)).phase == "eval"


def test_a_model_of_images_alone_has_no_tokens_too_many() -> None:
    frames = trace(
        "timm/models/vision_transformer.py|forward|x = self.fc1(x)", "torch/nn/modules/linear.py|forward|return F.linear(input, self.weight, self.bias)"
    )
    assert _share(_of(frames + oom("394.00 MiB", allocated=77.0)), "vision-tokens") < 0.1


def test_while_weights_are_loaded_there_is_no_optimizer_state() -> None:
    frames = trace("transformers/modeling_utils.py|from_pretrained|model = cls._load_pretrained_model(")
    script = "model = AutoModelForCausalLM.from_pretrained('meta-llama/Llama-2-13b-hf', torch_dtype=torch.bfloat16)\n"
    report = _of(frames + oom("158.00 MiB", allocated=22.9, free=0.05, capacity=23.6), script=script)
    assert report.phase == "load" and _share(report, "optimizer-state") < 0.05


def test_what_a_process_holds_beside_pytorch_is_its_engines() -> None:
    script = (
        'trainer = GRPOTrainer(model="Qwen/Qwen2.5-7B", args=GRPOConfig(use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.7, '
        "per_device_train_batch_size=4, bf16=True))\n"
    )
    beside = _of(oom("130.00 MiB", allocated=14.0, own=78.9), script=script)
    none = _of(oom("130.00 MiB", allocated=77.0, own=78.9), script=script)
    assert _share(beside, "rollout-resident", "rollout-budget") > _share(none, "rollout-resident", "rollout-budget") + 0.2


def test_a_kernels_assertion_explains_what_fails_after_it() -> None:
    text = (
        "../aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward: block: [0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
    )
    assert _of(text).verdict == "not-memory"


def test_what_a_second_try_shows_moves_the_causes() -> None:
    from msgspec.structs import replace

    from advisor.diagnosis import diagnose_reading
    from advisor.reading import read

    script = (
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-1.5B', torch_dtype=torch.bfloat16)\n"
        "args = TrainingArguments('o', bf16=True, per_device_train_batch_size=16, max_length=4096)\n# A100 80GB\n"
    )
    reading = read([("train.py", script), ("error.txt", oom("512.00 MiB", allocated=77.0))])
    report = diagnose_reading(reading)
    offered = {s.mark for s in report.follow_ups}
    assert {"seen-batch-1-fails", "seen-batch-1-runs"} <= offered and any(m.endswith("-remedied-fails") for m in offered)
    batch = {"activations", "checkpointing-off", "logits", "attention-fallback", "loss-fallback"}

    def share(mark: str) -> float:
        said = replace(reading, evidence=replace(reading.evidence, marks=(mark,)))
        return sum(f.confidence for f in diagnose_reading(said).findings if f.cause in batch)

    assert share("seen-batch-1-fails") < share("seen-batch-1-runs")
    top = report.findings[0].cause
    said = diagnose_reading(replace(reading, evidence=replace(reading.evidence, marks=(f"{top}-remedied-fails",))))
    assert {f.cause: f.confidence for f in said.findings}.get(top, 0.0) < report.findings[0].confidence


def test_the_moment_that_is_answered_settles_the_phase() -> None:
    from msgspec.structs import replace

    from advisor.diagnosis import diagnose_reading
    from advisor.reading import read

    reading = read([("error.txt", OLD.format("40.00 MiB", "5.80", "5.03", "16.81", "80.22"))])
    asked = diagnose_reading(reading).next_question
    assert asked is not None and {a.mark for a in asked.answers} >= {"seen-eval", "seen-save", "seen-first-step", "seen-later"}
    report = diagnose_reading(replace(reading, evidence=replace(reading.evidence, marks=("seen-save",))))
    assert report.phase == "save" and report.findings[0].cause == "save-gather"
