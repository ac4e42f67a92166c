"""What reporters say of a failure in words: that it happened, and when; what they fear, ask or solved is no failure."""

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.reading.told import moment, states

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB."


@pytest.mark.parametrize("sentence", [
    "At `batch_size=1` it was OOM on `optimizer.step()` every time.", "Getting CUDA OOM error when the training run starts on my card.",
    "The readme says that a batch of 64 can run on 10G, but I'm getting OOM errors on a 20G card.", "Why am I hitting CUDA OOM errors with this batch size?",
    "试过了 stage2 还是报显存不够，四张卡都一样。",
    "The job ran out of GPU memory after two hours of training.", "It is giving CUDA Out Of Memory error for evaluation with batch size 4.",
])  # fmt: skip
def test_a_statement(sentence: str) -> None:
    assert states(sentence)


@pytest.mark.parametrize("sentence", [
    "Will this configuration run out of memory on one A100?", "I set expandable segments to avoid OOM in long training runs.",
    "No out of memory error is shown in the whole log of the run.", "If it goes OOM I will reduce the batch size again.",
    "请问 7B 模型在单卡上会不会爆显存吗", "如何避免训练时显存不足的问题",
    "How can I train this model without running out of memory?", "Lowering the batch size solved the OOM for me on this card.",
    "The loss is fine and the memory usage is stable for all epochs.", "It doesn't OOM with a batch size of one on this card.",
])  # fmt: skip
def test_what_states_no_failure(sentence: str) -> None:
    assert not states(sentence)


@pytest.mark.parametrize(("sentence", "phase"), [
    ("it was OOM on `optimizer.step()`", "step"), ("it fails when loading the checkpoint", "load"), ("for evaluation it is OOM", "eval"),
    ("OOM in the backward pass", "backward"), ("OOM during weight sync", "sync"), ("OOM while saving", "save"), ("OOM in merge_and_unload", "merge"),
    ("OOM during generation", "rollout"), ("OOM", None), ("OOM in backward and in the optimizer step", None),
])  # fmt: skip
def test_the_moment(sentence: str, phase: str | None) -> None:
    assert moment(sentence) == phase


