"""What a text holds and the run is not: code that was taken out, branches that are off, other people's cards, tries that went well."""

from typing import Any

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.reading.switched_off import is_code

RUN = """model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16)
{}args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, gradient_checkpointing=True, bf16=True)
Trainer(model=model, args=args, train_dataset=ds).train()
"""


def _job(*lines: str, first: str = "") -> Any:
    inserted = "".join(line + "\n" for line in lines)
    return read([("train.py", first + "\n" + RUN.format(inserted))]).job


def test_a_commented_out_call_is_none() -> None:
    out = '# model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-70B", load_in_4bit=True)'
    assert _job(out).method.base is None and _job(out).model.name == "meta-llama/Llama-3.1-8B"
    assert _job(out.removeprefix("# ")).method.base is not None


@pytest.mark.parametrize(
    ("comment", "code"),
    [
        ("model = get_peft_model(model, LoraConfig(r=16))", True),
        ("model = AutoModel.from_pretrained(", True),
        ("--load_in_4bit true \\", True),
        ("8 x A100 80GB, full fine-tune (ZeRO-3)", False),
        ("run with bs=4 (mb 1)", False),
        ("max_seq_length 512", False),
    ],
)
def test_which_comments_are_code(comment: str, code: bool) -> None:
    assert is_code(comment) is code


@pytest.mark.parametrize(
    ("switch", "kind"),
    [("USE_LORA = False", None), ("USE_LORA = True", "lora"), ("USE_LORA = args.lora", "lora"), ("USE_LORA = False\nUSE_LORA = True", "lora")],
)
def test_a_branch_that_is_off_does_not_run(switch: str, kind: str | None) -> None:
    assert _job("if USE_LORA:", "    model = get_peft_model(model, LoraConfig(r=16))", first=switch).method.kind == kind


def test_helpers_that_return_configs_are_all_the_scripts() -> None:
    script = (
        "def adapter() -> LoraConfig:\n    return LoraConfig(r=64)\n\n"
        "def arguments() -> SFTConfig:\n    return SFTConfig(per_device_train_batch_size=16, max_length=8192)\n\n"
        "SFTTrainer(model, args=arguments(), peft_config=adapter(), train_dataset=ds).train()\n"
    )
    job = read([("train.py", script)]).job
    assert (job.method.kind, job.method.rank, job.batch.micro_batch, job.batch.seq_len) == ("lora", 64, 16, 8192)


@pytest.mark.parametrize(
    ("said", "card"),
    [
        ("I don't have an A100, only an RTX 3090. Mistral-7B QLoRA", "rtx3090-24gb"),
        ("switched from RTX 3090 to A100 80GB", "a100-80gb"),
        ("My friend runs it on 8xA100 fine. I have a single RTX 3060 12GB", "rtx3060-12gb"),
    ],
)
def test_the_card_is_the_writers(said: str, card: str) -> None:
    assert read([("said.txt", said)]).job.hardware.gpu == card


@pytest.mark.parametrize("said", ["CUDA OOM.", "It OOMs.", "Llama 3.1 8B LoRA on an RTX 4090, batch size 1, seq 512. CUDA OOM."])
def test_a_sentence_of_two_words_is_a_failure(said: str) -> None:
    assert diagnose([("said.txt", said)]).verdict == "ooms"


@pytest.mark.parametrize("no", ["sans", "ohne", "senza", "sin", "no", "without"])
def test_without_is_without_in_other_languages(no: str) -> None:
    assert read([("said.txt", f"Llama-3-8B LoRA, A100 40GB, {no} gradient checkpointing")]).job.activations.checkpointing == "none"


def test_the_optimizer_and_its_offload_in_words() -> None:
    assert read([("said.txt", "full finetuning Llama-2-7b with Adam8bit")]).job.optimizer.name == "adamw-8bit"
    assert read([("said.txt", "gpt-j-6b with deepspeed stage 2 with cpu offload")]).job.offload.optimizer == "cpu"


def test_of_two_tries_the_one_that_failed() -> None:
    assert read([("said.txt", "batch size 1 works. Batch size 4 gives OOM. Mistral 7B LoRA on a 3090")]).job.batch.micro_batch == 4
