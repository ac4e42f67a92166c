"""Models and cards as people type them, and what only looks like one."""

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.reading.prose import model_in, remarks_of
from advisor.reading.spoken_cards import cards_in


@pytest.mark.parametrize(
    ("text", "hub_id"),
    [
        ("fine tune llama 3 8b with qlora", "meta-llama/Meta-Llama-3-8B"),
        ("Mistral 7B on a 3090", "mistralai/Mistral-7B-v0.1"),
        ("Qwen 2.5 VL 7B, lora", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("gpt2 xl on v100", "openai-community/gpt2-xl"),
        ("GPT-2 small", "openai-community/gpt2"),
        ("gpt2-124M", "openai-community/gpt2"),
        ("deepseek r1 distill qwen 7b grpo", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("bert base uncased", "google-bert/bert-base-uncased"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("falcon 7b vs falcon 40b", "tiiuae/falcon-7b"),
        ("llama 3 8bit", None),  # a number of bits
        ("llama 7b", "huggyllama/llama-7b"),  # Llama 2 has the same shape at this size
        ("llama 70b", None),  # of which version? Llama 2 and 3 differ
        ("configs/llama-3-8b.yaml", None),
        ("my_llama-3-8b", None),
        ("command r 35b", None),
        ("mistral-7b-openorca", None),
        ("teacher is meta-llama/Llama-3.1-70B, student is meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("Llama 3.1 70B as the teacher, Llama 3.2 1B as student", "meta-llama/Llama-3.2-1B"),
        ("Qwen/Qwen2.5-7B-Instruct as the judge", None),
        ("Qwen2.5-7B is used as the draft, Llama-3.1-8B is trained", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_a_model_in_words(text: str, hub_id: str | None) -> None:
    assert model_in(text) == hub_id


@pytest.mark.parametrize(
    ("text", "count", "card"),
    [
        ("on a 24GB 3090", None, "rtx3090-24gb"),
        ("lora on 4090, seq 2048", None, "rtx4090-24gb"),
        ("2x4090", 2, "rtx4090-24gb"),
        ("2 3090s", 2, "rtx3090-24gb"),
        ("four rtx 4090", 4, "rtx4090-24gb"),
        ("8 A100s", 8, "a100-80gb"),
        ("4x h100 80gb", 4, "h100-80gb"),
        ("a100 40gb", None, "a100-40gb"),
        ("on a 40GB A100", None, "a100-40gb"),
        ("an 80 GB A100-SXM4", None, "a100-80gb"),
        ("colab t4", None, "t4-16gb"),
        ("2 GTX 1080 Ti", 2, "gtx1080ti-11gb"),
        ("after 3090 steps", None, None),
        ("trained on 3090 samples", None, None),
        ("h100.yaml", None, None),
        ("train-h100.sh", None, None),
        ("t4 of the paper", None, None),
    ],
)
def test_cards_as_they_are_typed(text: str, count: int | None, card: str | None) -> None:
    found = dict(cards_in(text))
    assert (found.get("hardware.gpus_per_node"), found.get("hardware.gpu")) == (count, card)


def test_settings_in_a_remark_are_read_by_their_framework() -> None:
    said = "GRPO on one A100, vllm_gpu_memory_utilization=0.6, per_device_train_batch_size=8, num_generations=8, gradient_checkpointing=True"
    job = read([("said.txt", said)]).job
    assert (job.framework.name, job.batch.micro_batch, job.batch.generations) == ("trl", 8, 8)
    assert job.rollout is not None and job.rollout.memory_fraction == 0.6


@pytest.mark.parametrize(
    ("said", "batch"),
    [
        ("llama 2 7b, bs 1, seq 2048", 1),
        ("mbs 4 on 8 cards", 4),
        ("peak memory in MB: 4096", None),
        ("with bs 1 it works, bs 2 OOMs", 2),
        ("bsz=16", 16),
        ("it takes 512 mb 3 times", None),
        ("abs 4", None),
    ],
)
def test_the_batch_as_people_shorten_it(said: str, batch: int | None) -> None:
    facts = {item.fact.field: item.fact.value for item in remarks_of(iter([("said.txt:1", said)]))}
    assert facts.get("batch.micro_batch") == batch


def test_what_stands_before_an_error_on_its_line_is_said_by_a_person() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 260.00 MiB. GPU 0 has a total capacity of 79.25 GiB of which 120.00 MiB is free."
    found = read([("said.txt", f"Qwen2.5 7B on one A100, it fails in the first optimizer step: {error}\n")])
    assert found.evidence.failure is not None and found.evidence.failure.requested_bytes == 260 * 2**20
    assert found.job.model.name == "Qwen/Qwen2.5-7B" and diagnose([("said.txt", f"It fails in the first optimizer step: {error}\n")]).phase == "step"


def test_a_card_of_several_sizes_is_an_inference() -> None:
    found = {f.field: f for f in read([("said.txt", "llama 3 8b qlora on an A100, batch 4, seq len 2048")]).evidence.facts}
    assert (found["hardware.gpu"].kind, found["hardware.gpu"].value) == ("inferred", "a100-80gb") and "40 GB too" in (found["hardware.gpu"].why or "")
    found = {f.field: f for f in read([("said.txt", "llama 3 8b qlora on an A100 40GB, batch 4, seq len 2048")]).evidence.facts}
    assert (found["hardware.gpu"].kind, found["hardware.gpu"].value) == ("read", "a100-40gb")


def test_a_model_in_a_scripts_comment_is_less_than_one_in_a_letter() -> None:
    script = (
        "HIDDEN=4096  # llama2 70B has 8192\ntorchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --micro-batch-size 1 --seq-length 64\n"
    )
    job = read([("finetune.sh", script), ("said.txt", "CUDA OOM when finetuning LLAMA2-7b with A100 40G, I use this script:")]).job
    assert job.model.name == "meta-llama/Llama-2-7b-hf"


@pytest.mark.parametrize(
    ("said", "batch", "length"),
    [
        ("qwen 14b, 4k context, bs=2", 2, 4096),
        ("batch 2, 2048 tokens, AdamW", 2, 2048),
        ("max len 4096, batch 2", 2, 4096),
        ("2048-token sequences, bs 4", 4, 2048),
        ("a 10k context window", None, 10_000),  # of tokens ten thousand; 4k, 8k, 16k are powers of two
        ("batch size 2, 4 and 8 were tried", None, None),
        ("10k sequences of 512 tokens each", None, 512),
        ("10,000 sequences at 3 tokens/s", None, None),
        ("batch 4, 900 tokens/s", 4, None),
        ("processed 4096 tokens in 3s", None, None),
        ("max_new_tokens 512 tokens", None, None),
        ("it supports 128k context, and we train at 4k ctx", None, 4096),  # what the model could
        ("average 300 tokens per sample", None, None),
        ("we generated 512 tokens per prompt", None, None),
        ("max length 20 s of audio", None, None),
        ("16 sequence parallel ranks", None, None),
        ("batch 250, loss 0.31", None, None),  # the number of a batch
        ("[batch 250] 3.2 it/s", None, None),
    ],
)
def test_a_length_as_people_say_it(said: str, batch: int | None, length: int | None) -> None:
    found = {item.fact.field: item.fact.value for item in remarks_of(iter([("said:1", said)]))}
    assert (found.get("batch.micro_batch"), found.get("batch.seq_len")) == (batch, length)


@pytest.mark.parametrize(
    ("said", "kind", "strategy"),
    [
        ("LoRA is not enabled. ZeRO-3, 8 cards", "full", "zero3"),
        ("full finetune, no LoRA, no FSDP", "full", None),
        ("w/QLoRA", "lora", None),
        ("without LoRA it OOMs, with LoRA it runs", None, None),  # both were run
        ("not using QLoRA but plain LoRA", None, None),
        ("should I use ZeRO-3 or FSDP?", None, None),
        ("LoRA, no gradient checkpointing", "lora", None),  # what is denied is what follows
        ("QLoRA on ZeRO-3, no offload", "lora", "zero3"),
        ("FSDP: no CPU offload", None, "fsdp1"),
        ("no LoRA, no QLoRA, full finetuning", "full", None),
        ("LoRA: no", "full", None),
        ("没有使用LoRA，使用ZeRO-3训练", "full", "zero3"),
        ("LoRA fine-tuning, off-the-shelf", "lora", None),
    ],
)
def test_what_is_denied_is_not_used(said: str, kind: str | None, strategy: str | None) -> None:
    found = {item.fact.field: item.fact.value for item in remarks_of(iter([("said:1", said)]))}
    assert (found.get("method.kind"), found.get("parallel.strategy")) == (kind, strategy)


@pytest.mark.parametrize(
    ("said", "framework"),
    [
        ("With verl on 8 cards it fails after the first sync", "verl"),
        ("Megatron-LM TP=2 PP=2, no recompute", "megatron-lm"),
        ("Unsloth with TRL's GRPOTrainer", "unsloth"),  # the outer one is what a user configures
        ("TRL DPOTrainer(model, ref_model=None)", "trl"),
        ("the HF Trainer with fsdp", "hf-trainer"),
        ("see github.com/volcengine/verl for it", None),
        ("axolotl and LLaMA-Factory", None),  # which of them?
        ("should I use verl or OpenRLHF?", None),
        ("I tried torchtune instead", None),
        ("I tried TRL with LoRA", None),
        ("Using the HF Trainer, not TRL.", None),  # a sentence that weighs states none, and "weighed" is no framework
        ("pip install -U trl peft", None),  # what is installed is not what runs
        ("trl==0.9.6", None),
        ("- TRL version: 0.12.0", None),
        ("- unsloth: 2024.11", None),
        ("moved from axolotl to a loop of my own", None),
    ],
)
def test_a_trainer_as_people_name_it(said: str, framework: str | None) -> None:
    found = {item.fact.field: item.fact.value for item in remarks_of(iter([("said:1", said)]))}
    assert found.get("framework.name") == framework


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("训练到一半爆显存，deepspeed zero3，8张A100 80G，怎么办", {"parallel.strategy": "zero3"}),
        (
            "我用LoRA微调Qwen3-8B，单卡 4090，长度4096，怎么解决",
            {"method.kind": "lora", "model.name": "Qwen/Qwen3-8B", "hardware.gpu": "rtx4090-24gb", "batch.seq_len": 4096},
        ),
        ("zero3 怎么开？", {"parallel.strategy": None}),  # how is it switched on?
        ("Qwen3-8B with LoRA on a 4090 or 5090", {"method.kind": "lora"}),
        ("Do I need FSDP or DeepSpeed for a 13B LoRA on 2x A6000?", {"method.kind": "lora", "parallel.strategy": None}),
        ("LoRA or full fine-tuning?", {"method.kind": None}),
        ("what does gradient checkpointing do", {"activations.checkpointing": None}),
        ("length 4096, batch 2", {"batch.seq_len": 4096, "batch.micro_batch": 2}),
        ("prompt length 512, completion length 1024", {"batch.seq_len": None}),
    ],
)
def test_what_a_question_states_and_what_it_weighs(said: str, expected: dict[str, object]) -> None:
    found = {item.fact.field: item.fact.value for item in remarks_of(iter([("said:1", said)]))}
    assert {field: found.get(field) for field in expected} == expected
