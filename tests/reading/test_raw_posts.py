"""Sentences of people's first posts: where it ran out, on whose memory, and on which card, in the words that they use."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read


@pytest.mark.parametrize(
    "said", ["With FSDP and QLoRA the model loading went OOM on CPU.", "It OOMs on the host while loading the shards.", "CPU OOM when the checkpoint is read."]
)
def test_out_of_memory_on_the_cpu_is_the_hosts(said: str) -> None:
    failure = read([("post.txt", said)]).evidence.failure
    assert failure is not None
    assert failure.kind == "host-memory"


def test_out_of_memory_on_the_gpu_stays_the_cards() -> None:
    failure = read([("post.txt", "With offload to CPU it still goes OOM on the GPU after a step.")]).evidence.failure
    assert failure is not None
    assert failure.kind == "gpu-memory"


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ("GRPO training goes OOM when the vLLM engine wakes up again.", "rollout"),
        ("某张卡的显存一直没有被释放，导致再次wake up weight就会oom。", "sync"),
        ("After three steps waking up the weights runs out of memory.", "sync"),
    ],
)
def test_an_engine_that_wakes_names_the_moment(said: str, phase: str) -> None:
    failure = read([("post.txt", said)]).evidence.failure
    assert failure is not None
    assert failure.phase == phase


@pytest.mark.parametrize(
    ("card", "id"),
    [
        ("Titan RTX", "titanrtx-24gb"),
        ("2080Ti", "rtx2080ti-11gb"),
        ("1080 Ti", "gtx1080ti-11gb"),
        ("Tesla K80", "k80-12gb"),
        ("L20", "l20-48gb"),
        ("DGX Spark", "gb10-128gb"),
        ("RTX 4070 Ti Super", "rtx4070tisuper-16gb"),
        ("V100-PCIE-32GB", "v100-pcie-32gb"),
        ("7900 XTX", "rx7900xtx-24gb"),
        ("Gaudi2", "gaudi2-96gb"),
    ],
)
def test_cards_as_people_write_them(card: str, id: str) -> None:
    assert read([("post.txt", f"I fine-tune llama 3 8b on a {card} and get out of memory.")]).job.hardware.gpu == id


@pytest.mark.parametrize("said", ["The images are 1080 pixels high, training goes OOM.", "After 2080 steps it goes OOM."])
def test_numbers_that_are_no_cards(said: str) -> None:
    assert read([("post.txt", said)]).job.hardware.gpu is None


def test_trying_to_train_with_a_strategy_is_using_it() -> None:
    assert read([("post.txt", "I try to train llama 2 70B using FSDP onto 8 GPUs and it goes OOM.")]).job.parallel.strategy == "fsdp1"


@pytest.mark.parametrize("said", ["evaluation seems to die a bit over 1/2 way through", "it always goes OOM at 94% of the evaluation, with any batch size"])
def test_an_evaluation_that_dies_on_its_way_collects(said: str) -> None:
    report = diagnose([("post.txt", f"I train bert-base-uncased on a Titan RTX with 24GB of RAM, and {said}.")])
    assert report.findings[0].cause == "eval-accumulation"


def test_small_fp32_weights_are_not_why_a_card_is_full() -> None:
    report = diagnose([("post.txt", "I train bert-base-uncased with the HF Trainer on a Titan RTX and get CUDA out of memory.")])
    assert "default-fp32-load" not in {finding.cause for finding in report.findings}


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("I set --devices=8 on a 8xH20 machine, but all the GPU memory was occupied by card 0, and then it oom.", "ranks-on-one-gpu"),
        ("With 4 GPUs and DDP the memory usage of GPU0 is significantly higher than other GPUs and it runs out of memory.", "ranks-on-one-gpu"),
        ("I train dpo with full fine-tune on 8*A100-40G and DeepSpeed zero2, 7B model, and get out of memory.", "reference-copy"),
        ("With FSDP it goes OOM after an epoch; disabling model checkpointing the memory error went away.", "save-gather"),
        ("In Jupyter the first run works, then the cell gives CUDA out of memory. Restarting the kernel fixes it.", "retained-objects"),
        ("t5-3b on 2xA100 40GB, training is fine with batch size 4, as soon as evaluation begins it is OOM. per_device_eval_batch_size=64", "eval-batch"),
        ("Training QLoRA of Llama-2-70B on 2x A6000 went fine, but merge_and_unload() gives CUDA out of memory when merging.", "merge-dequantizes"),
        (
            "Mistral-7B on 8xA100 80GB goes OOM. It says: You are not running the flash-attention implementation, expect numerical differences.",
            "attention-fallback",
        ),
        ("SFTTrainer packing=False, avg sample is 300 tokens but some are 4000, llama 3 8b on an A6000. OOM randomly in the middle of epoch.", "batch-outlier"),
        ("CUDA error: out of memory, nvidia-smi shows 0 MiB. Inside docker, another user runs jobs on the same node.", "other-process"),
        (
            "DPOTrainer with peft_config, I also pass ref_model=AutoModelForCausalLM.from_pretrained(name). Mistral 7B on an A10G is OOM at init.",
            "reference-copy",
        ),
        ("Megatron MoE, EP8: after some hundred steps one rank OOMs, always a different one; others have 15 GB free.", "expert-imbalance"),
        ("torch.compile(model, mode='max-autotune') makes my GPU run out of memory, without compile it uses 60 of 80 GB.", "graph-pools"),
        ("On my 3090 with 40GB of RAM the job was killed halfway when it was loading the 7B base model.", "host-memory"),
    ],
)
def test_what_a_sentence_shows(said: str, cause: str) -> None:
    assert diagnose([("post.txt", said)]).findings[0].cause == cause


def test_vanilla_checkpointing_is_no_attention() -> None:
    report = diagnose(
        [("post.txt", "I use LoRA with llama 7b on an A100. We should be able to just use vanilla gradient checkpointing, but it runs out of memory.")]
    )
    assert "attention-fallback" not in {finding.cause for finding in report.findings}


def test_the_version_that_works_is_not_the_one_that_failed() -> None:
    text = "transformers: 5.0.0\ntorch: 2.9.1\nLoading goes OOM on a 16GB RTX 5080; it works fine on transformers 4.48.\n"
    versions = read([("post.txt", text)]).job.framework.versions
    assert versions is not None
    assert versions["transformers"] == "5.0.0"


def test_the_end_of_a_long_paragraph_is_heard() -> None:
    filler = "We train on a cluster of our own with data that we may not show and a model that is not public either. " * 8
    report = diagnose([("post.txt", f"{filler}It goes OOM after an epoch. I tested it by disabling model checkpointing and the memory error went away.")])
    assert report.findings[0].cause == "save-gather"


def test_a_process_that_i_killed_is_no_failure() -> None:
    assert read([("post.txt", "The old run was killed by me before I started the new one on a 3090 with llama 3 8b.")]).evidence.failure is None


@pytest.mark.parametrize(
    ("said", "base"),
    [("Unsloth, Qwen2-VL-7B 4bit on a T4 goes OOM.", "nf4"), ("A 7B 8-bit Adam run goes OOM on a T4.", None), ("llama 2 13B in 8 bit goes OOM.", "int8")],
)
def test_bits_behind_a_models_size(said: str, base: str | None) -> None:
    assert read([("post.txt", said)]).job.method.base == base


def test_one_process_that_spreads_layers_holds_nothing_twice() -> None:
    report = diagnose(
        [("post.txt", 'device_map="auto" on two 3090s: GPU0 uses 23.5 GB and OOMs while GPU1 has only 9 GB used. Full fine-tuning of a 3B model.')]
    )
    assert "replicated-state" not in {finding.cause for finding in report.findings}