def test_only_where_no_failure_was_pasted() -> None:
    said = "At batch_size 1 it was OOM on optimizer.step() with the same script."
    told = read([("question.txt", said)]).evidence.failure
    assert told is not None and (told.kind, told.phase, told.requested_bytes) == ("gpu-memory", "step", None)
    pasted = read([("question.txt", said), ("error.txt", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")]).evidence
    assert len(pasted.failures) == 1 and pasted.failure is not None and pasted.failure.requested_bytes == 2 << 30
    assert pasted.failure.phase == "step"  # what is said beside it fills the moment that it does not show
    assert read([("q.txt", "Will a 7B model run out of memory on this card with these settings?")]).evidence.failure is None


def test_the_place_that_they_show() -> None:
    text = "However, I got an OOM error; this is where it occurs:\n\nhttps://github.com/o/DeepSpeed/blob/master/deepspeed/runtime/engine.py#L1056\n\n"
    failure = read([("q.txt", text + "            self.module.to(self.device)\n\nIs there any way to solve this?\n")]).evidence.failure
    assert failure is not None and failure.phase == "load"
    assert (failure.frames[0].file, failure.frames[0].line) == ("deepspeed/runtime/engine.py", 1056)


def test_a_deepspeed_config_as_a_dict() -> None:
    code = 'c = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}\nengine = deepspeed.initialize(model=model, config=c)\n'
    job = read([("train.py", code)]).job
    assert job.get("parallel.strategy") == "zero3" and job.get("offload.parameters") == "cpu"


@pytest.mark.parametrize(("text", "cause"), [
    ("After each validation batch the GPU memory consumption increases until nothing is left.", "eval-accumulation"),
    ("The memory usage keeps growing with every training step until it crashes.", "retained-graph"),
    ("Peak memory is the same with and without activation checkpointing.", "checkpointing-broken"),
    ("GPU 0 always occupies a lot of memory for each script even if they are assigned other GPUs.", "ranks-on-one-gpu"),
])  # fmt: skip
def test_what_they_observed_is_evidence(text: str, cause: str) -> None:
    report = diagnose([("q.txt", f"RuntimeError: CUDA out of memory.\n{text}\n")])
    assert report.findings and report.findings[0].cause == cause
    asked = diagnose([("q.txt", f"RuntimeError: CUDA out of memory.\n{text.rstrip('.')}?\n")])
    assert cause not in {f.cause for f in asked.findings if f.confidence > 0.3}


def test_settings_side_by_side_on_a_line() -> None:
    job = read([("log.txt", "run 7: micro_batch_size: 2, gradient_checkpointing: true, lora_r: 16\n{'loss': 1.2}\n")]).job
    assert (job.get("batch.micro_batch"), job.get("activations.checkpointing"), job.get("method.rank")) == (2, "full", 16)
    assert read([("log.txt", "step_time: 2.5 and nothing else\n")]).job.get("batch.micro_batch") is None


def test_a_run_that_goes_on_beside_a_list_of_cards_fits() -> None:
    smi = (
        "| NVIDIA-SMI 565.57.01              Driver Version: 565.57.01      CUDA Version: 12.7     |\n"
        "|   0  NVIDIA H200                    On  |   00000000:BA:00.0 Off |                    0 |\n"
        "| N/A   65C    P0            692W /  700W |  118906MiB / 143771MiB |     95%      Default |\n"
    )
    losses = "".join(f"{{'loss': 1.2{n}, 'grad_norm': 0.7, 'epoch': 0.1{n}}}\n" for n in range(4))
    assert diagnose([("log.txt", losses), ("smi.txt", smi)]).verdict == "fits"
    assert diagnose([("log.txt", losses)]).verdict != "fits"


@pytest.mark.parametrize(("text", "phase"), [
    ("加载过程中就报错了，直接oom了，还没有到训练阶段", "load"), ("合并模型时出现OOM错误，应该怎么办", "merge"),
    ("保存模型时显存不足，训练本身没有问题", "save"),
])  # fmt: skip
def test_moments_in_chinese(text: str, phase: str) -> None:
    failure = read([("q.txt", text)]).evidence.failure
    assert failure is not None and failure.phase == phase


def test_what_fitted_before_does_not_lack_capacity() -> None:
    text = "meta-llama/Llama-2-70b-hf full fine-tuning, batch size 1, on 1x A100 80GB\n" + OOM + "\n"
    names = {f.cause: f.confidence for f in diagnose([("q.txt", text)]).findings}
    told = {f.cause: f.confidence for f in diagnose([("q.txt", text + "The same script used to work perfectly well with the older version.\n")]).findings}
    assert names.get("capacity", 0.0) > told.get("capacity", 0.0)


def test_frames_as_people_cut_them() -> None:
    text = f'{OOM}\n  ...\n  File "slime/utils/ppo_utils.py", line 219, in vocab_parallel_softmax\n    normalized_logits = logits - logits_max\n'
    failure = read([("error.txt", text)]).evidence.failure
    assert failure is not None and failure.frames[-1].function == "vocab_parallel_softmax"
    short = '  File "nemo_rl/distributed/model_utils.py", in from_parallel_logits_to_logprobs\n' + OOM
    failure = read([("error.txt", short)]).evidence.failure
    assert failure is not None and failure.frames[-1].function == "from_parallel_logits_to_logprobs"
    bare = f"[rank1]:     attn_output = F.scaled_dot_product_attention(q, k, v, mask)\n[rank1]: {OOM}\n"
    failure = read([("error.txt", bare)]).evidence.failure
    assert failure is not None and "scaled_dot_product_attention" in failure.frames[-1].code
    prose = "My model has about (7B) parameters\n" + OOM
    failure = read([("error.txt", prose)]).evidence.failure
    assert failure is not None and not failure.frames


def test_the_launcher_sets_the_world_anew() -> None:
    job = read([("cmd.sh", "WORLD_SIZE=1 CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node=4 train.py --lr 1e-4")]).job
    assert job.hardware is not None and job.hardware.gpus_per_node == 4


def test_a_traceback_pasted_apart_belongs_to_the_error() -> None:
    frame = 'peft/utils/other.py", line 149, in prepare_model_for_kbit_training'
    trace = f'  File "/usr/lib/python3/dist-packages/{frame}\n    param.data = param.data.to(torch.float32)\n'
    failure = read([("output.txt", OOM), ("trace.txt", trace)]).evidence.failure
    assert failure is not None and failure.frames[-1].function == "prepare_model_for_kbit_training" and failure.phase == "load"
    both = read([("output.txt", OOM), ("trace.txt", trace), ("other.txt", trace.replace("149", "150"))]).evidence.failure
    assert both is not None and not both.frames  # of two nobody knows which


def test_an_error_that_a_sample_quotes_is_none_of_the_run() -> None:
    quoted = 'sample 0: Why do I see "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB (GPU 0; 79.15 GiB total capacity)"?\n'
    own = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\nRuntimeError: INTERNAL ASSERT FAILED\n'
    assert {f.kind for f in read([("log.txt", quoted + own)]).evidence.failures} == {"not-memory"}
    assert {f.kind for f in read([("log.txt", 'Task failed with error "CUDA out of memory. Tried to allocate 2.00 GiB"\n')]).evidence.failures} == {
        "gpu-memory"
    }


def test_the_engines_actual_share() -> None:
    text = "Unsloth: vLLM loading Qwen/Qwen2.5-3B-Instruct with actual GPU Utilization = 88.47%\n" + OOM.replace("9.27", "1.13") + "\n"
    assert diagnose([("log.txt", text)]).findings[0].cause == "rollout-budget"
    small = diagnose([("log.txt", text.replace("88.47", "48.47"))])
    assert all(f.cause != "rollout-budget" for f in small.findings)


def test_a_card_named_without_its_memory_is_the_one_that_the_error_shows() -> None:
    error = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 250.00 MiB (GPU 6; 31.75 GiB total capacity; 21.75 MiB free)"
    assert read([("error.txt", error), ("q.txt", "I train on 8 x V100 with DeepSpeed.")]).job.get("hardware.gpu") == "v100-32gb"
    assert read([("error.txt", error), ("q.txt", "I train on 8 x V100 16GB with DeepSpeed.")]).job.get("hardware.gpu") == "v100-16gb"


def test_everything_in_one_paste_has_its_remarks_too() -> None:
    """A reporter's sentence beside a snippet and an error: cards and counts that are stated win over what a total suggests."""
    snippet = "DPO with trl 0.11.4, 1x H100 80GB, OOM in step 1\n\nargs = DPOConfig(per_device_train_batch_size=4, gradient_checkpointing=True, bf16=True)\n\n"
    job = read(
        [("pasted text", snippet + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity of 79.10 GiB")]
    ).job
    assert job.get("hardware.gpu") == "h100-80gb" and job.get("batch.micro_batch") == 4
    assert read([("train.py", '"""Trains on 8x A100 40GB."""\nargs = TrainingArguments(bf16=True)\n')]).job.get("hardware.gpu") is None


def test_a_label_before_a_command() -> None:
    job = read(
        [("q.txt", "Launch: deepspeed --num_gpus 8 run_clm.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2\n" + OOM)]
    ).job
    assert (job.get("model.name"), job.get("batch.micro_batch"), job.get("hardware.gpus_per_node")) == ("meta-llama/Llama-2-7b-hf", 2, 8)


def test_starting_a_trainer_is_not_resuming() -> None:
    trace = 'Traceback (most recent call last):\n  File "run_clm.py", line 641, in main\n    train_result = trainer.train(resume_from_checkpoint=checkpoint)\n'
    inner = '  File "/x/site-packages/deepspeed/runtime/zero/stage3.py", line 770, in _create_fp32_partitions\n    x.clone().float()\n'
    failure = read([("error.txt", trace + inner + OOM)]).evidence.failure
    assert failure is not None and failure.phase == "load"
    loads = '  File "/x/site-packages/transformers/trainer.py", line 2, in _load_from_checkpoint\n    load_state_dict(x)\n'
    failure = read([("error.txt", trace + loads + OOM)]).evidence.failure
    assert failure is not None and failure.phase == "resume"


def test_an_error_is_read_where_the_config_is_refused() -> None:
    losses = "".join(f"{{'loss': 1.2, 'grad_norm': 0.5, 'learning_rate': 1e-5, 'epoch': {n / 1000}}}\n" for n in range(2300))
    report = diagnose([("log.txt", losses + "args = TrainingArguments(per_device_train_batch_size=4)\n" + OOM)])
    assert report.verdict == "ooms"


def test_peft_turns_checkpointing_on() -> None:
    code = "model = prepare_model_for_kbit_training(model)\nmodel = get_peft_model(model, LoraConfig(r=8))\n"
    assert read([("t.py", code)]).job.get("activations.checkpointing") == "full"
    off = code.replace("(model)\nmodel = get", "(model, use_gradient_checkpointing=False)\nmodel = get")
    assert read([("t.py", off)]).job.get("activations.checkpointing") == "none"


def test_utf16_is_read_as_utf8() -> None:
    text = "args = TrainingArguments(per_device_train_batch_size=4, gradient_checkpointing=True)\n" + OOM
    wide = read([("error.txt", text.encode("utf-16"))])
    assert wide.job.get("activations.checkpointing") == "full" and wide.evidence.failure is not None


@pytest.mark.parametrize(("text", "stated"), [
    ("Method: QLoRA\nGPU: RTX 4090", {"method.kind": "lora", "method.base": "nf4", "hardware.gpu": "rtx4090-24gb"}),
    ("Llama-3.1-8B on 8xH100 with FSDP, full fine-tuning, gradient checkpointing, will it fit?",
     {"parallel.strategy": "fsdp1", "method.kind": "full", "activations.checkpointing": "full", "hardware.gpus_per_node": 8}),
    ("LoRA rank 64 on a single 4090 without gradient checkpointing",
     {"method.kind": "lora", "activations.checkpointing": "none", "hardware.gpu": "rtx4090-24gb"}),
    ("Should I use QLoRA or LoRA here? I tried ZeRO-2 and ZeRO-3.", {"method.kind": None, "parallel.strategy": None}),
    ("the traceback ends in torch/distributed/fsdp/_fully_shard/x.py", {"parallel.strategy": None}),
])  # fmt: skip
def test_what_a_question_states(text: str, stated: dict[str, object]) -> None:
    job = read([("pasted text", text)]).job
    assert {path: job.get(path) for path in stated} == stated


@pytest.mark.parametrize(("text", "stated"), [
    ("My box has 2 GPUs with 16GB each.", {"hardware.gpus_per_node": 2, "hardware.gpu.memory_gib": 16.0}),
    ("Training on two 48 GB cards, batch size 2", {"hardware.gpu.memory_gib": 48.0, "batch.micro_batch": 2}),
    ("用 40G 的显卡，单卡跑，序列长度设为1024", {"hardware.gpus_per_node": 1, "hardware.gpu.memory_gib": 40.0, "batch.seq_len": 1024}),
    ("用全参数微调，4张卡", {"method.kind": "full", "hardware.gpus_per_node": 4}), ("我用lora训练", {"method.kind": "lora"}),
    ("全量微调大概需要 28GB 显存", {"hardware.gpu": None}), ("it uses 20 GB of GPU memory", {"hardware.gpu": None}),
    ("2 x A100 40G", {"hardware.gpu": "a100-40gb"}), ("4xA100-40", {"hardware.gpu": "a100-40gb", "hardware.gpus_per_node": 4}),
    ("4x A100 (40 GB)", {"hardware.gpu": "a100-40gb"}), ("2x H100-80, bf16", {"hardware.gpu": "h100-80gb"}),
    ("70B on a single A100 80GB", {"hardware.gpus_per_node": 1, "hardware.gpu": "a100-80gb"}),
    ("GRPO with vLLM colocated at gpu_memory_utilization=0.4",
     {"objective": "grpo", "rollout.engine": "vllm", "rollout.placement": "colocated", "rollout.memory_fraction": 0.4}),
])  # fmt: skip
def test_cards_and_settings_in_words(text: str, stated: dict[str, object]) -> None:
    job = read([("q.txt", text)]).job
    shown = {path: job.get(path) if not path.endswith("memory_gib") else getattr(job.get("hardware.gpu"), "memory_gib", None) for path in stated}
    assert shown == stated


@pytest.mark.parametrize("sentence", ["8x V100 32G: got OOM", "训练 70b 时单卡装不下了", "with graphs on it always oom after a while in the loop"])
def test_a_short_statement(sentence: str) -> None:
    failure = read([("q.txt", sentence)]).evidence.failure
    assert failure is not None and failure.kind == "gpu-memory"


@pytest.mark.parametrize(("text", "phase"), [
    ("The whole thing trains, but it crashes in the optimizer step:\n" + OOM, "step"), ("It fails at step 100 of the second epoch:\n" + OOM, None),
    ("All workers die while the weights are being loaded from disk, it fails there\n" + OOM, "load"),
    ("Resuming from the last epoch fails each time:\n" + OOM, "resume"),
])  # fmt: skip
def test_the_moment_beside_an_error(text: str, phase: str | None) -> None:
    failure = read([("q.txt", text)]).evidence.failure
    assert failure is not None and failure.phase == phase


def test_a_notebooks_traceback_without_its_message() -> None:
    head = "OutOfMemoryError                          Traceback (most recent call last)\nCell In[3], line 1\n----> 1 trainer.train()\n\n"
    frame = "File /usr/lib/python3/dist-packages/transformers/trainer.py:2240, in Trainer.train(self)\n   2238 try:\n-> 2240     return inner_training_loop()\n"
    failure = read([("error.txt", head + frame)]).evidence.failure
    assert failure is not None and failure.kind == "gpu-memory" and failure.frames[-1].file == "transformers/trainer.py"
    other = read([("error.txt", head.replace("OutOfMemoryError", "KeyError        ") + frame)]).evidence.failure
    assert other is not None and other.kind == "not-memory"


def test_the_dtype_of_a_tensor_is_not_the_models() -> None:
    code = "total = torch.zeros((), dtype=torch.float32, device='cuda')\nmodel = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    assert read([("t.py", code)]).job.get("load.dtype") is None
    assert read([("t.py", code.replace("'gpt2'", "'gpt2', torch_dtype=torch.float32"))]).job.get("load.dtype") == "fp32"


@pytest.mark.parametrize(("text", "kind"), [
    ("The system RAM fills up while the shards are loaded and the process is killed.", "host-memory"),
    ("机器内存不足，进程直接没了，模型还没加载完", "host-memory"),
    ("RAM usage is fine, but the GPU runs out of memory.", "gpu-memory"), ("内存足够，但是显存不足，训练就停了", "gpu-memory"),
    ("Will the system RAM be full with a model of this size?", None), ("The system RAM never fills up in this run, all is well here.", None),
])  # fmt: skip
def test_the_hosts_memory_or_the_cards(text: str, kind: str | None) -> None:
    failure = read([("q.txt", text)]).evidence.failure
    assert (failure.kind if failure is not None else None) == kind


def test_a_row_of_figures_in_a_sentence_and_a_death_are_a_memory_failure_that_grew() -> None:
    said = "Step 100 memory 30.1GB, step 200 30.9, step 300 31.8, step 400 32.6GB. Then it dies at step 1100 on a 40GB A100."
    report = diagnose([("said.txt", said)])
    assert report.verdict == "ooms"
    assert [sample.step for sample in report.evidence.samples] == [100, 200, 300, 400]


@pytest.mark.parametrize(
    "said",
    [
        "The loss is 2.1 after step 100, 1.9 after step 200, 1.8 after step 300. Then it dies at step 1100.",  # of what, nobody says
        "Memory is 30.1 GB at step 100. I wonder if it dies later on a 40GB A100.",
        "Step 1 takes 2.1 s, step 2 2.0 s, step 3 2.2 s on a 24 GB card.",
        "It used 18 GB of GPU memory. The script dies now and then of a KeyError.",  # another cause is named
        "GPU memory is at 18 GB and the loss goes to NaN, then training crashed.",
    ],
)
def test_a_death_without_figures_or_a_worry_is_none(said: str) -> None:
    report = diagnose([("said.txt", said)])
    assert report.evidence.failure is None
    assert len(report.evidence.samples) <= 1


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ("Everything trains, but when the checkpoint gets written at step 500 I run out of GPU memory.", "save"),
        ("I resume from checkpoint-1000 and immediately get CUDA out of memory, from scratch it works.", "resume"),
        ("After the first weight sync the actor worker dies with CUDA out of memory.", "sync"),
        ("Training is fine; saving the final model it runs out of GPU memory.", "save"),
        ("OOM right at trainer init with ref_model=None.", "load"),
    ],
)
def test_the_moment_in_words(said: str, phase: str) -> None:
    failure = read([("said.txt", said)]).evidence.failure
    assert failure is not None and failure.phase == phase


@pytest.mark.parametrize("named", ["--output_dir runs/after-the-OOM-fix", "python train.py --run_name no_OOM_anymore", "out/OOM-test/log.txt was written"])
def test_a_name_with_the_word_in_it_states_nothing(named: str) -> None:
    assert not states(named)
