"""What a report says first, in words that hold whatever number of facts is missing and whether or not the estimate shows the cause."""

from __future__ import annotations

from advisor.diagnosis import diagnose
from advisor.render import words

ADAPTERS_AND_REFERENCE = """
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16)
ref = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16)
args = DPOConfig(output_dir="o", per_device_train_batch_size=1, max_length=1024, bf16=True, gradient_checkpointing=True)
trainer = DPOTrainer(model=model, ref_model=ref, args=args, train_dataset=ds, peft_config=LoraConfig(r=16, target_modules="all-linear"))
"""
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1002.00 MiB. GPU 0 has a total capacity of 39.39 GiB of which 512.00 MiB is free. "
    "Including non-PyTorch memory, this process has 38.87 GiB memory in use. Of the allocated memory 37.52 GiB is allocated by PyTorch, and 800.00 MiB is "
    "reserved by PyTorch but unallocated."
)


def test_several_missing_facts_are_not_called_one() -> None:
    report = diagnose([("t.py", "TrainingArguments('o', bf16=True, gradient_checkpointing=True, num_train_epochs=1)")])
    assert report.verdict == "incomplete"
    assert report.sentence.startswith("What decides is missing: model.name")
    assert "one" not in words.VERDICTS["incomplete"].lower().split()


def test_a_fit_that_failed_is_told_as_such() -> None:
    report = diagnose([("dpo.py", ADAPTERS_AND_REFERENCE), ("error.txt", FULL)])
    assert report.findings[0].cause == "reference-copy"
    assert report.plan.steps[0].technique == "adapter-reference"
    assert report.plan.summary.startswith("By the estimate it fits as it is written, and yet it failed. This step removes the most likely cause; ")
