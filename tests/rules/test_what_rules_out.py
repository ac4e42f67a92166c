"""What rules a cause out: a line of a block makes no logits, a tenant that is meant, an engine's gathering, both layouts of an fp8 weight."""

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.rules.situation import builds_second, in_block

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.10 GiB of which {free} is free. {others}"
    "Including non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated memory {held} GiB is allocated by PyTorch, and "
    "400.00 MiB is reserved by PyTorch but unallocated.\n"
)


def oom(asked: str, *, free: str = "100.00 MiB", held: float = 77.5, others: str = "", own: float = 79.0) -> str:
    return OOM.format(asked=asked, free=free, held=held, others=others, own=own)


def frames(*rows: tuple[str, str, str]) -> str:
    return "Traceback (most recent call last):\n" + "".join(
        f'  File "/usr/lib/python3/dist-packages/{file}", line 10, in {name}\n    {code}\n' for file, name, code in rows
    )


def test_a_line_of_a_block_asks_for_no_logits() -> None:
    block = frames(("transformers/models/qwen3/modeling_qwen3.py", "forward", "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"))
    head = frames(("transformers/models/qwen3/modeling_qwen3.py", "forward", "logits = self.lm_head(hidden_states[:, slice_indices, :])"))
    assert in_block(read([("error.txt", block + oom("242.00 MiB"))]).evidence)
    assert not in_block(read([("error.txt", head + oom("242.00 MiB"))]).evidence)


def test_a_tenant_that_is_meant_to_be_there_is_not_the_cause() -> None:
    others = "Process 40117 has 20.34 GiB memory in use. "
    code = "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)"
    trace = frames(("transformers/models/qwen3/modeling_qwen3.py", "eager_attention_forward", code))
    error = trace + oom("4.00 GiB", free="3.56 GiB", held=53.7, others=others, own=55.2)
    said = "vLLM serves hidden states from the same card (about 20 GiB), that part is meant to be so.\n"
    assert diagnose([("error.txt", error)]).findings[0].cause == "other-process"
    assert diagnose([("said.txt", said), ("error.txt", error)]).findings[0].cause == "attention-fallback"
    other = "The reward model is fine. A vLLM server is known to be slow. Another model is expected to follow. It is all by design.\n"
    assert diagnose([("said.txt", other), ("error.txt", error)]).findings[0].cause == "other-process"


def test_a_reference_that_is_being_loaded_is_the_second_model() -> None:
    trace = frames(
        ("trl/trainer/dpo_trainer.py", "__init__", "self.ref_model = create_model_from_path(model_id, **kwargs)"),
        ("transformers/modeling_utils.py", "from_pretrained", "model = cls._load_pretrained_model("),
    )
    report = diagnose([("error.txt", trace + oom("224.00 MiB")), ("args.py", "DPOConfig(per_device_train_batch_size=1, beta=0.1)\n")])
    assert builds_second(report.evidence)
    assert report.findings[0].cause == "reference-copy"


def test_generation_that_gathers_the_whole_divided_model() -> None:
    trace = frames(
        ("trl/models/utils.py", "unwrap_model_for_generation", "with deepspeed.zero.GatheredParameters(model.parameters()):"),
        ("deepspeed/runtime/zero/partition_parameters.py", "__enter__", "self.params[0].all_gather(param_list=self.params)"),
    )
    config = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nnum_processes: 8\n"
    report = diagnose([("error.txt", trace + oom("448.00 MiB")), ("accelerate.yaml", config)])
    assert report.findings[0].cause == "weight-sync-overlap"
    assert any("ds3_gather_for_generation" in line for step in report.plan.steps for lines in step.settings.values() for line in lines)


def test_fp8_weights_by_rows_and_by_columns() -> None:
    text = (
        "with fp8_model_init(recipe=Float8BlockScaling()): model = build()\n>>> w._rowwise_data.shape\n>>> w._columnwise_data.shape, w._columnwise_data.dtype\n"
    )
    assert diagnose([("log.txt", text)]).findings[0].cause == "fp8-not-smaller"


@pytest.mark.parametrize(
    "said", ["CUDA out of memory on the 4090 last month; this is the H100 run", "It went out of memory a year ago on another machine of ours"]
)
def test_what_failed_long_ago_is_no_failure_of_now(said: str) -> None:
    assert read([("said.txt", said)]).evidence.failure is None


def test_it_worked_last_week_and_fails_now() -> None:
    assert read([("said.txt", "It worked last week, but now training runs out of GPU memory at once.")]).evidence.failure is not None


def test_the_other_ranks_contexts_in_the_errors_own_list() -> None:
    others = "".join(f"Process {pid} has 1.19 GiB memory in use. " for pid in range(101550, 101565))
    error = oom("52.00 MiB", free="39.62 MiB", held=58.0, others=others, own=60.5)
    assert diagnose([("error.txt", error)]).findings[0].cause == "ranks-on-one-gpu"


