"""QLoRA under FSDP: what the dtype that 4-bit weights are packed in makes of it, by what the libraries do."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.resolving.contradictions import contradictions
from advisor.run import resolve

SCRIPT = """
from trl import SFTConfig, SFTTrainer
bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16{})
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-70B", quantization_config=bnb, torch_dtype=torch.bfloat16)
args = SFTConfig(output_dir="o", per_device_train_batch_size=1, max_length=2048, bf16=True, fsdp="full_shard auto_wrap", fsdp_config={{"fsdp_version": {}}})
trainer = SFTTrainer(model=model, args=args, train_dataset=ds, peft_config=LoraConfig(r=16, target_modules="all-linear"))
"""
AXOLOTL = (
    "base_model: a/b-7B\nsequence_len: 2048\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\nadapter: qlora\nload_in_4bit: true\nbf16: true\n"
    "fsdp_version: 1\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
)


def said(text: str, name: str = "t.py") -> tuple[str, ...]:
    found = read([(name, text)])
    job = found.job.but(hardware={"gpu": "h100-80gb", "gpus_per_node": 8})
    return tuple(s for s in contradictions(resolve(job, found.evidence)) if "packed" in s)


@pytest.mark.parametrize(
    ("storage", "version", "word"),
    [
        ("", 1, "Cannot flatten integer"),
        ("", 2, "whole on every rank"),
        (", bnb_4bit_quant_storage='uint8'", 1, "Cannot flatten integer"),
        (", bnb_4bit_quant_storage=torch.bfloat16", 1, None),
        (", bnb_4bit_quant_storage=torch.bfloat16", 2, None),
        (", bnb_4bit_quant_storage=torch.float32", 1, "uniform dtype"),
        (", bnb_4bit_quant_storage=storage", 1, None),  # a name that nothing resolves: nothing is claimed
    ],
)
def test_what_results_is_said(storage: str, version: int, word: str | None) -> None:
    found = said(SCRIPT.format(storage, version))
    assert [bool(word and word in sentence) for sentence in found] == ([True] if word else [])


def test_a_named_storage_is_understood() -> None:
    listed = read([("t.py", SCRIPT.format(", bnb_4bit_quant_storage=torch.bfloat16", 1))]).evidence.not_understood
    assert not any("quant_storage" in item.text for item in listed)


def test_axolotl_packs_in_bf16_itself() -> None:
    assert said(AXOLOTL, "a.yaml") == ()


@pytest.mark.parametrize(("storage", "named"), [("", True), (", bnb_4bit_quant_storage=torch.bfloat16", False)])
def test_whole_bases_under_fsdp2_are_a_cause(storage: str, named: bool) -> None:
    oom: Any = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of 39.39 GiB of which 312.00 MiB is free. "
        "Including non-PyTorch memory, this process has 39.07 GiB memory in use. Of the allocated memory 37.90 GiB is allocated by PyTorch, and 600.00 MiB "
        "is reserved by PyTorch but unallocated."
    )
    causes = [f.cause for f in diagnose([("t.py", SCRIPT.format(storage, 2)), ("e.txt", oom)]).findings]
    assert (causes[0] == "quantized-load-not-sharded") is named


@pytest.mark.parametrize("words", ["Cannot flatten integer dtype tensors", "Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32"])
def test_a_flat_tensor_of_two_dtypes_is_no_memory_error(words: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/dist-packages/torch/distributed/fsdp/_flat_param.py", line 763, in _validate_tensors_to_flatten\n'
        f'    raise ValueError("{words}")\nValueError: {words}\n'
    )
    report = diagnose([("e.txt", text)])
    assert report.verdict == "not-memory"
    assert any("bnb_4bit_quant_storage" in says.says for says in report.findings[0].evidence)
