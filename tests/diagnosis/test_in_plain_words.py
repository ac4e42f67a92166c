"""Questions as people first write them, without a traceback: what happened is understood, and what the words exclude is not said."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose


def _first(text: str) -> str | None:
    report = diagnose([("question.txt", text.encode())])
    return report.findings[0].cause if report.findings else None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("It runs fine for about 3000 steps and then OOMs. Inputs are padded to the longest in the batch. A100 40GB, batch 32", "batch-outlier"),
        ("Training fits with batch size 8 but evaluation crashes with out of memory. per_device_eval_batch_size is 8 too.", "eval-accumulation"),
        ("SDXL LoRA training, batch 4, RTX 4090: it always runs out of memory when it starts sampling images", "eval-batch"),
    ],
)
def test_the_first_cause(text: str, cause: str) -> None:
    assert _first(text) == cause


def test_a_number_of_steps_is_no_hearsay() -> None:
    assert diagnose([("q.txt", b"It runs fine for about 3000 steps and then OOMs on my card.")]).verdict == "ooms"
    assert diagnose([("q.txt", b"I read a post about long runs that sometimes end in an OOM after thousands of steps.")]).verdict != "ooms"


def test_an_old_message_decides_the_dtype_that_nobody_wrote() -> None:
    script = (
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        'model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1").cuda()\n'
        'args = TrainingArguments("out", per_device_train_batch_size=1, gradient_accumulation_steps=16, bf16=True)\n'
        "Trainer(model, args, train_dataset=ds).train()\n"
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB (GPU 0; 79.15 GiB total capacity; 77.98 GiB already allocated; "
        "58.38 MiB free; 78.02 GiB reserved in total by PyTorch)\n"
    )
    assert _first(script) == "default-fp32-load"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('after ctrl-c of my kernel the GPU still shows 20GB used and the new run OOMs at model.to("cuda")', True),
        ("I killed the old job, but the memory of the card is still occupied and the next run goes out of memory.", True),
        ("The loss is still falling after I stopped the scheduler, then the run goes out of memory on the card.", False),
    ],
)
def test_what_an_ended_run_still_holds(text: str, found: bool) -> None:
    assert (_first(text) == "other-process") is found


def test_a_handle_that_fails_on_an_empty_card_is_no_memory_error() -> None:
    smi = (
        "|   0  Tesla T4            Off  | 00000000:00:04.0 Off |                    0 |\n"
        "| N/A   53C    P0    28W /  70W | {:>7}MiB / 15109MiB |      0%      Default |\n"
    )
    error = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
    empty = diagnose([("error.txt", error.encode()), ("smi.txt", smi.format(1504).encode())])
    full = diagnose([("error.txt", error.encode()), ("smi.txt", smi.format(15001).encode())])
    assert (empty.verdict, full.verdict) == ("not-memory", "ooms")


def test_an_argument_that_ends_in_model_deletes_nothing() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is free.\n"
    report = diagnose([("cmd.sh", b"python train.py --model my_model --iters 100\n"), ("error.txt", error.encode())])
    assert all(f.cause != "retained-objects" for f in report.findings)