def test_another_library_in_this_process() -> None:
    report = diagnose([("log.txt", "import jax\n"), ("error.txt", oom("128.00 MiB", free="27.00 MiB", held=1.02, own=79.0))])
    assert report.findings[0].cause == "other-process"
    assert any("XLA_PYTHON_CLIENT_PREALLOCATE" in line for step in report.plan.steps for lines in step.settings.values() for line in lines)


def test_an_evaluation_that_builds_a_graph_is_cured_where_it_runs() -> None:
    code = (
        "def validate(val_loader, model, criterion):\n    model.eval()\n    for input, target in val_loader:\n"
        "        output = model(input.cuda())\n        loss = criterion(output, target)\n"
    )
    trace = '  File "/workspace/job/train.py", line 5, in validate\n    output = model(input.cuda())\n'
    report = diagnose([("train.py", code), ("error.txt", trace + oom("42.00 MiB"))])
    assert report.findings[0].cause == "retained-graph"
    assert any("no_grad" in line for step in report.plan.steps for lines in step.settings.values() for line in lines)
    quiet = diagnose([("train.py", "@torch.no_grad()\n" + code), ("error.txt", trace + oom("42.00 MiB"))])
    assert quiet.findings[0].cause != "retained-graph"


def test_seven_processes_as_large_as_this_one_are_its_own_ranks() -> None:
    others = "".join(f"Process {4402 + n} has {9.69 + n / 100:.2f} GiB memory in use. " for n in range(7))
    report = diagnose([("error.txt", "[rank0]: " + oom("1.96 GiB", free="1.20 GiB", held=9.1, others=others, own=9.8))])
    assert report.findings[0].cause == "ranks-on-one-gpu"


def test_one_process_where_sharding_was_asked_for() -> None:
    text = "UserWarning: FSDP is switching to use `NO_SHARD` instead of ShardingStrategy.FULL_SHARD since the world size is 1.\n"
    smi = "index, memory.used [MiB], memory.total [MiB]\n0, 80904 MiB, 81559 MiB\n1, 3 MiB, 81559 MiB\n"
    files = [("log.txt", text), ("error.txt", oom("770.00 MiB")), ("config.yaml", "fsdp_config: {sharding_strategy: FULL_SHARD}\n")]
    report = diagnose([*files, ("smi.txt", smi)])
    assert report.findings[0].cause == "replicated-state"
    assert report.plan.steps[0].technique == "correct-launch"
    alone = diagnose(files)  # a machine with one card prints the same
    assert not alone.findings or alone.findings[0].cause != "replicated-state"


def test_shapes_of_a_report_are_those_of_the_steps() -> None:
    shapes = "batch 2750, features shape: torch.Size([41, 1463, 80])\nbatch 2800, features shape: torch.Size([55, 1090, 80])\n"
    last = "Saving batch\nfeatures shape: torch.Size([70, 4812, 80])\n"
    trace = '  File "/workspace/job/zipformer.py", line 9, in multi_head_attention_forward\n    attn_output_weights = torch.matmul(q, k) + pos_weights\n'
    error = trace + oom("6.02 GiB", free="4.55 GiB", held=62.0, own=74.0)
    assert diagnose([("log.txt", shapes + last), ("error.txt", error)]).findings[0].cause == "batch-outlier"
    assert diagnose([("log.txt", shapes), ("error.txt", error)]).findings[0].cause != "batch-outlier"


def test_a_bias_that_is_repeated_for_each_sample() -> None:
    code = "alibi = self.alibi.repeat(batch_size, 1, 1)\n"
    trace = '  File "/workspace/job/transformer.py", line 9, in buffered_future_mask\n    self._future_mask = self._future_mask.unsqueeze(0) + alibi\n'
    assert diagnose([("model.py", code), ("error.txt", trace + oom("4.00 GiB"))]).findings[0].cause == "duplicate-layout"


def test_with_sgd_it_trains() -> None:
    text = "SGD,  batch 8: max 3.12 GiB, trains\nAdam, batch 8: second batch, see error\n"
    assert diagnose([("log.txt", text), ("error.txt", "RuntimeError: CUDA error: out of memory\n")]).findings[0].cause == "optimizer-state"


def test_an_offload_that_frees_nothing() -> None:
    text = "mem[pre-offload]   alloc=68.3 GiB\nmem[post-offload]  alloc=68.3 GiB\n"
    assert diagnose([("log.txt", text), ("error.txt", oom("128.00 MiB"))]).findings[0].cause == "retained-objects"
    freed = text.replace("[post-offload]  alloc=68.3", "[post-offload]  alloc=0.4")
    assert all(f.cause != "retained-objects" for f in diagnose([("log.txt", freed), ("error.txt", oom("128.00 MiB"))]).findings)
