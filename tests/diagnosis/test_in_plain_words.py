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
